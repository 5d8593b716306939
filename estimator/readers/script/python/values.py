"""Values of a script that is followed without being run: plain Python ones, unknown ones, and those with identity."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...source import Setting

if TYPE_CHECKING:
    from .call import Call


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
