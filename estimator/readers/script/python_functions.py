"""Python's own functions and methods, as far as a script's settings and choices depend on them."""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from .models import Model
from .operators import as_number, truth
from .options import Parsed
from .values import UNKNOWN, Attribute, Call, Name, Thing, short_text


def _convert(kind: type) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        value = call.args[0] if call.args else kind()
        if kind is bool:
            known = truth(value)
            return UNKNOWN if known is None else known
        try:
            return kind(as_number(value) if kind is int else value) if isinstance(value, str | int | float) else UNKNOWN
        except (ValueError, OverflowError):
            return UNKNOWN

    return convert


def _items(call: Call) -> Any:
    value = call.value(0, default=[])
    items = call.run.iterate(value)
    if items is None:
        return value if isinstance(value, Thing) else UNKNOWN
    return tuple(items) if call.name == "tuple" else items


def _length(call: Call) -> Any:
    value = call.value(0)
    known = isinstance(value, str | list | tuple | dict) and not any(each is UNKNOWN for each in value)
    return len(value) if known else UNKNOWN


def _getattr(call: Call) -> Any:
    name = call.value(1)
    found = call.run.attribute(call.value(0), name) if isinstance(name, str) else UNKNOWN
    return UNKNOWN if isinstance(found, Attribute) else found


def _setattr(call: Call) -> Any:
    """Follow ``setattr(args, "max_length", 512)``; what gets a name that is not known is not read."""
    owner, name = call.value(0), call.value(1)
    if not isinstance(owner, Thing) or not isinstance(name, str) or len(call.args) != 3:
        return call.doubt(f"{short_text(call.node)} is not read.")
    value, shown = call.args[2], call.nodes.get(2)
    assigned = Call(call.run, call.node, name, owner, [value], nodes={0: shown} if shown is not None else {})
    owner.set_attribute(name, value, assigned)
    return None


def _extreme(call: Call) -> Any:
    """Follow ``min`` and ``max`` of numbers; the most that a tokenizer takes is a bound that a length stays below."""
    known = [as_number(value) for value in call.args if isinstance(as_number(value), int | float)]
    open_nodes = [call.nodes.get(at) for at, value in enumerate(call.args) if as_number(value) not in known]
    is_bound = call.name == "min" and all(short_text(node).endswith("model_max_length") for node in open_nodes)
    if not known or call.kwargs or len(call.args) < 2 or (open_nodes and not is_bound):
        return UNKNOWN
    return min(known) if call.name == "min" else max(known)


def _is_instance(call: Call) -> Any:
    """Follow ``isinstance(model, PeftModel)``."""
    model, kind = call.value(0), call.value(1)
    is_known = isinstance(model, Model) and isinstance(kind, Name) and kind.name == "PeftModel"
    return model.has_adapters if is_known else UNKNOWN


def _dict_of(call: Call) -> Any:
    first = call.value(0, default={})
    table = first.as_table() if isinstance(first, Parsed) else first
    return {**table, **call.kwargs} if isinstance(table, dict) and call.unknown_table is None else UNKNOWN


def _environ(call: Call) -> Any:
    name = call.value(0, "key")
    return call.run.environ.get(name, call.value(1, "default")) if isinstance(name, str) else UNKNOWN


def _path(call: Call) -> Any:
    return str(PurePath(*call.args)) if call.args and all(isinstance(part, str) for part in call.args) else UNKNOWN


_LOADERS = ("yaml.safe_load", "yaml.load", "json.load", "json.loads", "OmegaConf.load")
_PATHS = ("pathlib.Path", "Path", *(f"os.path.{name}" for name in ("join", "expanduser", "abspath", "realpath")))
BUILTINS: Mapping[str, Callable[[Call], Any]] = {
    **{kind.__name__: _convert(kind) for kind in (int, float, str, bool)},
    **dict.fromkeys(("list", "tuple", "set", "iter", "sorted"), _items),
    "filter": lambda call: call.value(1, default=UNKNOWN),
    "OmegaConf.to_container": lambda call: call.value(0, default=UNKNOWN),
    **dict.fromkeys(("dict", "SimpleNamespace", "types.SimpleNamespace", "OmegaConf.create"), _dict_of),
    **dict.fromkeys(("vars", "asdict", "dataclasses.asdict"), lambda call: call.value(0, default=UNKNOWN)),
    "getattr": _getattr,
    "setattr": _setattr,
    "len": _length,
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("range", "functools.partial", "partial", "hasattr", "super"), lambda _: UNKNOWN),
    "isinstance": _is_instance,
    "open": lambda call: call.value(0, "file", default=UNKNOWN),  # stands for the file that the next read
    **dict.fromkeys(_LOADERS, lambda call: call.run.read_table(call.value(0))),
    **dict.fromkeys(("os.environ.get", "os.getenv"), _environ),
    **dict.fromkeys(_PATHS, _path),
}
"""Functions of Python and its standard library by their dotted names."""
