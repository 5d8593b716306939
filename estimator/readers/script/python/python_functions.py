"""Functions of Python and its standard library, as far as a script's settings and choices depend on them."""

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

from .call import Call
from .evaluation import KnownFailureError
from .operators import MAX_LENGTH, as_number, compare, truth
from .python_methods import compile_pattern, match_pattern
from .values import (
    PLAIN,
    UNKNOWN,
    Attribute,
    External,
    Function,
    Instance,
    Method,
    ScriptClass,
    ScriptModule,
    Thing,
    Unknown,
)

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
