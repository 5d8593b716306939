"""Equal shares of what a router distributes: how many tokens go to which expert is only known in a real run.

A layer of experts written as a loop takes, for each of them, the tokens whose choice it is. Each token chooses a known
number of experts, so that all of them together hold a known number of tokens, whoever gets them. Were each expert
taken to get all tokens, a layer of eight would keep four times what it keeps; and were its number of tokens taken for
one, next to nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_CHOICES = frozenset(("topk", "sort", "max", "argmax"))
"""Operators that give the places of the highest scores."""
_SAME = frozenset(
    ("alias", "detach", "clone", "_to_copy", "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze",
     "permute", "transpose", "t", "select", "slice", "expand", "index", "index_select")
)  # fmt: skip
_OVERFLOWS = frozenset(("isnan", "isinf"))
_ZEROS = _OVERFLOWS | {"zeros", "zeros_like", "new_zeros"}
"""Operators whose results are zero: no number is assumed to overflow."""
_SUMS = frozenset(("sum", "count_nonzero"))
_COMPARES = frozenset(("eq", "ne"))
_NOT = frozenset(("bitwise_not", "logical_not"))
_OF_FLAGS = _NOT | {"all", "mul", "bitwise_and", "logical_and"}
_ALONE = _ZEROS | _COMPARES | {"triu", "_softmax"}
"""Operators that may tell something of fractions of which nothing is known."""
_FOLLOWED = _CHOICES | _SAME | _SUMS | _OF_FLAGS | _ALONE | {"gt", "scatter", "any", "histc"}


@dataclass(frozen=True)
class Routed:
    """What is known of the values of a tensor that says where tokens go."""

    classes: int = 0
    """Each element is one of so many places, that of one of the highest scores; 0: it is none."""
    share: float | None = None
    """Part of the elements that differ from zero, where shares are equal."""
    are_flags: bool = False
    """The elements are 0 or 1."""
    are_answers: bool = False
    """They say which choices are their labels: a count of them is a metric, and no tokens go anywhere."""


NEVER_SET = Routed(share=0.0, are_flags=True)
_ALL_SET = Routed(share=1.0, are_flags=True, are_answers=True)
"""The result of ``isfinite``, since all numbers are assumed to be finite, or of comparing two masks."""
SHARES = Routed()
"""Probabilities, of which one row has the sum 1."""
_MOST_SHARES = 1 << 12
CAUSAL = Routed()
"""A mask that hides what is later, as ``torch.nn.Transformer`` makes it, which looks for it."""


def follow(
    func: Any, args: Any, result: Any, routed_of: Callable[[Any], Routed | None]
) -> tuple[tuple[Any, Routed | None] | None, torch.Tensor | None]:
    """Return what the result of an operation tells of a router's choices.

    Args:
        func: of torch's; one that works in place is taken for the one that does not.
        args: its arguments, which are tensors without values.
        result: what it made.
        routed_of: returns what is known of an argument.

    Returns:
        A tensor of the result with what is known of it, if it is anything; and the values of the result, if equal
        shares say them.
    """
    name = _followed(func)
    if name is None or not args:
        return None, None
    source = args[0]
    if (told := _told(name, args, routed_of)) is not None:
        is_no = name in _OVERFLOWS and result.numel() == 1
        return (result, told), torch.zeros(result.shape, dtype=result.dtype, device="cpu") if is_no else None
    given = routed_of(source)
    if name in _CHOICES:
        return _chosen(name, args, result, given), None
    if given is None or type(result) is not FakeTensor:
        return None, None
    found, values = None, None
    if name in _SAME:
        found = given
    elif name in _OF_FLAGS:
        found, values = _of_flags(name, result, given, given if name == "all" else routed_of(args[-1]))
    elif name == "eq" and given.classes:
        found = _equal(given, source, args[1])
    elif name == "scatter" and given.share == 0:
        found = _scattered(result, args, routed_of(args[2]))
    elif name in ("gt", "ne") and given.share and _is_number(args[1], 0):
        found = replace(given, are_flags=True)
    elif name == "any" and given.share is not None:
        share = min(1.0, given.share * source.numel() / max(1, result.numel()))
        found = Routed(share=share, are_flags=True)
        values = torch.full(result.shape, bool(share), device="cpu") if share in (0, 1) else None
    elif name == "histc" and given.classes:
        values = counts(source.numel(), result.shape, result.dtype)
    elif name in _SUMS and given.share is not None and given.are_flags and not result.dtype.is_floating_point:
        values = counts(round(given.share * source.numel()), result.shape, result.dtype)
    return None if found is None else (result, found), values


def chooses(func: Any) -> bool:
    """Return True for an operator that tells something of scores of which nothing is known."""
    return _followed(func) in _CHOICES | _ALONE


def is_causal(mask: Any) -> bool:
    """Return True for a causal mask: a square host tensor with minus infinity above the diagonal."""
    is_square = type(mask) is torch.Tensor and mask.dim() == 2 and mask.shape[0] == mask.shape[1] > 0
    if not is_square or not mask.is_floating_point() or mask[0, -1] != -math.inf:
        return False
    return bool(torch.equal(mask, torch.full_like(mask, -math.inf).triu(1)))


def counts(total: int, shape: Any, dtype: Any) -> torch.Tensor:
    """Return how many tokens each place gets where they share equally: the first ones get what is left over."""
    each, left = divmod(total, max(1, math.prod(shape)))
    shares = torch.full((math.prod(shape),), each, dtype=dtype, device="cpu")
    shares[:left] += 1
    return shares.view(tuple(shape))


def expected_set(given: Routed | None, size: int) -> int | None:
    """Return how many of so many elements differ from zero where shares are equal; None: they are no choice."""
    return None if given is None or given.share is None or given.are_answers else math.ceil(given.share * size - 1e-6)


def _told(name: str, args: Any, routed_of: Callable[[Any], Routed | None]) -> Routed | None:
    """Return what an operation tells by itself, as do comparisons of numbers with themselves or with infinity."""
    if name in _ZEROS:
        return NEVER_SET
    if name == "triu":
        return CAUSAL if tuple(args[1:]) == (1,) else None
    if name == "_softmax":
        return SHARES if args[0].numel() <= _MOST_SHARES and args[1] in (-1, args[0].dim() - 1) else None
    if name not in _COMPARES:
        return None
    first, second = args[0], args[1]
    are_finite = first.is_floating_point() and (second is first if name == "eq" else _is_number(second, math.inf))
    are_causal = name == "eq" and routed_of(first) is CAUSAL is routed_of(second)
    return _ALL_SET if are_finite or are_causal else None


def _of_flags(name: str, result: Any, given: Routed, last: Any) -> tuple[Routed | None, torch.Tensor | None]:
    """Return what an operation makes of flags that are all set, and its value where it has one."""
    if given is not _ALL_SET or (name not in _NOT and last is not _ALL_SET):
        return None, None
    if name in _NOT:
        return NEVER_SET, None
    return _ALL_SET, torch.ones(result.shape, dtype=result.dtype, device="cpu") if result.numel() == 1 else None


def _chosen(name: str, args: Any, result: Any, given: Routed | None) -> tuple[Any, Routed] | None:
    """Return the places of the highest scores among so many."""
    scores, at = args[0], 2 if name == "topk" else 1
    dim = args[at] if len(args) > at else -1
    if name == "sort" and given is not None and given is not SHARES:
        return result[0], given
    if not isinstance(dim, int) or not scores.dim() or not scores.is_floating_point():
        return None
    places = result[1] if isinstance(result, (tuple, list)) else result
    return (places, Routed(classes=scores.shape[dim])) if places.dtype == torch.int64 else None


def _equal(given: Routed, chosen: Any, to: Any) -> Routed | None:
    """Return which part of the choices are one place: a number, or each of a range; or their labels, one for each."""
    if isinstance(to, torch.Tensor) and to.numel() > 1 and to.shape == chosen.shape:
        return Routed(share=1 / given.classes, are_flags=True, are_answers=True)
    is_known = not isinstance(to, torch.Tensor) or getattr(to, "constant", None) is not None or to.numel() == 1
    return Routed(share=1 / given.classes, are_flags=True) if is_known else None


def _scattered(result: Any, args: Any, chosen: Routed | None) -> Routed | None:
    """Return which part of zeros a router's choices overwrite."""
    if chosen is None or not chosen.classes:
        return None
    are_flags = not isinstance(args[3], torch.Tensor) and args[3] == 1
    return Routed(share=args[2].numel() / result.numel(), are_flags=are_flags)


def _is_number(value: Any, number: float) -> bool:
    return not isinstance(value, torch.Tensor) and value == number


@functools.lru_cache(maxsize=4096)
def _followed(func: Any) -> str | None:
    """Return the name of an operator that is followed, without the mark of one that works in place."""
    name = func._schema.name.partition("::")[2]
    name = name[:-1] if func._schema.is_mutable else name
    return name if name in _FOLLOWED else None
