"""Memory that is left behind: what lines of a program allocate in each step and do not free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .history import AllocationHistory, StorageRecord

_LEAST_BYTES = 1 << 20
"""Less than this fills no GPU in ten thousand steps: a list of losses."""
_LEAST_REPEATS = 2
"""Stretches that must have left something: caches and optimizer states are made in the first one only."""

_EVEN = 0.9
"""Smallest share that one rise has of another that is as large: the last batch of a data loader is not read ahead."""


def left_behind(history: AllocationHistory, marks: Sequence[int]) -> list[tuple[str, int]]:
    """Return lines of the program, and the bytes that each leaves allocated in every step, the largest first.

    A line leaves what it made in each step but the last, whose tensors may be in use still, or a tensor that grows by
    about the same size each time (``torch.cat``).

    Args:
        history: with the lines of its records.
        marks: numbers of events at the same point of consecutive steps.
    """
    stretches = len(marks) - 2
    if stretches < _LEAST_REPEATS:
        return []
    left: dict[int, int] = {}
    levels: list[dict[str, int]] = []
    for stretch in range(stretches + 1):
        for event in history.events[marks[stretch] : marks[stretch + 1]]:
            if event > 0:
                left[event - 1] = stretch
            else:
                left.pop(-event - 1, None)
        levels.append(_by_line(history, left))
    kept = [_by_line(history, (each for each, at in left.items() if at == stretch)) for stretch in range(stretches)]
    found = []
    for line in levels[-1]:
        held = [each.get(line, 0) for each in levels]
        rises = [held[at] - held[at - 1] for at in range(1, len(held))]
        low, high = sorted(rises[-_LEAST_REPEATS:])
        size = max(min(each.get(line, 0) for each in kept), low if low >= _EVEN * high else 0)
        if size >= _LEAST_BYTES:
            found.append((line, size))
    return sorted(found, key=lambda each: -each[1])


def rise_of_peak(history: AllocationHistory, marks: Sequence[int], lines: Collection[str]) -> int:
    """Return by how many bytes what lines hold at most rises from the last stretch but one to the last.

    A tensor that grows (``torch.cat``) is there twice while it is copied.
    """
    levels = [0]
    for event in history.events[: marks[-1]]:
        record = history.records[abs(event) - 1]
        size = 0 if record.host or _line(record) not in lines else record.size
        levels.append(levels[-1] + (size if event > 0 else -size))
    before, after = max(levels[marks[-3] : marks[-2]]), max(levels[marks[-2] :])
    return max(0, after - before)


def _by_line(history: AllocationHistory, numbers: Iterable[int]) -> dict[str, int]:
    """Sum the bytes of the records on the GPU by the line of the user's own code that allocated them.

    DDP's buckets are left out: it makes them anew once, after the first step. So are states of optimizers: only LBFGS
    makes more in later steps, and its history has an end.
    """
    sizes: dict[str, int] = {}
    for record in (history.records[number] for number in numbers):
        if not record.host and record.component not in ("communication", "optimizer"):
            sizes[_line(record)] = sizes.get(_line(record), 0) + record.size
    return sizes


def _line(record: StorageRecord) -> str:
    return record.own_line or record.line
