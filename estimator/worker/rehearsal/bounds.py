"""Bounds of values that only a real run knows: ``unknown | True`` is true, and the sum of n unknown booleans at most n.

A fake tensor whose values are partly known has a lowest and a highest value for each element. An operation that rises,
or falls, with its arguments gives bounds from bounds; where they meet, the values are known.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable

    Bounds = tuple[torch.Tensor, torch.Tensor]

MOST_BOUNDED = 1 << 16
"""Largest number of elements whose bounds are followed."""
_RISE = frozenset(
    ("alias", "detach", "clone", "_to_copy", "select", "slice", "view", "_unsafe_view", "_reshape_alias", "unsqueeze",
     "squeeze", "expand", "permute", "transpose", "t", "cat", "stack", "repeat", "flip", "any", "all", "max", "min",
     "amax", "amin", "maximum", "minimum", "logical_and", "logical_or", "add", "sum", "cumsum", "gt", "ge",
     "index_put")
)  # fmt: skip
"""Operators whose results do not fall where an argument rises."""
_RISE_FROM_ZERO = frozenset(("bitwise_and", "bitwise_or", "mul", "prod"))
"""Operators that are monotonic, never falling as an argument rises, while all arguments are 0 or 1."""
_FALL = frozenset(("bitwise_not", "logical_not", "rsub", "neg", "lt", "le"))
_EQUAL = {"eq": False, "ne": True}
_POSITIONS = frozenset(("argmax", "argmin"))
_BOUNDED = _RISE | _RISE_FROM_ZERO | _FALL | _EQUAL.keys() | _POSITIONS
_WITH_NUMBERS = frozenset(("gt", "ge", "lt", "le", "eq", "ne", "rsub"))
_SET = {
    "none": ("zeros", "zeros_like", "new_zeros", "zero"),
    "same": ("alias", "detach", "clone", "_to_copy", "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze",
             "permute", "transpose", "t", "flip", "select", "slice"),
    "sum": ("cat", "stack", "bitwise_or", "logical_or"),
    "least": ("bitwise_and", "logical_and"),
    "written": ("index_put",),
}  # fmt: skip
"""How many elements of a result differ from zero, by that of its arguments."""
_ONES = frozenset(("ones", "ones_like", "new_ones"))
"""Operators that make the mask of a batch without padding."""
_ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
"""Operators that make a mask in which a program marks what it takes."""
_MASKS = (torch.bool, torch.uint8)
_TO_NUMBERS = frozenset(("_to_copy", "sum", "cumsum", "prod"))
"""Operators that turn booleans into numbers, which are bounded then."""
_ATEN = torch.ops.aten


def bounds_of_result(func: Any, args: Any, kwargs: Any, bounds_of: Callable[[Any], Bounds | None]) -> Bounds | None:
    """Return the lowest and the highest values of an operation's result; None: nothing is known.

    Args:
        func: of torch's; one that works in place is taken for the one that does not.
        args: its arguments.
        kwargs: its arguments by name.
        bounds_of: returns a fake tensor's bounds, or None.
    """
    name, func = _bounded(func)
    if name in (*_ONES, *_ZEROS) and args:
        return _filled(int(name in _ONES), *args, **kwargs)
    if func is None or "alpha" in kwargs or not args:
        return None
    first = args[0][0] if isinstance(args[0], (list, tuple)) and args[0] else args[0]
    if name in _POSITIONS:
        return _positions(first, *args[1:], **kwargs)
    if isinstance(first, torch.Tensor) and first.is_floating_point():  # most are
        return None
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if any(each.numel() > MOST_BOUNDED or each.is_floating_point() or each.is_complex() for each in tensors):
        return None
    if name in _WITH_NUMBERS and len(tensors) > 1:  # falls with the second one
        return None
    found = [bounds_of(each) for each in tensors]
    if all(each is None for each in found) and not (name in _TO_NUMBERS or func._overloadname == "Scalar"):
        return None
    with torch._C._DisableTorchDispatch():
        known = (each or _any_values(tensor) for each, tensor in zip(found, tensors))  # noqa: B905 - not in Python 3.9
        pairs = [each for each in known if each is not None]
        if len(pairs) < len(found) or (name in _RISE_FROM_ZERO and not all(map(_is_flag, pairs))):
            return None
        if name == "index_put" and any(not torch.equal(*pair) for pair in pairs[1:-1]):  # where is not known
            return None
        low, high = (_called(func, args, kwargs, [pair[at] for pair in pairs]) for at in (0, 1))
        if name in _EQUAL:
            (first, last), to = pairs[0], args[1]
            may_differ, may_be_equal = (first != to) | (last != to), (first <= to) & (last >= to)
            low, high = (may_be_equal.logical_not(), may_differ) if _EQUAL[name] else (~may_differ, may_be_equal)
        elif name in _FALL:
            low, high = high, low
        is_open = low.dtype == torch.bool and bool((high & ~low).all())
    return None if is_open else (low, high)


def most_set(tensor: Any, bounds: Bounds | None) -> int:
    """Return how many elements of booleans or integers differ from zero at most."""
    if bounds is None:
        return int(tensor.numel())
    with torch._C._DisableTorchDispatch():
        return int((bounds[0].bool() | bounds[1].bool()).count_nonzero())


def most_set_in_result(func: Any, args: Any, most_set_in: Callable[[Any], int]) -> int | None:
    """Return how many elements of an operation's result differ from zero at most; None: nothing is known.

    A sampler marks the elements that it chose in a mask of zeros: their number is known, their places are not.

    Args:
        func: of torch's; one that works in place is taken for the one that does not.
        args: its arguments.
        most_set_in: returns this number for an argument.
    """
    rule = _set_rule(func)
    if rule is None:
        return None
    if rule == "none":
        return 0
    tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
    if rule == "written":
        if args[2].numel() != 1 and any(each is not None and each.dtype in _MASKS for each in args[1]):
            return None
        before, count, rest = most_set_in(args[0]), 1, list(map(int, args[0].shape))
        for each in args[1]:
            is_mask = each is not None and each.dtype in _MASKS
            count *= int(rest[0] if each is None else most_set_in(each) if is_mask else each.numel())
            del rest[: each.dim() if is_mask else 1]
        return before + count * math.prod(rest)
    if not tensors or any(each.is_floating_point() or each.is_complex() for each in tensors):
        return None
    if tensors[0] is args[0] and any(each.shape != args[0].shape for each in tensors):  # broadcast
        return None
    counts = [most_set_in(each) for each in tensors]
    return {"same": counts[0], "sum": sum(counts), "least": min(counts)}[rule]


def number_of_values(bounds: Bounds | None) -> float:
    """Return how many different values an integer tensor has at most."""
    if bounds is None or not bounds[0].numel():
        return math.inf
    with torch._C._DisableTorchDispatch():
        return int(bounds[1].max()) - int(bounds[0].min()) + 1


def _filled(value: int, like: Any, size: Any = None, dtype: Any = None, **_: Any) -> Bounds | None:
    shape = size or (like.shape if isinstance(like, torch.Tensor) else like)
    kind = dtype or getattr(like, "dtype", None)
    if kind is None or kind.is_floating_point or kind.is_complex or math.prod(shape) > MOST_BOUNDED:
        return None
    with torch._C._DisableTorchDispatch():
        made = torch.full(tuple(shape), value, dtype=kind, device="cpu")
    return made, made


def _positions(tensor: Any, dim: int | None = None, keepdim: bool = False) -> Bounds | None:
    """Return the bounds of the places of extreme values: which class a model predicts."""
    shape, places = list(tensor.shape), tensor.numel()
    if dim is None:
        shape = []
    elif shape:
        places = shape[dim]
        shape[dim : dim % len(shape) + 1] = [1] * keepdim
    if math.prod(shape) > MOST_BOUNDED:
        return None
    with torch._C._DisableTorchDispatch():
        return torch.zeros(shape, dtype=torch.int64, device="cpu"), torch.full(shape, places - 1, device="cpu")


def knows_of_fractions(func: Any) -> bool:
    """Return True for an operator whose results have bounds although nothing is known of its arguments."""
    return _bounded(func)[0] in _ONES | _POSITIONS or _set_rule(func) == "none"


@functools.lru_cache(maxsize=4096)
def _bounded(func: Any) -> tuple[str, Any]:
    """Return the name of an operator and the one of its kind that makes a new tensor; None: it gives no bounds."""
    name = func._schema.name.partition("::")[2]
    if func._schema.is_mutable:
        name = name[:-1]
        func = getattr(getattr(_ATEN, name, None), func._overloadname, None)
    return name, func if func is not None and name in _BOUNDED and len(func._schema.returns) == 1 else None


@functools.lru_cache(maxsize=4096)
def _set_rule(func: Any) -> str | None:
    name = _bounded(func)[0]
    return next((rule for rule, names in _SET.items() if name in names), None)


def _any_values(tensor: Any) -> Bounds | None:
    if tensor.dtype != torch.bool:
        return None
    shape = tuple(tensor.shape)
    return torch.zeros(shape, dtype=torch.bool, device="cpu"), torch.ones(shape, dtype=torch.bool, device="cpu")


def _is_flag(bounds: Bounds) -> bool:
    return not bounds[0].numel() or (int(bounds[0].min()) >= 0 and int(bounds[1].max()) <= 1)


def _called(func: Any, args: Any, kwargs: Any, values: list[Any]) -> Any:
    remaining = iter(values)
    args, kwargs = tree_map_only(torch.Tensor, lambda _: next(remaining), (args, kwargs))
    return func(*args, **kwargs)


def is_bounded(tensor: Any) -> bool:
    """Return True for a fake tensor of booleans or integers: only their bounds are tracked."""
    return type(tensor) is FakeTensor and not (tensor.is_floating_point() or tensor.is_complex())
