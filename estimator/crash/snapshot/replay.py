"""Memory over the last recorded step of a snapshot's history, as the timeline that a traced budget has too."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

from ...budget import ComponentName, Components, PhaseMark, PhaseName, Timeline
from .stacks import Stack, StackComponent

_ROUNDING = 512
"""Torch rounds the size of a block up to this (``kMinBlockSize`` in CUDACachingAllocator.cpp)."""
_MAX_MOMENTS = 1500
_NAMES: tuple[ComponentName, ...] = tuple(each.name for each in fields(Components))  # type: ignore[misc]


HeldBlock = tuple[int, int, Stack]
"""Address, size and stack of a block that is held at the end."""


class Event(NamedTuple):
    """One entry of the history."""

    action: Any
    address: int
    size: int
    stack: Stack


def rounded(size: int) -> int:
    """Return the size of the block for an allocation."""
    return max(_ROUNDING, -(-size // _ROUNDING) * _ROUNDING)


def replay(events: Sequence[Event], held: Iterable[HeldBlock], reserved_bytes: int) -> Timeline | None:
    """Return the memory over the last step in a history.

    Args:
        events: the history of one GPU, oldest first.
        held: at its end.
        reserved_bytes: at its end.
    """
    if not any(event.action == "alloc" for event in events):
        return None
    blocks = {block[0]: block for block in held}
    levels, reserved = _base(events, blocks.values()), reserved_bytes - sum(map(_reserved_change, events))
    start, phases = _last_step(events)
    kept = _thinned(islice(_moments(events, blocks, levels, reserved), start, None), levels, len(events) - start)
    return Timeline(
        events=tuple(at for at, _, _ in kept),
        levels=tuple(Components(**dict(zip(_NAMES, level, strict=True))) for _, level, _ in kept),
        reserved_bytes=tuple(size for _, _, size in kept),
        outside_bytes=0,
        phases=tuple(phases),
    )


def _moments(
    events: Iterable[Event], held: Mapping[int, HeldBlock], levels: dict[ComponentName, int], reserved: int
) -> Iterator[tuple[int, int, int]]:
    """Yield index, bytes held and bytes reserved after each event, with ``levels`` as they are then."""
    live: dict[int, tuple[int, ComponentName]] = {}
    total = sum(levels.values())
    for at, event in enumerate(events):
        action, address, size, _ = event
        if action == "alloc":
            change, name = live[address] = rounded(size), _drawn(_component(event, held))
        elif action in ("free_requested", "free_completed", "free"):
            known, name = live.pop(address, (0, "temporary"))
            if not known and action != "free_completed":
                known = rounded(size)
            change = -min(known, levels[name])
        else:
            change, name = 0, "temporary"
            reserved += _reserved_change(event)
        levels[name] += change
        total += change
        yield at, total, max(0, reserved)


def _component(event: Event, held: Mapping[int, HeldBlock]) -> StackComponent:
    """Return the component of what was allocated: that of its block at the end, if it is the same block."""
    component = event.stack.component
    if component == "gradients or temporary" and event.address in held:
        _, size, stack = held[event.address]
        if stack.component == "gradients" and size >= event.size:
            return "gradients"
    return component


def _base(events: Sequence[Event], held: Iterable[HeldBlock]) -> dict[ComponentName, int]:
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
    for address, size, stack in held:
        if address not in allocated:
            levels[_drawn(stack.component)] += size
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
        phase = event.stack.phase
        if phase is not None and phase != last and event.action in ("alloc", "oom"):
            marks.append(PhaseMark(name=phase, event=at))
            last = phase
    begin = 0
    for index, mark in enumerate(marks):
        before = marks[index - 1].name if index else None
        if mark.name == "forward" and before in (None, "loading", "optimizer step"):
            begin = index
    return (marks[begin].event, marks[begin:]) if marks else (0, [PhaseMark(name="forward", event=0)])


def _thinned(
    moments: Iterable[tuple[int, int, int]], levels: Mapping[ComponentName, int], count: int
) -> list[tuple[int, tuple[int, ...], int]]:
    """Return at most ``_MAX_MOMENTS`` moments: the highest of each stretch, the first and the last."""
    width = count / (_MAX_MOMENTS - 2) if count > _MAX_MOMENTS else 1.0
    kept: list[tuple[int, tuple[int, ...], int]] = []
    stretch = end = highest = 0
    for index, (at, total, reserved) in enumerate(moments):
        if index >= end:
            stretch += 1
            end, highest = int(stretch * width), total
        elif total > highest:
            highest = total
            if len(kept) > 1:
                kept.pop()
        elif index < count - 1:
            continue
        kept.append((at, tuple(levels.values()), reserved))
    return kept
