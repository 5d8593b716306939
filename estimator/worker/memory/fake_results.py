"""Results of operations on fake tensors, made again from the shapes of their first results.

``FakeTensorMode`` has such a cache of its own, but looking up an operation in it takes longer than all else that a
trace does. This one knows plain strided CPU tensors only, and these kinds of operations: those whose results have
storages of their own, views, and those that return nothing or what they write into. All others go to the mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from ..replaced import replaced

MAX_ENTRIES = 50_000
_VALUES = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_CPU, _STRIDED = torch.device("cpu"), torch.strided
_TAGS = torch.Tag
_UNSURE_TAGS = {_TAGS.data_dependent_output, _TAGS.dynamic_output_shape, _TAGS.inplace_view}
_FRESH, _VIEW, _WRITTEN, _UNTOUCHED, _SILENT, _OF_STORAGE, _UNKNOWN = range(7)
_ENTRIES: dict[tuple[Any, ...], Any] = {}
"""Shape, stride, dtype and offset of each result, by operation and arguments; None: not kept."""


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on fake tensors, whose mode is active, below a dispatch mode."""
    kind = _kind(func)
    if kind == _UNKNOWN or (kind == _VIEW and torch.is_inference_mode_enabled()):  # whose views follow their sources
        return func(*args, **kwargs)
    if kind == _UNTOUCHED:
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    if kind == _SILENT:
        return None
    if kind == _OF_STORAGE and (mode := _mode_of(args)) is not None:  # the mode's own cache would hold the storage
        with replaced((mode, "cache_enabled", False)):
            return func(*args, **kwargs)
    parts: list[Any] = [func, torch.get_default_dtype()]
    ignores_values = kind == _FRESH and any(map(_hides_values, args))
    named = [each for name in sorted(kwargs) for each in (name, kwargs[name])]
    if not (_describe(args, parts, kind == _VIEW, ignores_values) and _describe(named, parts, False)):
        return func(*args, **kwargs)
    key = tuple(parts)
    entry = _ENTRIES.get(key)
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if mode is None:  # the arguments are fake, and what else runs is not
        mode = _mode_of(args) or _mode_of(kwargs.values())
    if entry is None and mode is not None and func._schema.name.startswith("aten::_foreach_"):
        with in_kernel_invocation_manager(mode):  # torch's meta kernel knows the shapes, without many operations
            made = func(*args, **kwargs)
        entry = type(made), _layouts(made)
        _keep(key, entry)
    if entry is None:
        result = func(*args, **kwargs)
        if key not in _ENTRIES:
            _keep(key, _entry(kind, args, result))
        return result
    if kind == _WRITTEN:
        return args[0]
    storage = args[0].untyped_storage() if kind == _VIEW else None
    many, described = entry
    made = [None if each is None else _make(mode, each, storage) for each in described]
    return many(made) if many else made[0]


_SELF = object()


def _keep(key: tuple[Any, ...], entry: Any) -> None:
    if len(_ENTRIES) >= MAX_ENTRIES:
        _ENTRIES.clear()
    _ENTRIES[key] = entry


def _layouts(results: Iterable[Any]) -> list[Any]:
    """Return what makes each result again; None for a gradient that nobody asks for."""
    return [
        None if each is None else (each.shape, each.stride(), each.dtype, each.storage_offset()) for each in results
    ]


def shares_storage(func: Any) -> bool:
    """Return True for an operation whose results are views of its first argument, or that argument, written into."""
    return _kind(func) in (_VIEW, _WRITTEN)


@cache
def _kind(func: Any) -> int:
    """Return how an operation's results relate to its arguments, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is not None and any(str(each.type) == "Storage" for each in schema.arguments):  # ``set_``
        return _OF_STORAGE
    if schema is None or not isinstance(func, torch._ops.OpOverload) or _UNSURE_TAGS & set(func.tags):
        return _UNKNOWN
    if func.namespace == "profiler":  # reads and writes no tensor
        return _UNTOUCHED
    if func.namespace in ("aten", "prims", "fsdp") and not schema.returns:  # it writes into what it is given
        return _SILENT
    if func.namespace not in ("aten", "prims"):
        return _UNKNOWN
    if func is torch.ops.aten._unsafe_view.default:  # a view, though its schema does not say so
        return _VIEW
    written = [each.alias_info for each in schema.arguments if each.alias_info is not None]
    returned = [each.alias_info for each in schema.returns if each.alias_info is not None]
    first = schema.arguments[0].alias_info if schema.arguments else None
    if not written and not returned:
        return _FRESH
    if len(written) != 1 or first is None:
        return _UNKNOWN
    if first.is_write:
        return _WRITTEN
    return _VIEW if len(schema.returns) == 1 and returned else _UNKNOWN


def _hides_values(value: Any) -> bool:
    """Return True for an argument that leaves the result's values unknown, and its dtype independent of numbers."""
    return type(value) is FakeTensor and value.constant is None and value.dtype.is_floating_point and value.dim() > 0


def _describe(values: Any, parts: list[Any], offsets: bool, ignores_values: bool = False) -> bool:
    """Add what results depend on; False: a value is of another kind."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            is_known = value.constant is not None and not ignores_values
            if is_known or value.fake_device != _CPU or value.dtype.is_complex or value.layout != _STRIDED:
                return False
            parts += (value.shape, value.stride(), value.dtype)
            if offsets:
                parts.append(value.storage_offset())
        elif kind in _VALUES:
            parts += (kind, value)
        elif kind is list or kind is tuple or kind is torch.Size:
            parts.append(len(value))
            if not _describe(value, parts, offsets, ignores_values):
                return False
        else:
            return False
    return True


def _entry(kind: int, args: tuple[Any, ...], result: Any) -> Any:
    """Return what is needed to make a result again; None: it cannot be."""
    if kind == _WRITTEN:
        return _SELF if result is args[0] else None
    many = type(result) if isinstance(result, (list, tuple)) else None
    whole = list(result) if many else [result]
    results = [each for each in whole if each is not None]  # a gradient that nobody asks for is None
    if not results or any(type(each) is not FakeTensor or each.fake_device != _CPU for each in results):
        return None
    if any(
        each.constant is not None or each.dtype.is_complex or each.requires_grad or each.layout != _STRIDED
        for each in results
    ):
        return None
    storages = {each.untyped_storage()._cdata for each in results}
    if kind == _VIEW:
        if storages != {args[0].untyped_storage()._cdata}:
            return None
    else:
        inputs = {each.untyped_storage()._cdata for each in args if type(each) is FakeTensor}
        if len(storages) != len(results) or storages & inputs or any(map(_is_partial, results)):
            return None
    return many, _layouts(whole)


def _is_partial(tensor: Any) -> bool:
    """Return True if a tensor's storage is not that of ``torch.empty_strided``."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))  # noqa: B905 - 3.9
    if not tensor.numel():
        elements = 0
    return bool(tensor.storage_offset() != 0 or tensor.untyped_storage().nbytes() != elements * tensor.element_size())


def _mode_of(values: Iterable[Any]) -> Any:
    """Return the mode of the first fake tensor; None: there is none."""
    for value in values:
        if type(value) is FakeTensor:
            return value.fake_mode
        if isinstance(value, (list, tuple)) and (mode := _mode_of(value)) is not None:
            return mode
    return None


_EMPTY, _EMPTY_STRIDED, _SUBCLASS = torch.empty, torch.empty_strided, torch.Tensor._make_subclass
"""torch's own, which a program may find replaced."""
_NEW = "_vramtop_new"
"""Attributes of a new fake tensor, kept by its mode."""


def new_bytes(mode: Any, count: int) -> Any:
    """Return a new fake tensor of so many bytes."""
    return _make(mode, ((count,), (1,), torch.uint8, 0), None)


def _make(mode: Any, described: tuple[Any, ...], storage: Any) -> Any:
    shape, stride, dtype, offset = described
    with torch._C._DisableTorchDispatch():
        if storage is None:
            tensor = _EMPTY_STRIDED(shape, stride, dtype=dtype, device="meta")
        else:
            tensor = _EMPTY(0, dtype=dtype, device="meta")
            tensor.set_(storage, offset, shape, stride)
    new = getattr(mode, _NEW, None)
    if new is None:
        made = FakeTensor(mode, tensor, _CPU)
        setattr(mode, _NEW, dict(made.__dict__))
        return made
    made = _SUBCLASS(FakeTensor, tensor, False, dispatch_device=True, device_for_backend_keys=_CPU)
    made.__dict__.update(new)  # all that its constructor does, which takes longer than the operation
    return made
