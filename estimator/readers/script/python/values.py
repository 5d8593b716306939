"""Values of a script that is followed without being run: plain Python ones, unknown ones, and those with identity."""

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...source.evidence import Setting, parse_digits


class Unknown:
    """A value that only the running script could know."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()
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

    __slots__ = ("elsewhere", "names", "origins", "outer", "places")

    def __init__(self, outer: "Scope | None" = None) -> None:
        self.names: dict[str, Any] = {}
        self.outer = outer
        self.origins: dict[str, Setting] = {}
        """The settings behind names that hold an option's value."""
        self.places: dict[str, str] = {}
        """Where names of a module got their values: script and line."""
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
    tree: ast.Module | None = None
    """Its source; None: it is not followed yet."""

    def attribute(self, name: str) -> Any:
        """Return a name of the module."""
        return self.scope.names.get(name, UNKNOWN)

    def public_names(self) -> list[tuple[str, Any]]:
        """Return what ``from module import *`` imports."""
        listed = self.scope.names.get("__all__")
        names = self.scope.names.items()
        return [
            (key, value)
            for key, value in names
            if (key in listed if isinstance(listed, list | tuple) else not key.startswith("_"))
        ]

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
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
    given: tuple[Any, ...] = ()
    """Arguments that a decorator passes before those of a call (``find_executable_batch_size``)."""


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
            call.path, call.receiver, call.kind = f"{path}.{call.path}", None, self
            return call.run.library.call(call)
        return UNKNOWN

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Assign a member."""
        self.members[name] = value


class Instance(Thing):
    """An object of one of the script's classes."""

    def __init__(self, kind: ScriptClass) -> None:
        self.kind = kind
        self.values: dict[str, Any] = {}
        self.inherited: frozenset[str] = frozenset()
        """Methods that are taken for those of its base in a library, whatever the class makes of them."""

    @property
    def is_namespace(self) -> bool:
        """True for an object of no class of the script's, which has the attributes that it was given and no others."""
        return self.kind.node is None

    def attribute(self, name: str) -> Any:
        """Return an attribute, a bound method of the class, or what its base in a library makes of the name."""
        if name in self.values:
            return self.values[name]
        found = self.kind.find(name)
        if name in self.inherited:
            return Attribute(self, name)
        if isinstance(found, Function) and not found.is_static:
            return Method(found, (self.kind if found.is_class_method else self,))
        if found is UNKNOWN and name in ("module", "_orig_mod"):  # DDP and torch.compile keep a model there
            return self
        return found if found is not UNKNOWN else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: "Call") -> None:
        """Assign an attribute."""
        self.values[name] = value
        if isinstance(value, Thing):
            value.bound(name)

    def item(self, key: Any) -> Any:
        """Return an attribute by a key, as configuration objects give it."""
        return self.values.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: "Call") -> None:
        """Assign an attribute by a key."""
        if isinstance(key, str):
            self.values[key] = value

    def parts(self) -> Iterator[Any]:
        """Yield the values of its attributes."""
        yield from self.values.values()


@dataclass(eq=False, slots=True)
class Super(Thing):
    """``super()``: an object or a class, as the bases of one of the script's classes see it."""

    owner: ScriptClass
    receiver: Any

    def attribute(self, name: str) -> Any:
        """Return what a base makes of a name: a bound method, a member, or a library's method."""
        receiver = self.receiver
        for base in self.owner.bases:
            found = base.find(name) if isinstance(base, ScriptClass) else UNKNOWN
            if isinstance(found, Function) and not found.is_static:
                is_class = found.is_class_method and isinstance(receiver, Instance)
                return Method(found, (receiver.kind if is_class else receiver,))
            if found is not UNKNOWN:
                return found
        return Attribute(receiver, name)


# Values of a script as settings have them, and expressions as people read them.


_MAX_ITEMS = 10_000
"""Items of a list, with those of the lists in it, that are looked at."""
_NAMESPACES_OF_WORDS = (
    *("torch", "jnp", "IntervalStrategy", "SaveStrategy", "TaskType", "ShardingStrategy", "BackwardPrefetch"),
    "DDPCommunicationHookType",
)


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


# One call of a script with its evaluated arguments: what libraries' functions are given.


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
    kind: ScriptClass | None = None
    """The class of the script on which a method is called that it inherits from a library."""
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
        because = self.run.because()
        if origin is not None:
            return Setting(value=value, origin=f"{origin.origin} ({where}: {text}{because})")
        return Setting(value=value, origin=f"{where}: {text}{because}")


# Operators on values of a script: arithmetic on numbers and texts, comparisons, truth; unknown stays unknown.


MAX_LENGTH = 100_000
"""Items of a list and characters of a text that are kept; longer ones are unknown."""
_MAX_NUMBER = 10**40
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_CONTAINERS = (list, tuple, set, frozenset, dict)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None: unknown."""
    if isinstance(value, Unknown):
        return None
    if isinstance(value, (*PLAIN, *_CONTAINERS)):
        return bool(value)
    if isinstance(value, External | Attribute):
        return None
    if isinstance(value, Thing):
        items = value.elements()
        return None if items is None and value.truth_is_length else (items is None or bool(items))
    return True


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Return the result of an arithmetic operator."""
    if isinstance(left, str) != isinstance(right, str) and kind in (ast.Mult, ast.FloorDiv, ast.Sub, ast.Div):
        left, right = as_number(left), as_number(right)
    apply = _ARITHMETIC.get(kind)
    if apply is None or not _is_safe(kind, left, right):
        return UNKNOWN
    try:
        return _bounded(apply(left, right))
    except (TypeError, ValueError, ArithmeticError, KeyError):
        return UNKNOWN


def compare(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Return the result of a comparison; UNKNOWN where a part of it is."""
    if kind in (ast.Is, ast.IsNot):
        same = _is_same(left, right)
        return same if same is UNKNOWN or kind is ast.Is else not same
    apply = _COMPARISONS.get(kind)
    if apply is None or not _is_known(left) or not _is_known(right):
        return _compare_unknown(kind, left, right)
    if type(left) is not type(right) and isinstance(left, str | int) and isinstance(right, str | int):
        left, right = as_number(left), as_number(right)
    try:
        return bool(apply(left, right))
    except (TypeError, ValueError, RecursionError):
        return UNKNOWN


def as_number(value: Any) -> Any:
    """Return a number for a text of digits, as options are texts on the command line."""
    known = parse_digits(value) if isinstance(value, str) else None
    return value if known is None else known


def _compare_unknown(kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Compare where a part is unknown: an item may still be found in a list that has it."""
    has = getattr(right, "has", None) if kind in (ast.In, ast.NotIn) and isinstance(right, Thing) else None
    if has is not None:
        found = has(left)
        return found is (kind is ast.In) if isinstance(found, bool) else UNKNOWN
    if kind in (ast.In, ast.NotIn) and isinstance(left, PLAIN) and isinstance(right, list | tuple | set | frozenset):
        if any(isinstance(item, PLAIN) and item == left for item in right):
            return kind is ast.In
        return UNKNOWN
    if kind in (ast.Eq, ast.NotEq) and isinstance(left, External) and isinstance(right, External):
        return (left.path == right.path) is (kind is ast.Eq)
    if kind in (ast.Eq, ast.NotEq) and isinstance(left, Thing) and isinstance(right, Thing):
        return (left is right) is (kind is ast.Eq)
    return UNKNOWN


def _is_same(left: Any, right: Any) -> Any:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if isinstance(left, PLAIN) and isinstance(right, PLAIN):
        return type(left) is type(right) and left == right
    if isinstance(left, External) and isinstance(right, External):
        return left.path == right.path
    if isinstance(left, Attribute | External) or isinstance(right, Attribute | External):
        return UNKNOWN
    return left is right


def _is_known(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (*PLAIN, Function, Method)):
        return True
    if isinstance(value, dict):
        return depth < 4 and all(_is_known(key, depth + 1) for key in value)
    return isinstance(value, _CONTAINERS) and depth < 4 and all(_is_known(item, depth + 1) for item in value)


def _is_safe(kind: type[ast.operator], left: Any, right: Any) -> bool:
    """Return False for what could take long or much memory, and for values that have no arithmetic here."""
    number = int | float
    if isinstance(left, number) and isinstance(right, number):
        if kind is ast.Pow:
            return abs(right) < 128 and abs(left) < 10**6
        return abs(left) < _MAX_NUMBER and abs(right) < _MAX_NUMBER
    sizes = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple | set | dict)]
    if kind is ast.Mult and len(sizes) == 1:
        times = right if isinstance(right, int) else left
        return isinstance(times, int) and sizes[0] * max(times, 0) <= MAX_LENGTH
    if kind is ast.Mod and isinstance(left, str | bytes):
        return False  # a width in a format could be any number
    return kind in (ast.Add, ast.BitOr, ast.BitAnd, ast.Sub) and len(sizes) == 2 and sum(sizes) <= MAX_LENGTH


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return UNKNOWN
    return value


# Methods of texts, lists and tables, and regular expressions, as far as they can be applied without risk.


_TEXT_METHODS = {
    *("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "replace", "title"),
    *("removeprefix", "removesuffix", "partition", "rpartition", "count", "find", "isdigit", "casefold", "isalpha"),
    *("splitlines", "rfind", "index", "capitalize"),
}


_FIELD_WITH_MORE = re.compile(r"\{[^}]*[.\[:!{]")
"""A replacement field with a width, a conversion or an attribute, which could be anything."""


_FILLING = {"append", "extend", "add", "insert", "update", "setdefault", "appendleft"}
"""Methods that put something into a container."""
_GROUP_REPEATED = re.compile(r"\([^()]*[*+{|][^()]*\)[*+{]|\)\)+[*+{]|[*+}][*+{]")
"""A repeated group with choices or repeats in it, whose matching could take forever."""


def is_plain_container(value: Any) -> bool:
    """Return True for a list, tuple, set or table."""
    return isinstance(value, list | tuple | set | frozenset | dict)


def call_method(value: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a method of a text, list or table; lists and tables change in place."""
    try:
        if isinstance(value, str):
            return _text_method(value, name, args, kwargs)
        if isinstance(value, dict):
            return _table_method(value, name, args, kwargs)
        if isinstance(value, list):
            return _list_method(value, name, args)
        if isinstance(value, set | frozenset | tuple):
            return _other_method(value, name, args)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, MemoryError):
        pass
    return UNKNOWN


def _text_method(value: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "join" and args:
        if isinstance(args[0], list | tuple) and all(isinstance(item, str) for item in args[0]):
            return value.join(args[0]) if sum(map(len, args[0])) < MAX_LENGTH else UNKNOWN
        return UNKNOWN
    if name == "format":
        given = (*args, *kwargs.values())
        known = all(isinstance(item, str | int) for item in given) and not _FIELD_WITH_MORE.search(value)
        if not known or sum(len(str(item)) for item in given) * value.count("{") > MAX_LENGTH:
            return UNKNOWN
        return value.format(*args, **kwargs)
    if name not in _TEXT_METHODS or not all(_is_text_argument(item) for item in (*args, *kwargs.values())):
        return UNKNOWN
    if name == "replace" and len(value) * len(args[1] or " ") > MAX_LENGTH:
        return UNKNOWN
    args = [tuple(item) if isinstance(item, list) else item for item in args]
    result = getattr(value, name)(*args, **kwargs)
    return list(result) if isinstance(result, tuple) else result


def _is_text_argument(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, PLAIN)


def _table_method(value: dict[Any, Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name in ("get", "pop", "setdefault") and args:
        key = args[0]
        if not isinstance(key, PLAIN):
            return UNKNOWN
        default = args[1] if len(args) > 1 else None
        if name == "setdefault":
            return value.setdefault(key, default)
        return value.get(key, default) if name == "get" else value.pop(key, default)
    if name == "update":
        if args and isinstance(args[0], dict):
            value.update(args[0])
        value.update(kwargs)
        return None
    if name == "copy":
        return dict(value)
    views = {"keys": list(value), "values": list(value.values()), "items": [tuple(pair) for pair in value.items()]}
    return views.get(name, UNKNOWN)


def _list_method(value: list[Any], name: str, args: list[Any]) -> Any:
    if len(value) > MAX_LENGTH:
        return UNKNOWN
    if name == "append" or (name == "add" and not _holds(value, args[0])):
        value.append(args[0])
        return None
    if name == "extend":
        more = args[0]
        value.extend(more if isinstance(more, list | tuple) else [UNKNOWN])
        return None
    if name == "insert":
        value.insert(args[0] if isinstance(args[0], int) else 0, args[1])
        return None
    if name == "remove":
        value[:] = [item for item in value if not (type(item) is type(args[0]) and item == args[0])]
        return None
    if name == "pop":
        return value.pop(*[item for item in args if isinstance(item, int)])
    if name == "copy":
        return list(value)
    return _other_method(value, name, args)


def _holds(items: list[Any], wanted: Any) -> bool:
    return any(item is wanted or (isinstance(item, PLAIN) and item == wanted) for item in items)


def _other_method(value: Any, name: str, args: list[Any]) -> Any:
    if name == "add" and isinstance(value, set) and isinstance(args[0], PLAIN):
        value.add(args[0])
        return None
    if name in ("index", "count") and isinstance(args[0], PLAIN) and truth(args[0]) is not None:
        return getattr(value, name)(args[0])
    if name in ("union", "update") and isinstance(args[0], list | tuple | set):
        return [*value, *args[0]]
    return UNKNOWN


def match_pattern(call: Call) -> Any:
    """Return the match of a regular expression in a short text; patterns that could take long are not tried."""
    pattern, text = call.value(0), call.value(1)
    if not isinstance(pattern, str) or not isinstance(text, str) or len(text) > 200 or len(pattern) > 500:
        return UNKNOWN
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if _GROUP_REPEATED.search(pattern) or repeats > 4:
        return UNKNOWN
    call.run.steps_left -= 10
    try:
        found = getattr(re, call.name)(pattern, text)
    except (re.error, RecursionError, OverflowError):
        return UNKNOWN
    return None if found is None else _Match(found)


class _Match(Thing):
    """A match of a regular expression."""

    def __init__(self, found: re.Match[str]) -> None:
        self._found = found

    def attribute(self, name: str) -> Any:
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        if call.name == "group":
            return self.item(call.value(0, default=0))
        return list(self._found.groups()) if call.name == "groups" else UNKNOWN

    def item(self, key: Any) -> Any:
        try:
            return self._found[key]
        except (IndexError, TypeError):
            return UNKNOWN


class _Pattern(Thing):
    """A compiled regular expression."""

    def __init__(self, text: str) -> None:
        self._text = text

    def attribute(self, name: str) -> Any:
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        call.args = [self._text, *call.args]
        return match_pattern(call) if call.name in ("match", "search", "fullmatch") else UNKNOWN


def compile_pattern(call: Call) -> Any:
    """Return a compiled regular expression."""
    pattern = call.value(0)
    return _Pattern(pattern) if isinstance(pattern, str) and len(call.args) == 1 else UNKNOWN


def set_item(owner: Any, key: Any, value: Any) -> None:
    """Assign an item of a list or table, if it can be."""
    if isinstance(owner, dict):
        if isinstance(key, str | int | float | bool):
            owner[key] = value
    elif isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        owner[key] = value


def forget_lengths(run: Any, body: list[ast.stmt], scope: Scope) -> None:
    """Forget how many items containers have that a loop's body fills, and what it counts up.

    Args:
        run: the interpreter.
        body: the loop's statements.
        scope: in which they were followed.
    """
    nodes = list(_statements(body))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    own = {target.id for target in targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id not in own:
                _forget_count(node.target.id, run, scope)
            _open(node.target, own, run, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    _open(target.value, own, run, scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
            _open(node.func.value, own, run, scope)


def scope_value(node: ast.expr, scope: Scope) -> Any:
    """Return what a name or an attribute of a name refers to; UNKNOWN for other expressions."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return found.names[node.id] if found is not None else UNKNOWN
    if isinstance(node, ast.Attribute):
        owner = scope_value(node.value, scope)
        return owner.values.get(node.attr, UNKNOWN) if isinstance(owner, Instance) else UNKNOWN
    return UNKNOWN


def _open(node: ast.expr, own: set[str], run: Any, scope: Scope) -> None:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name) and node.id in own:
        return
    value = scope_value(node, scope)
    if isinstance(value, list | dict | set):
        run.open_containers[id(value)] = value


def _forget_count(name: str, run: Any, scope: Scope) -> None:
    found = scope.find(name)
    if found is not None and isinstance(found.names[name], PLAIN) and type(found.names[name]) in (int, float):
        found.assign(name, UNKNOWN)


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of statements, without those of functions and classes defined in them."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            left += ast.iter_child_nodes(node)


# Conditions of a script that cannot be decided, and the answers that one reading of it takes for granted.


_QUIET_CALLS = {
    *("print", "log", "info", "debug", "warning", "warn", "error", "write", "set_description", "set_postfix"),
    *("save_pretrained", "save_model", "save_state", "push_to_hub", "save", "makedirs", "mkdir", "barrier"),
    *("wait_for_everyone", "set_seed", "manual_seed", "seed", "update", "flush", "close", "append", "sleep"),
    *("init_trackers", "end_training", "finish", "item", "format", "join", "time", "set_verbosity", "login"),
    *("set_verbosity_info", "enable_default_handler", "enable_explicit_format", "log_metrics", "save_metrics"),
    *("evaluate", "add_scalar", "zero_grad", "clip_grad_norm_", "set_epoch", "isfile", "isdir", "exists", "exp"),
    *("len", "float", "int", "str", "max", "min", "dump", "dumps"),
}
"""Functions whose calls change nothing that memory depends on."""
_MATTERS = re.compile(
    r"(?i)lora|peft|freez|quant|from_(pretrained|config)|requires_grad|optim|dtype|bfloat16|float16|half|checkpointing"
    r"|batch|length|seq_len|block_size|loader|ema|teacher|student|trainer|model|config|args|device|fsdp|ddp|deepspeed"
)
"""Names in branches that may decide about memory."""


_SAVES = re.compile(
    r"(?i)get_peft_model|LoraConfig|prepare_model_for_\w+bit\w*|BitsAndBytesConfig|load_in_[48]bit|quantization_config"
    r"|add_adapter|gradient_checkpointing_enable"
)
"""Calls and arguments that lower the memory by much: without a known answer, the job is taken to do without."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A condition that only the running script can decide."""

    key: str
    """Its text, without ``not``: the same text means the same condition."""
    where: str
    """Script and line, for people."""
    text: str
    answer: bool
    """The answer that was taken for granted."""
    matters: int
    """0: nothing that memory depends on; 1: it names models, optimizers, settings; 2: it lowers the memory by much."""


@dataclass(slots=True)
class Decisions:
    """The answers of one reading."""

    given: dict[str, bool] = field(default_factory=dict)
    asked: dict[str, Undecided] = field(default_factory=dict)
    texts: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    """Key and text of each condition by the identity of its node, and how it matters; the readings share it."""
    passed: set[str] = field(default_factory=set)
    """Places at which errors are taken not to be raised: the script would not train; the readings share them."""

    def decide(self, test: ast.expr, where: str, *, usual: bool, branches: list[ast.stmt] | None = None) -> bool:
        """Return the answer for a condition that cannot be decided.

        Args:
            test: the condition.
            where: script and line.
            usual: the answer if none is given.
            branches: the statements that it decides about; None: it decides about an expression.
        """
        inverted = False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, inverted = test.operand, not inverted
        if id(test) not in self.texts:
            text = short_text(test)
            key = text if len(text) < 40 else f"{text}{hash(ast.dump(test))}"
            self.texts[id(test)] = key, f"{text} holds", 1 if branches is None else _matters(branches)
        key, text, matters = self.texts[id(test)]
        return self._answer(key, where, text, usual=usual is not inverted, matters=matters) is not inverted

    def fails(self, handler: ast.ExceptHandler, where: str) -> bool:
        """Return whether a ``try`` ends in one of its handlers."""
        text = f"{short_text(handler.type) or 'an exception'} is raised"
        return self._answer(f"{where} except", where, text, usual=False, matters=_matters(handler.body))

    def _answer(self, key: str, where: str, text: str, *, usual: bool, matters: int) -> bool:
        before = self.asked.get(key)
        answer = before.answer if before is not None else self.given.get(key, usual)
        if (before is None and len(self.asked) < 200) or (before is not None and matters > before.matters):
            self.asked[key] = Undecided(key, where, text, answer, matters)
        return answer


def _matters(body: list[ast.stmt]) -> int:
    """Return how statements matter to memory, as ``Undecided.matters``."""
    return 2 if saves(body) else int(any(_MATTERS.search(word) for word in _words(body)))


def saves(body: list[ast.stmt]) -> bool:
    """Return True if statements attach adapters, quantize or checkpoint."""
    return any(_SAVES.fullmatch(word) for word in _words(body))


def _words(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names in statements."""
    for statement in body:
        for node in ast.walk(statement):
            word = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
            if isinstance(word, str):
                yield word


def is_quiet(body: list[ast.stmt]) -> bool:
    """Return True if nothing that memory depends on can follow from statements: they print, log and save."""
    return all(map(_is_quiet_statement, body))


def ends(body: list[ast.stmt]) -> bool:
    """Return True if statements end what they stand in: they raise, return or exit."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        function = last.value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in ("exit", "_exit", "quit")
    return isinstance(last, ast.Raise | ast.Return | ast.Continue | ast.Break)


def raises(body: list[ast.stmt]) -> bool:
    """Return True if statements end the script."""
    return ends(body) and not isinstance(body[-1], ast.Return | ast.Continue | ast.Break)


def has_succeeded(body: list[ast.stmt], scope: Scope) -> bool:
    """Return True if a body that was followed is one assignment, whose value is known."""
    (first, *more) = body
    if more or not isinstance(first, ast.Assign) or not isinstance(first.targets[0], ast.Name):
        return False
    found = scope.find(first.targets[0].id)
    return found is not None and isinstance(found.names[first.targets[0].id], PLAIN)


def _is_quiet_statement(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass | ast.Raise | ast.Import | ast.Assert):
        return True
    if isinstance(statement, ast.Expr):
        return all(_is_quiet_call(node) for node in ast.walk(statement) if isinstance(node, ast.Call))
    if isinstance(statement, ast.If):
        return is_quiet(statement.body) and is_quiet(statement.orelse)
    return False


def _is_quiet_call(node: ast.Call) -> bool:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _QUIET_CALLS or name.endswith("_print") or name.startswith(("print_", "log_"))


def is_interruption(handler: ast.ExceptHandler) -> bool:
    """Return True for a handler of what no plain run meets."""
    return handler.type is not None and any(
        word in ast.unparse(handler.type) for word in ("KeyboardInterrupt", "SystemExit", "OutOfMemory", "Stop")
    )


def is_periodic(test: ast.expr) -> bool:
    """Return True for a condition that holds every few rounds of a loop: ``step % 4 == 0``."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test))
