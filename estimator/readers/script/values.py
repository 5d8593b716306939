"""Values of a script that is read without being run: Python's own, names of libraries, and what is not known."""

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from ..arguments.table import scripts
from ..source.settings import Setting
from .notes import Notes


class Unknown:
    """A value that only the running script could know."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()
ONLY_WHEN_IT_RUNS = " is only known when the script runs."
"""Ends the origin of a setting whose value is UNKNOWN, which is a sentence."""
PLAIN = (bool, int, float, str, bytes, type(None))
MAX_LENGTH = 100_000
"""Items of a list and characters of a text that are kept; longer ones are unknown."""
_MAX_ITEMS = 10_000
"""Items of a list, with those of the lists in it, that are looked at."""
_NAMESPACES_OF_WORDS = scripts().names["namespaces_of_words"]


class Name(msgspec.Struct, frozen=True):
    """A name of a library, or one that the script never defines: ``torch.optim.AdamW``."""

    path: str

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition(".")[2]


class Thing:
    """A value with identity and behaviour of its own; by default nothing about it is known."""

    def attribute(self, name: str) -> Any:
        """Return an attribute's value."""
        return UNKNOWN

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Take an assignment to an attribute."""

    def method(self, call: "Call") -> Any:
        """Return the result of a method that is called on it."""
        return UNKNOWN

    def called(self, call: "Call") -> Any:
        """Return the result of calling it."""
        return UNKNOWN

    def item(self, key: Any) -> Any:
        """Return what stands at an index or a key."""
        return UNKNOWN

    def elements(self) -> list[Any] | None:
        """Return what iterating over it yields; None: unknown."""
        return None

    def parts(self) -> Iterator[Any]:
        """Yield the values that it holds."""
        yield from ()


class Scope:
    """The names of a module, a call or a class body, and the scope around them."""

    __slots__ = ("elsewhere", "names", "outer")

    def __init__(self, outer: "Scope | None" = None) -> None:
        self.names: dict[str, Any] = {}
        self.outer = outer
        self.elsewhere: set[str] = set()
        """Names declared ``global`` or ``nonlocal``."""

    def find(self, name: str) -> "Scope | None":
        """Return the scope that has the name."""
        scope: Scope | None = self
        while scope is not None and (name not in scope.names or name in scope.elsewhere):
            scope = scope.outer
        return scope

    def assign(self, name: str, value: Any) -> None:
        """Give a name a value."""
        scope: Scope = (self.find(name) or self) if name in self.elsewhere else self
        scope.names[name] = value


@dataclass(eq=False, slots=True)
class Function:
    """A function or lambda of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    defaults: Mapping[str, Any]
    name: str
    options: Mapping[str, Any] | None = None
    """Values of the options of the command line that its parameters stand for (click, typer, fire)."""


class Attribute(msgspec.Struct, eq=False):
    """A method of a value that is no function of the script: ``model.parameters``, ``"a".split``."""

    receiver: Any
    name: str


@dataclass(eq=False, slots=True)
class Class(Thing):
    """A class of the script."""

    name: str
    node: ast.ClassDef
    bases: tuple[Any, ...]
    members: dict[str, Any]
    fields: dict[str, ast.AnnAssign]
    """Annotated fields in order, those of its bases first."""

    def find(self, name: str) -> Any:
        """Return a member of the class or of the script's classes that it derives from; UNKNOWN without one."""
        if name in self.members:
            return self.members[name]
        found = (base.find(name) for base in self.bases if isinstance(base, Class))
        return next((each for each in found if each is not UNKNOWN), UNKNOWN)

    def library_bases(self) -> Iterator[str]:
        """Yield the full names of the library classes that it inherits from."""
        for base in self.bases:
            if isinstance(base, Name):
                yield base.path
            elif isinstance(base, Class):
                yield from base.library_bases()

    def attribute(self, name: str) -> Any:
        """Return a member, or a method."""
        found = self.find(name)
        return Attribute(self, name) if found is UNKNOWN or isinstance(found, Function) else found

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Assign a member."""
        self.members[name] = value

    def method(self, call: "Call") -> Any:
        """Return the result of a method of its own, or of one that it has from a library: ``from_pretrained``."""
        return call.run.class_method(self, call)


class Module(Thing):
    """A module beside the script.

    Args:
        load: returns a module in its folder; None: there is none.
    """

    def __init__(self, load: "Callable[[str], Module | None]") -> None:
        self.scope, self._load = Scope(), load

    def attribute(self, name: str) -> Any:
        """Return one of its names, or a module in its folder."""
        known = self.scope.names
        return known[name] if name in known else self._load(name) or UNKNOWN

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Give a name another value."""
        self.scope.names[name] = value


class Instance(Thing):
    """An object of one of the script's classes.

    Args:
        kind: the class.
    """

    def __init__(self, kind: Class) -> None:
        self.kind = kind
        self.values: dict[str, Any] = {}
        self.is_open = self.is_module and isinstance(kind.find("__init__"), Function)
        """Methods that are not followed may set its attributes."""

    @property
    def is_module(self) -> bool:
        """True for a module of torch, whatever it computes."""
        return any(path.endswith(("Module", "PreTrainedModel")) for path in self.kind.library_bases())

    def attribute(self, name: str) -> Any:
        """Return an attribute, or a method."""
        found = self.values.get(name, self.kind.find(name))
        is_known = not self.is_open or isinstance(found, Thing)
        return Attribute(self, name) if found is UNKNOWN or isinstance(found, Function) or not is_known else found

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Assign an attribute."""
        self.values[name] = value

    def method(self, call: "Call") -> Any:
        """Return the result of a method."""
        return call.run.own_method(self, call)

    def parts(self) -> Iterator[Any]:
        """Yield the values of its attributes."""
        yield from self.values.values()


class Record(Thing):
    """The arguments of a library's constructor by name, as far as they matter: ``TrainingArguments``, ``LoraConfig``.

    Args:
        call: the call of the constructor.
    """

    decisive: Mapping[str, str] = MappingProxyType({})
    """Arguments that are doubted where they may stand in an unknown table, with their job keys."""

    def __init__(self, call: "Call") -> None:
        self.name, self.where, self.unknown_table = call.name, call.where, call.unknown_table
        for name, key in self.decisive.items() if call.unknown_table is not None else ():
            if name not in call.kwargs:
                text = f"{call.name}(**{short_text(call.unknown_table)})"
                call.doubt(f"{name} of {text} is only known when the script runs.", key=key)
        self.values = dict(call.kwargs)
        self.settings: dict[str, Setting] = {name: call.setting(name) for name in call.kwargs}

    def attribute(self, name: str) -> Any:
        """Return an argument's value."""
        return self.values.get(name, UNKNOWN)

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Take an assignment to an argument."""
        self.values[name], self.settings[name] = value, call.setting(0)


class Call(msgspec.Struct):
    """One call of a script with its evaluated arguments."""

    run: Any
    """The reader that follows the script."""
    node: ast.AST
    path: str
    """What is called, dotted: ``torch.optim.AdamW``; for a method its name."""
    receiver: Any = None
    """What a method is called on; None for a function."""
    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    nodes: dict[str | int, ast.expr] = msgspec.field(default_factory=dict)
    """The expressions of arguments, by position and keyword."""
    scope: Scope | None = None
    unknown_table: ast.expr | None = None
    """The ``**settings`` whose contents are unknown."""

    @property
    def name(self) -> str:
        """The last part of what is called."""
        return self.path.rpartition(".")[2]

    @property
    def owner(self) -> str:
        """The last part of what it is called on."""
        return self.path.rpartition(".")[0].rpartition(".")[2]

    @property
    def where(self) -> str:
        """Where the call stands: ``train.py line 12``."""
        return str(self.run.location(self.node))

    def value(self, index: int | None, *names: str, default: Any = None) -> Any:
        """Return an argument by position or by one of its keywords."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[index] if index is not None and index < len(self.args) else default

    def after(self, first: Any) -> "Call":
        """Return the call with an argument in front of the others."""
        nodes = {key + 1 if isinstance(key, int) else key: node for key, node in self.nodes.items()}
        return msgspec.structs.replace(self, args=[first, *self.args], nodes=nodes)

    def shown(self, name: str | int) -> str:
        """Return an argument as it is written: ``LoraConfig(r=rank)``."""
        key = f"{name}=" if isinstance(name, str) else ""
        return f"{self.name}({key}{short_text(self.nodes.get(name))})"

    @property
    def notes(self) -> Notes:
        """The findings of the reading."""
        notes: Notes = self.run.notes
        return notes

    def doubt(self, text: str, *, key: str | None = None, asks: bool = False) -> Any:
        """Note something at this place that was not understood; return UNKNOWN."""
        self.notes.doubt(f"{self.where}: {text}", key=key, asks=asks)
        return UNKNOWN

    def setting(self, key: str | int, label: str = "") -> Setting:
        """Return an argument, or what is assigned, and where it stands; UNKNOWN with a sentence for what is not known.

        Args:
            key: its keyword or position.
            label: the callee's name for people; by default the name of what is called.
        """
        value = plain(self.args[key] if isinstance(key, int) else self.kwargs[key])
        node = self.nodes.get(key)
        shown = short_text(node) if node is not None else repr(value)[:40]
        named = f"{key}=" if isinstance(key, str) else ""
        is_assigned = isinstance(getattr(self.node, "ctx", None), ast.Store)
        made = f"{short_text(self.node)} = {shown}" if is_assigned else f"{label or self.name}({named}{shown})"
        text = f"{self.run.location(node or self.node)}: {made}"
        if value is UNKNOWN and key == "fsdp_config" and isinstance(self.kwargs["fsdp_config"], dict):
            known = {str(name): plain(each) for name, each in self.kwargs["fsdp_config"].items()}
            value = {name: each for name, each in known.items() if each is not UNKNOWN}
            self.doubt(f"{', '.join(known.keys() - value)} of fsdp_config is only known when the script runs.")
        if value is UNKNOWN:
            return Setting(value=UNKNOWN, origin=f"{text}{ONLY_WHEN_IT_RUNS}")
        option = self.run.option(node) if node is not None else None
        if option is not None and self.notes.options.is_unseen(option, value):
            return Setting(value=UNKNOWN, origin=f"{text}: what {option.origin} does is not known.")
        return Setting(value=value, origin=text if option is None else f"{option.origin} ({text})")

    def settings(self, *names: str, label: str = "") -> dict[str, Setting]:
        """Return the arguments of these names that are given and not None."""
        found = {name: self.setting(name, label) for name in names if name in self.kwargs}
        return {name: setting for name, setting in found.items() if setting.value is not None}


def short_text(node: ast.AST | None) -> str:
    """Return an expression for people, at most 40 characters of it."""
    if node is None:
        return "..."
    try:
        text = ast.unparse(node)
    except (RecursionError, ValueError):
        return "..."
    return text if len(text) <= 40 else f"{text[:37]}..."


def plain(value: Any) -> Any:
    """Return a value as settings have it: plain Python data; dtypes by their name; UNKNOWN for anything else."""
    return _plain(value, [_MAX_ITEMS], 0)


def _plain(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Name):
        owner = value.path.rpartition(".")[0].rpartition(".")[2]
        if owner == "OptimizerNames":
            return value.name.lower()
        return value.name if owner in _NAMESPACES_OF_WORDS else UNKNOWN
    if budget[0] < 0 or depth > 6:
        return UNKNOWN
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(item, budget, depth + 1) for item in itertools.islice(value, budget[0] + 1)]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), budget[0] + 1)
        found = {str(key): _plain(item, budget, depth + 1) for key, item in pairs}
        return UNKNOWN if any(item is UNKNOWN for item in found.values()) else found
    return UNKNOWN
