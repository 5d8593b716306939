"""Values of a script that is followed without being run: plain Python ones, unknown ones, and those with identity."""

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...source import Setting


class Unknown:
    """A value that only the running script could know."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()
_MAX_ITEMS = 10_000
"""Items of a list, with those of the lists in it, that are looked at."""
_NAMESPACES_OF_WORDS = ("torch", "jnp", "IntervalStrategy", "SaveStrategy", "TaskType", "ShardingStrategy")
PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class External:
    """A name of a library, or one that the script never defines: ``torch.optim.AdamW``."""

    path: str

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition(".")[2]

    @property
    def owner(self) -> str:
        """The last part of what it belongs to: ``AutoModel`` of ``transformers.AutoModel.from_pretrained``."""
        return self.path.rpartition(".")[0].rpartition(".")[2]


class Scope:
    """The names of a module, a call or a class body, and the scope around them."""

    __slots__ = ("elsewhere", "names", "origins", "outer")

    def __init__(self, outer: "Scope | None" = None) -> None:
        self.names: dict[str, Any] = {}
        self.outer = outer
        self.origins: dict[str, Setting] = {}
        """The settings behind names that hold an option's value."""
        self.elsewhere: dict[str, Scope] = {}
        """Scopes of the names declared ``global`` or ``nonlocal``."""

    def find(self, name: str) -> "Scope | None":
        """Return the scope that has the name."""
        scope: Scope | None = self.elsewhere.get(name, self)
        while scope is not None and name not in scope.names:
            scope = scope.outer
        return scope

    def outermost(self) -> "Scope":
        """Return the module's scope."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def assign(self, name: str, value: Any) -> None:
        """Give a name a value, in the scope that it was declared to belong to."""
        scope = self.elsewhere.get(name, self)
        scope.names[name] = value
        scope.origins.pop(name, None)
        if isinstance(value, Thing):
            value.bound(name)


class Thing:
    """A value with identity and behaviour of its own; by default nothing about it is known."""

    truth_is_length = False
    """Whether it counts as false while it is empty, and its length may be unknown."""

    def bound(self, name: str) -> None:
        """Note a variable or attribute that refers to it."""

    def attribute(self, name: str) -> Any:  # noqa: ARG002
        """Return an attribute's value."""
        return UNKNOWN

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Take an assignment to an attribute."""

    def method(self, call: "Call") -> Any:  # noqa: ARG002
        """Return the result of a method that is called on it."""
        return UNKNOWN

    def called(self, call: "Call") -> Any:  # noqa: ARG002
        """Return the result of calling it."""
        return UNKNOWN

    def item(self, key: Any) -> Any:  # noqa: ARG002
        """Return what stands at an index, a slice or a key."""
        return UNKNOWN

    def set_item(self, key: Any, value: Any, call: "Call") -> None:
        """Take an assignment to an index."""

    def elements(self) -> "list[Any] | None":
        """Return what iterating over it yields; None: unknown."""
        return None

    def parts(self) -> Iterator[Any]:
        """Yield the values that it keeps alive."""
        yield from ()


@dataclass(eq=False, slots=True)
class ScriptModule(Thing):
    """The script, or a module in its folder that it imports."""

    name: str
    """File name, for people."""
    path: Path | None
    scope: Scope = field(default_factory=Scope)

    def attribute(self, name: str) -> Any:
        """Return a name of the module."""
        return self.scope.names.get(name, UNKNOWN)

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:  # noqa: ARG002
        """Assign a name of the module."""
        self.scope.assign(name, value)


@dataclass(eq=False, slots=True)
class Function:
    """A function or lambda of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    module: ScriptModule
    defaults: Mapping[str, Any]
    name: str
    owner: "ScriptClass | None" = None
    options: Mapping[str, Setting] | None = None
    """Options that a decorator makes of its parameters (click, typer)."""
    is_property: bool = False
    is_static: bool = False
    is_class_method: bool = False
    config: Any = None
    """What a decorator passes as its first argument (hydra)."""


@dataclass(eq=False, slots=True)
class Method:
    """A function of the script bound to an object, or a call with some arguments given (``functools.partial``)."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Attribute:
    """A method of a value that is no function of the script: ``model.parameters``, ``"a".split``."""

    receiver: Any
    name: str


@dataclass(eq=False, slots=True)
class ScriptClass(Thing):
    """A class of the script."""

    name: str
    node: ast.ClassDef
    bases: tuple[Any, ...]
    module: ScriptModule
    members: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, ast.AnnAssign] = field(default_factory=dict)
    """Annotated fields in order, those of its bases first."""
    is_dataclass: bool = False

    def find(self, name: str, *, depth: int = 0) -> Any:
        """Return a member of the class or of the script's classes that it derives from; UNKNOWN without one."""
        if name in self.members:
            return self.members[name]
        for base in self.bases if depth < 10 else ():
            if isinstance(base, ScriptClass) and (found := base.find(name, depth=depth + 1)) is not UNKNOWN:
                return found
        return UNKNOWN

    def external_bases(self, depth: int = 0) -> Iterator[str]:
        """Yield the paths of the libraries' classes that it derives from."""
        for base in self.bases if depth < 10 else ():
            if isinstance(base, External):
                yield base.path
            elif isinstance(base, ScriptClass):
                yield from base.external_bases(depth + 1)

    def attribute(self, name: str) -> Any:
        """Return a member, as an instance would not see it bound."""
        found = self.find(name)
        if isinstance(found, Function) and found.is_class_method:
            return Method(found, (self,))
        return found if found is not UNKNOWN else Attribute(self, name)

    def method(self, call: "Call") -> Any:
        """Return the result of a method that the class inherits from a library."""
        for path in self.external_bases():
            call.path, call.receiver = f"{path}.{call.path}", None
            return call.run.library.call(call)
        return UNKNOWN

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:  # noqa: ARG002
        """Assign a member."""
        self.members[name] = value


class Instance(Thing):
    """An object of one of the script's classes."""

    def __init__(self, kind: ScriptClass) -> None:
        self.kind = kind
        self.values: dict[str, Any] = {}

    def attribute(self, name: str) -> Any:
        """Return an attribute, a bound method of the class, or what its base in a library makes of the name."""
        if name in self.values:
            return self.values[name]
        found = self.kind.find(name)
        if isinstance(found, Function) and not found.is_static:
            return Method(found, (self.kind if found.is_class_method else self,))
        return found if found is not UNKNOWN else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:  # noqa: ARG002
        """Assign an attribute."""
        self.values[name] = value
        if isinstance(value, Thing):
            value.bound(name)

    def item(self, key: Any) -> Any:
        """Return an attribute by a key, as configuration objects give it."""
        return self.values.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: "Call") -> None:  # noqa: ARG002
        """Assign an attribute by a key."""
        if isinstance(key, str):
            self.values[key] = value

    def parts(self) -> Iterator[Any]:
        """Yield the values of its attributes."""
        yield from self.values.values()


@dataclass(slots=True)
class Call:
    """One call of a script with its evaluated arguments."""

    run: Any
    """The interpreter that follows the script."""
    node: ast.AST
    path: str
    """What is called, dotted: ``torch.optim.AdamW``; for a method its name."""
    receiver: Any
    """What a method is called on; None for a function."""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str | int, ast.expr] = field(default_factory=dict)
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
        """The script and line."""
        return str(self.run.location(self.node))

    def value(self, index: int | None, *names: str, default: Any = None) -> Any:
        """Return an argument by position or by one of its keywords."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[index] if index is not None and index < len(self.args) else default

    def expression(self, index: int | None, *names: str) -> ast.expr | None:
        """Return the expression of an argument."""
        for name in (*names, index):
            if name is not None and name in self.nodes:
                return self.nodes[name]
        return None

    def text(self, node: ast.AST | None) -> str:
        """Return an expression for people, shortened."""
        return short_text(node)

    def setting(self, key: str | int, label: str = "") -> Setting | None:
        """Return an argument's value and where it stands; None if it is unknown.

        Args:
            key: its keyword or position.
            label: the callee's name for people; by default the name of what is called.
        """
        value = self.args[key] if isinstance(key, int) else self.kwargs[key]
        node = self.nodes.get(key)
        named = f"{key}=" if isinstance(key, str) else ""
        shown = short_text(node) if node is not None else repr(value)[:40]
        text = f"{label or self.name}({named}{shown})"
        origin = self.run.origin(node, self.scope) if node is not None else None
        value = plain(value)
        where = self.run.location(node if node is not None else self.node)
        if value is UNKNOWN:
            return None
        if origin is not None:
            return Setting(value=value, origin=f"{origin.origin} ({where}: {text})")
        return Setting(value=value, origin=f"{where}: {text}")


def short_text(node: ast.AST | None) -> str:
    """Return an expression for people, at most 40 characters of it."""
    if node is None:
        return ""
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
    if isinstance(value, External):
        return _word(value)
    if budget[0] < 0 or depth > 6:
        return UNKNOWN
    if isinstance(value, list | tuple | set | frozenset):
        items = [_plain(item, budget, depth + 1) for item in itertools.islice(value, budget[0] + 1)]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), budget[0] + 1)
        found = {str(key): _plain(item, budget, depth + 1) for key, item in pairs}
        return {key: item for key, item in found.items() if item is not UNKNOWN}
    return UNKNOWN


def _word(value: External) -> Any:
    """Return the name of a dtype or of an enum's member; UNKNOWN for other names of libraries."""
    if value.owner == "OptimizerNames":
        return value.name.lower()
    return value.name if value.owner in _NAMESPACES_OF_WORDS else UNKNOWN
