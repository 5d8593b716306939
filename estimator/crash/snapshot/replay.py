"""Memory over the last recorded step of a snapshot's history, as the timeline that a traced budget has too."""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from ...budget import ComponentName, Components, PhaseMark, PhaseName, Timeline
from .stacks import StackComponent

_ROUNDING = 512
"""Torch rounds the size of a block up to this (``kMinBlockSize`` in CUDACachingAllocator.cpp)."""
_MAX_MOMENTS = 1500
_NAMES: tuple[ComponentName, ...] = tuple(each.name for each in fields(Components))  # type: ignore[misc]


class Event(NamedTuple):
    """One entry of the history."""

    action: str
    address: int
    size: int
    component: StackComponent
    phase: PhaseName | None


def rounded(size: int) -> int:
    """Return the size of the block for an allocation."""
    return max(_ROUNDING, -(-size // _ROUNDING) * _ROUNDING)


def replay(
    events: Sequence[Event], held: dict[int, tuple[int, StackComponent]], reserved_bytes: int
) -> Timeline | None:
    """Return the memory over the last step in a history.

    Args:
        events: the history of one GPU, oldest first.
        held: size and component of each block that is held at its end, by address.
        reserved_bytes: at its end.
    """
    if not any(event.action == "alloc" for event in events):
        return None
    levels, reserved = _base(events, held), reserved_bytes - sum(_reserved_change(event) for event in events)
    live: dict[int, tuple[int, ComponentName]] = {}
    start, phases = _last_step(events)
    moments: list[tuple[int, tuple[int, ...], int]] = []
    for at, event in enumerate(events):
        if event.action == "alloc":
            name = _drawn(event.component)
            live[event.address] = (rounded(event.size), name)
            levels[name] += rounded(event.size)
        elif event.action in ("free_requested", "free_completed", "free"):
            size, name = live.pop(event.address, (0, "temporary"))
            if not size and event.action != "free_completed":
                size = rounded(event.size)
            levels[name] = max(0, levels[name] - size)
        reserved += _reserved_change(event)
        if at >= start:
            moments.append((at, tuple(levels[name] for name in _NAMES), max(0, reserved)))
    kept = _thinned(moments)
    return Timeline(
        events=tuple(at for at, _, _ in kept),
        levels=tuple(Components(**dict(zip(_NAMES, level, strict=True))) for _, level, _ in kept),
        reserved_bytes=tuple(size for _, _, size in kept),
        outside_bytes=0,
        phases=tuple(phases),
    )


def _base(events: Sequence[Event], held: dict[int, tuple[int, StackComponent]]) -> dict[ComponentName, int]:
    """Return what was held before the history begins: blocks that it does not allocate, but frees or leaves."""
    levels: dict[ComponentName, int] = dict.fromkeys(_NAMES, 0)
    allocated: set[int] = set()
    seen: set[int] = set()
    for event in events:
        if event.action == "alloc":
            allocated.add(event.address)
        elif event.action in ("free_requested", "free") and event.address not in seen:
            levels["temporary"] += rounded(event.size)  # older than the history: nothing says what it was
        seen.add(event.address)
    for address, (size, component) in held.items():
        if address not in allocated:
            levels[_drawn(component)] += size
    return levels


def _drawn(component: StackComponent) -> ComponentName:
    if component == "gradients or temporary" or component == "unknown":  # noqa: PLR1714 - so that types are narrowed
        return "temporary"
    return component


def _reserved_change(event: Event) -> int:
    if event.action in ("segment_alloc", "segment_map"):
        return event.size
    return -event.size if event.action in ("segment_free", "segment_unmap") else 0


def _last_step(events: Sequence[Event]) -> tuple[int, list[PhaseMark]]:
    """Return where the last step begins, and its phases: a step begins with the forward pass after an optimizer's step.

    Without an optimizer's step before it, it begins with the first forward pass.
    """
    marks: list[PhaseMark] = []
    last: PhaseName | None = None
    for at, event in enumerate(events):
        if event.action in ("alloc", "oom") and event.phase is not None and event.phase != last:
            marks.append(PhaseMark(name=event.phase, event=at))
            last = event.phase
    begin = 0
    for index, mark in enumerate(marks):
        before = marks[index - 1].name if index else None
        if mark.name == "forward" and before in (None, "loading", "optimizer step"):
            begin = index
    return (marks[begin].event, marks[begin:]) if marks else (0, [PhaseMark(name="forward", event=0)])


def _thinned(moments: list[tuple[int, tuple[int, ...], int]]) -> list[tuple[int, tuple[int, ...], int]]:
    """Return at most ``_MAX_MOMENTS`` moments: the highest of each stretch, the first and the last."""
    if len(moments) <= _MAX_MOMENTS:
        return moments
    width = len(moments) / (_MAX_MOMENTS - 2)
    kept = {0, len(moments) - 1}
    for stretch in range(_MAX_MOMENTS - 2):
        begin, end = int(stretch * width), max(int(stretch * width) + 1, int((stretch + 1) * width))
        kept.add(max(range(begin, min(end, len(moments))), key=lambda at: sum(moments[at][1])))
    return [moments[at] for at in sorted(kept)]
