"""Calls and attributes of a script, by the kind of value that is called; the base of what follows a script."""

import ast
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ...source.evidence import Setting
from .values import (
    MAX_LENGTH,
    PLAIN,
    UNKNOWN,
    Attribute,
    Call,
    External,
    Function,
    Instance,
    Method,
    Scope,
    ScriptClass,
    ScriptModule,
    Thing,
    Unknown,
    as_number,
    call_method,
    compare,
    compile_pattern,
    is_plain_container,
    match_pattern,
    truth,
)

if TYPE_CHECKING:
    from pathlib import Path

_MAX_PASSES = 3
"""Times that one ``forward`` is followed: what it does is the same in every layer and every step."""


class Library(Protocol):
    """What libraries do, as far as memory depends on it."""

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a library's name, or of a value that nothing is known about."""

    def item(self, run: Any, value: Any, key: Any) -> Any:
        """Return what stands at a key of a library's name: a variable of ``os.environ``."""

    def imported(self, name: str, where: str) -> None:
        """Note the import of a module that is not beside the script."""

    def condition(self, *, decided: bool) -> None:
        """Note that a condition begins, or that it was decided."""

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return what a class of the script makes, if it is a copy of a library's; UNKNOWN for others."""

    def instance_made(self, found: Instance, call: Call) -> None:
        """Note a new object of one of the script's classes."""

    def call(self, call: Call) -> Any:
        """Return the result of a library's function, and note what it does to models, optimizers and settings."""

    def instance_method(self, call: Call) -> Any:
        """Return the result of a method that an object of the script inherits from a library."""

    def before_function(self, function: Function, args: list[Any]) -> Any:
        """Return what ``after_function`` is to compare with: a function of the script's own begins."""

    def after_function(self, function: Function, args: list[Any], before: Any, where: str) -> None:
        """Note a function of the script's own that has ended."""


class KnownFailureError(Exception):
    """The script raises an exception, which it may handle."""


class BudgetSpentError(Exception):
    """The script takes more steps than are followed."""


class Evaluation:
    """Follows calls, and keeps count of the steps.

    Args:
        library: what libraries do.
        max_steps: statements and expressions that are followed.
    """

    def __init__(self, library: Library, *, max_steps: int) -> None:
        self.library = library
        self.steps_left = max_steps
        self.environ: dict[str, Any] = {}
        self.guards: list[tuple[ast.expr, Scope]] = []
        """Conditions in the innermost loop around what is being followed, outermost first."""
        self.loops: tuple[ast.AST, ...] = ()
        """Loops around what is being followed, outermost first."""
        self.without_gradients = False
        """What is being followed keeps no activations (``torch.no_grad``)."""
        self.open_containers: dict[int, Any] = {}
        """Lists and tables of which only some items are known, by identity."""
        self.module = ScriptModule("", None)
        self.statement: ast.AST | None = None
        """The call that is a statement of its own, whose result nothing takes."""
        self.replaced: dict[ast.AST, list[Any]] = {}
        """The values that names had until an expression's value was assigned to them, by the expression."""
        self.yielded: list[Any] | None = None
        """What the function that is being followed has yielded."""
        self.depth = 0
        self._passes: dict[int, int] = {}
        """How often each ``forward`` was followed, by identity of its node."""
        self.argv: list[str] | None = None
        """``sys.argv``; None: unknown."""
        self.executing = 0
        """Files that are being executed, one by another."""
        self.find_file: Callable[[str], Path | None] = lambda _: None
        """Returns a file that the script may read, by the name that it uses."""

    def call_function(self, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a function of the script."""
        raise NotImplementedError

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return a new object of a class of the script."""
        raise NotImplementedError

    def decide(self, test: ast.expr, scope: Scope, *, usual: bool) -> bool:
        """Return whether a condition holds, by a decision where it cannot be known."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a name, an attribute, an item, or several of them."""
        raise NotImplementedError

    def location(self, node: ast.AST) -> str:
        """Return the script and line of a node: ``train.py line 12``."""
        return f"{self.module.name} line {getattr(node, 'lineno', '?')}"

    def origin(self, node: ast.AST, scope: Scope | None) -> Setting | None:
        """Return the option, or its default, whose value an expression is."""
        if scope is None:
            return None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = scope.find(node.value.id)
            value = owner.names[node.value.id] if owner is not None else None
            find = getattr(value, "option", None)
            found = find(node.attr) if find is not None else None
            return found if isinstance(found, Setting) else None
        if isinstance(node, ast.Name):
            owner = scope.find(node.id)
            return owner.origins.get(node.id) if owner is not None else None
        return None

    def because(self) -> str:
        """Return which option led to the branch that is followed: ``, because --use_lora is True``, or nothing."""
        for test, scope in reversed(self.guards):
            for node in ast.walk(test):
                found = self.origin(node, scope)
                if found is not None and isinstance(found.value, bool | int):
                    flag, given, _ = found.origin.partition(" on the command line")
                    option = flag if given else f"the {found.origin.rpartition(': ')[2]}"
                    return f", because {option} is {found.value}"
        return ""

    def step(self) -> None:
        """Count a step.

        Raises:
            BudgetSpentError: there were too many.
        """
        self.steps_left -= 1
        if self.steps_left < 0:
            raise BudgetSpentError

    def evaluate(self, node: ast.expr, scope: Scope) -> Any:
        """Return an expression's value."""
        raise NotImplementedError

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a value."""
        if isinstance(value, External):
            if value.path == "sys" and name == "argv" and self.argv is not None:
                return list(self.argv)
            return self.library.attribute(value, name)
        if not isinstance(value, Thing):
            return Attribute(value, name)
        found = value.attribute(name)
        if isinstance(found, Method) and isinstance(found.function, Function) and found.function.is_property:
            return self.call_function(found.function, list(found.args), {})
        return found

    def iterate(self, value: Any) -> list[Any] | None:
        """Return what iterating over a value yields; None: unknown."""
        if isinstance(value, list | tuple | set | frozenset | str):
            return list(value) if len(value) <= MAX_LENGTH else None
        if isinstance(value, dict):
            return list(value)
        return value.elements() if isinstance(value, Thing) else None

    def call(self, function: Any, call: Call) -> Any:
        """Return the result of calling a value."""
        self.step()
        if isinstance(function, Method):
            call.args = [*function.args, *call.args]
            call.nodes = {
                key + len(function.args) if isinstance(key, int) else key: node for key, node in call.nodes.items()
            }
            call.kwargs = {**function.kwargs, **call.kwargs}
            return self.call(function.function, call)
        if isinstance(function, Function):
            return self.call_function(function, call.args, call.kwargs)
        if isinstance(function, ScriptClass):
            found = self.library.make_instance(function, call)
            return found if found is not UNKNOWN else self.make_instance(function, call)
        if isinstance(function, External):
            call.path, call.receiver = function.path, None
            return self.library.call(call)
        if isinstance(function, Attribute):
            return self._call_method(function, call)
        if isinstance(function, Instance):
            forward = function.kind.find("__call__")
            forward = function.kind.find("forward") if forward is UNKNOWN else forward
            if isinstance(forward, Function):
                self._passes[id(forward.node)] = self._passes.get(id(forward.node), 0) + 1
                if self._passes[id(forward.node)] > _MAX_PASSES:
                    return UNKNOWN
                return self.call_function(forward, [function, *call.args], call.kwargs)
            call.path, call.receiver = "__call__", function
            return self.library.instance_method(call)
        if isinstance(function, Thing):
            return function.called(call)
        return self.library.call(call)

    def _call_method(self, function: Attribute, call: Call) -> Any:
        receiver = function.receiver
        call.receiver, call.path = receiver, function.name
        if isinstance(receiver, Instance):
            return self.library.instance_method(call)
        if isinstance(receiver, Thing):
            return receiver.method(call)
        if isinstance(receiver, PLAIN) or is_plain_container(receiver):
            return call_method(receiver, function.name, call.args, call.kwargs)
        return self.library.call(call)


# Functions of Python and its standard library, as far as a script's settings and choices depend on them.


_MAX_RANGE = 4096


def _convert(kind: type) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        value = call.args[0] if call.args else None
        if not call.args:
            return kind()
        known = truth(value) if kind is bool else None
        if kind is bool:
            return UNKNOWN if known is None else known
        if isinstance(value, str | int | float) and len(str(value)[:500]) < 400:
            try:
                return kind(as_number(value) if kind is int else value)
            except (ValueError, OverflowError):
                return UNKNOWN
        return UNKNOWN

    return convert


def _path_text(call: Call) -> Any:
    parts = [part for part in call.args if isinstance(part, str)]
    return "/".join(parts) if parts and len(parts) == len(call.args) else UNKNOWN


def _length(call: Call) -> Any:
    value = call.value(0)
    if id(value) in call.run.open_containers:
        return UNKNOWN
    items = len(value) if isinstance(value, str | list | tuple | dict | set) else None
    if items is None and isinstance(value, Thing):
        known = value.elements()
        items = len(known) if known is not None else None
    return UNKNOWN if items is None else items


def _range(call: Call) -> Any:
    numbers = [as_number(value) for value in call.args]
    if not all(isinstance(number, int) for number in numbers) or not 1 <= len(numbers) <= 3 or numbers[2:] == [0]:
        return UNKNOWN
    found = range(*numbers)
    return list(found) if found.start + found.stop < 10**9 and len(found) <= _MAX_RANGE else UNKNOWN


def _items(call: Call) -> Any:
    if not call.args:
        return []
    items = call.run.iterate(call.args[0])
    if items is None:
        return call.args[0] if isinstance(call.args[0], Thing) else UNKNOWN
    if id(call.args[0]) in call.run.open_containers:
        call.run.open_containers[id(items)] = items
        return items
    return tuple(items) if call.name == "tuple" else items


def _sorted(call: Call) -> Any:
    items = call.run.iterate(call.value(0))
    if items is None:
        return UNKNOWN
    try:
        return sorted(items) if not call.kwargs else items
    except TypeError:
        return items


def _enumerate(call: Call) -> Any:
    items = call.run.iterate(call.value(0))
    start = call.value(1, "start", default=0)
    if items is None or not isinstance(start, int):
        return UNKNOWN
    return [(at, item) for at, item in enumerate(items, start)]


def _zip(call: Call) -> Any:
    lists = [call.run.iterate(value) for value in call.args]
    return UNKNOWN if any(items is None for items in lists) else list(zip(*lists, strict=False))


def _chain(call: Call) -> Any:
    lists = [call.run.iterate(value) for value in call.args]
    if call.name == "from_iterable":
        lists = [call.run.iterate(value) for value in (lists[0] or [] if lists else [])]
    return UNKNOWN if any(items is None for items in lists) else [item for items in lists for item in items]


def _map(call: Call) -> Any:
    items = call.run.iterate(call.value(1))
    function = call.value(0)
    if items is None or len(items) > MAX_LENGTH:
        return UNKNOWN
    return [call.run.call(function, Call(call.run, call.node, "", None, [item])) for item in items]


def _filter(call: Call) -> Any:
    items = call.run.iterate(call.value(1))
    function = call.value(0)
    if items is None:
        return UNKNOWN
    kept = []
    for item in items:
        value = item if function is None else call.run.call(function, Call(call.run, call.node, "", None, [item]))
        known = truth(value)
        if known is None:
            known = call.run.decide(call.node, call.scope, usual=True)
        if known:
            kept.append(item)
    return kept


def _any_or_all(call: Call) -> Any:
    items = call.run.iterate(call.value(0))
    wanted = call.name == "any"
    known = [truth(item) for item in items] if items is not None else [None]
    if wanted in known:
        return wanted
    return UNKNOWN if None in known else not wanted


def _extreme(call: Call) -> Any:
    items = call.run.iterate(call.args[0]) if len(call.args) == 1 else call.args
    numbers = [as_number(item) for item in items or []]
    if not numbers or not all(isinstance(number, int | float) for number in numbers) or call.kwargs:
        return UNKNOWN
    return max(numbers) if call.name == "max" else min(numbers)


def _sum(call: Call) -> Any:
    items = call.run.iterate(call.value(0))
    if items is None or not all(isinstance(item, int | float) for item in items):
        return UNKNOWN
    return sum(items)


def _number(function: Callable[[Any], Any]) -> Callable[[Call], Any]:
    def apply(call: Call) -> Any:
        value = as_number(call.value(0))
        known = isinstance(value, int | float) and abs(value) < 1e30
        return function(value) if known and len(call.args) == 1 else UNKNOWN

    return apply


def _getattr(call: Call) -> Any:
    value, name = call.value(0), call.value(1)
    if not isinstance(name, str):
        return UNKNOWN
    found = call.run.attribute(value, name)
    if isinstance(value, Instance) and value.is_namespace and name not in value.values and len(call.args) > 2:
        return call.args[2]
    if (found is UNKNOWN or isinstance(found, Attribute)) and len(call.args) > 2 and not isinstance(value, Unknown):
        return found if isinstance(found, Attribute) and isinstance(value, Thing) else call.args[2]
    return found


def _setattr(call: Call) -> Any:
    owner, name = call.value(0), call.value(1)
    if isinstance(owner, Thing) and isinstance(name, str):
        owner.set_attribute(name, call.value(2), call)
    return None


def _hasattr(call: Call) -> Any:
    owner, name = call.value(0), call.value(1)
    if isinstance(owner, Instance) and isinstance(name, str):
        if owner.is_namespace:
            return name in owner.values
        return name in owner.values or owner.kind.find(name) is not UNKNOWN or UNKNOWN
    if isinstance(owner, External) and owner.path.startswith("torch."):
        return True  # scripts look for what old versions lack
    has = getattr(owner, "has", None)
    return has(name) if has is not None and isinstance(name, str) else UNKNOWN


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "dict": dict,
    **dict.fromkeys(("list", "set"), list),
    "tuple": tuple,
}


_NO_PLAIN_VALUES = (External, Function, Method, ScriptClass, ScriptModule, Instance)


def _isinstance(call: Call) -> Any:
    value, kinds = call.value(0), call.value(1)
    kinds = kinds if isinstance(kinds, list | tuple) else [kinds]
    answers: list[bool | None] = []
    for kind in kinds:
        of_kind = getattr(value, "is_instance", None)
        if isinstance(kind, External) and kind.path in _TYPES and isinstance(value, (*PLAIN, list, tuple, dict)):
            answers.append(isinstance(value, _TYPES[kind.path]))
        elif isinstance(kind, External) and kind.path in _TYPES and isinstance(value, _NO_PLAIN_VALUES):
            answers.append(False)
        elif isinstance(kind, ScriptClass) and isinstance(value, Instance):
            answers.append(value.kind is kind or kind in value.kind.bases)
        else:
            answers.append(of_kind(kind) if of_kind is not None else None)
    return True if True in answers else UNKNOWN if None in answers else False


def _dict(call: Call) -> Any:
    found: dict[Any, Any] = {}
    first = call.value(0)
    if isinstance(first, dict):
        found.update(first)
    elif isinstance(first, list) or (isinstance(first, Thing) and call.run.iterate(first) is not None):
        pairs = call.run.iterate(first)
        found.update(pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str))
    elif first is not None:
        return UNKNOWN
    found.update(call.kwargs)
    return UNKNOWN if call.unknown_table is not None else found


def _environ(call: Call) -> Any:
    name = call.value(0, "key")
    return call.run.environ.get(name, call.value(1, "default")) if isinstance(name, str) else UNKNOWN


def _partial(call: Call) -> Any:
    return Method(call.args[0], tuple(call.args[1:]), call.kwargs) if call.args else UNKNOWN


def _literal(call: Call) -> Any:
    text = call.value(0)
    try:
        return ast.literal_eval(text) if isinstance(text, str) and len(text) < 10_000 else UNKNOWN
    except (ValueError, SyntaxError):
        raise KnownFailureError from None
    except (RecursionError, MemoryError):
        return UNKNOWN


def _next(call: Call) -> Any:
    items = call.run.iterate(call.value(0))
    return items[0] if items else call.value(1, default=UNKNOWN)


def _identity(call: Call) -> Any:
    value = call.value(0)
    return getattr(value, "identity", id(value)) if isinstance(value, Thing) else UNKNOWN


def _callable(call: Call) -> Any:
    return isinstance(call.value(0), Function | Method | ScriptClass) or UNKNOWN


BUILTINS: Mapping[str, Callable[[Call], Any]] = {
    "int": _convert(int),
    "float": _convert(float),
    "str": _convert(str),
    "bool": _convert(bool),
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "iter", "reversed"), _items),
    "len": _length,
    "range": _range,
    "sorted": _sorted,
    "enumerate": _enumerate,
    "zip": _zip,
    "map": _map,
    "filter": _filter,
    "any": _any_or_all,
    "all": _any_or_all,
    "min": _extreme,
    "max": _extreme,
    "sum": _sum,
    "abs": _number(abs),
    "round": _number(round),
    "getattr": _getattr,
    "setattr": _setattr,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    "dict": _dict,
    "next": _next,
    "id": _identity,
    "callable": _callable,
}
"""Builtin functions by name."""
STANDARD_LIBRARY: Mapping[str, Callable[[Call], Any]] = {
    "os.environ.get": _environ,
    "os.getenv": _environ,
    "os.path.join": _path_text,
    "pathlib.Path": _path_text,
    "Path": _path_text,
    "os.path.expanduser": _path_text,
    "os.path.abspath": _path_text,
    "str": _convert(str),
    **dict.fromkeys(("re.match", "re.search", "re.fullmatch"), match_pattern),
    "re.compile": compile_pattern,
    "functools.partial": _partial,
    "partial": _partial,
    "ast.literal_eval": _literal,
    "math.ceil": _number(math.ceil),
    "math.floor": _number(math.floor),
    "collections.OrderedDict": _dict,
    **dict.fromkeys(("itertools.chain", "itertools.chain.from_iterable", "chain"), _chain),
    "operator.eq": lambda call: compare(ast.Eq, *call.args[:2]),
}
"""Functions of the standard library by their dotted names."""
