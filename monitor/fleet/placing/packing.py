"""The choice of GPUs and of hosts that leaves the largest free block.

The free block of a host is the most memory that one more job could take on it if it took as much on each of its GPUs:
the largest k x the memory that k of the GPUs have at least. A placement is better if the largest block that it leaves
in the fleet is larger; if they are equal, if the second largest is, and so on.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")


def largest_block(available: Iterable[int]) -> int:
    """Return the free block of a host.

    Args:
        available: bytes of each of its GPUs.
    """
    most_first = sorted(available, reverse=True)
    return max((count * size for count, size in enumerate(most_first, 1)), default=0)


def choose_gpus(available: Sequence[int], needs: Sequence[int]) -> tuple[int, ...] | None:
    """Return the GPU of each rank, by its position, which leave the host the largest block; None: they do not fit.

    Each rank takes a GPU of its own. If the ranks are alike, no other choice leaves a larger block. For a given height
    of the block, GPUs below it are taken first, and those that stay above it with the rank; then the block shrinks.

    Args:
        available: bytes of each GPU.
        needs: bytes of each rank.
    """
    heights = {size for size in available if size > 0}
    heights |= {size - need for size in heights for need in set(needs) if size > need}
    found: dict[tuple[int, ...], None] = {}
    for height in sorted(heights, reverse=True) or [0]:
        chosen = _choose_around(available, needs, height)
        if chosen is None:
            return None
        found[chosen] = None
    return max(found, key=lambda chosen: _rank_of_choice(left_after(available, needs, chosen)))


def left_after(available: Sequence[int], needs: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Return what each GPU has left with ranks on some of them."""
    left = list(available)
    for gpu, need in zip(chosen, needs, strict=True):
        left[gpu] -= need
    return left


def best_first(hosts: Iterable[_T], before: Callable[[_T], int], after: Callable[[_T], int]) -> list[_T]:
    """Return hosts in the order in which a job should take them; of equal ones the first stays first.

    Args:
        hosts: that can take it.
        before: free block of a host as it is.
        after: free block of a host with the job on it.
    """

    def compare(one: _T, other: _T) -> int:
        with_one = sorted((after(one), before(other)), reverse=True)
        with_other = sorted((before(one), after(other)), reverse=True)
        return (with_other > with_one) - (with_one > with_other)

    return sorted(hosts, key=cmp_to_key(compare))


def _choose_around(available: Sequence[int], needs: Sequence[int], height: int) -> tuple[int, ...] | None:
    """Place the rank with the highest need first, on the smallest GPU that it takes nothing of the block from."""
    free = sorted(range(len(available)), key=lambda gpu: available[gpu])
    chosen = [0] * len(needs)
    for rank in sorted(range(len(needs)), key=lambda rank: -needs[rank]):
        need = needs[rank]
        fitting = [gpu for gpu in free if available[gpu] >= need]
        if not fitting:
            return None
        outside = (gpu for gpu in fitting if available[gpu] < height or available[gpu] - need >= height)
        chosen[rank] = next(outside, fitting[0])
        free.remove(chosen[rank])
    return tuple(chosen)


def _rank_of_choice(left: Sequence[int]) -> tuple[int, list[int]]:
    return largest_block(left), sorted(left, reverse=True)
