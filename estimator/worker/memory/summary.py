"""What a history of allocations comes to: phases and their peaks by component, a timeline, the largest tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .tracker import COMPONENTS, spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tracker import History, Record

    _Level = tuple[int, int, tuple[int, ...]]
    """After an event: its index, what is allocated, and that by component."""

PEAK_TENSORS = 20
TIMELINE_POINTS = 500


def summarize(history: History) -> dict[str, Any]:
    """Phases, timeline and largest tensors of the second step.

    Every figure is in bytes; the components of a phase sum to its ``allocated``.
    """
    records = history.records
    last = [span for span in history.spans if span.step == 2]
    start = last[0].start
    phases: dict[str, dict[str, Any]] = {}
    held = dict.fromkeys(COMPONENTS, 0)
    for event in history.events[: _loading_end(history)]:
        _apply(held, records, event)
    phases["loading"] = {"allocated": sum(held.values()), "components": dict(held)}
    for event in history.events[_loading_end(history) : start]:
        _apply(held, records, event)
    levels: list[_Level] = []
    peak = (-1, start)
    for name, first, end in _spans(history):
        best = phases.setdefault(name, {"allocated": -1})
        for index in range(first - 1, end):  # the level at which the phase begins counts too
            if index >= first:
                _apply(held, records, history.events[index])
                levels.append((index, sum(held.values()), tuple(held.values())))
            allocated = sum(held.values())
            if allocated > best["allocated"]:
                best.update(allocated=allocated, components=dict(held))
            if allocated > peak[0]:
                peak = (allocated, index)
    points = _thinned(levels)
    return {
        "phases": phases,
        "peak_tensors": _largest(history, peak[1]),
        "timeline": [(index, allocated) for index, allocated, _ in points],
        "timeline_components": {name: [parts[i] for _, _, parts in points] for i, name in enumerate(COMPONENTS)},
        "timeline_phases": [[name, first] for name, first, _ in _spans(history)],
    }


def allocator_events(history: History) -> Iterator[tuple[int, tuple[int, int | None, int]]]:
    """Index and event, as the allocator's model takes them: ``(record, bytes, stream)`` and ``(record, None, 0)``."""
    for index, event in enumerate(history.events):
        record = history.records[abs(event) - 1]
        if not record.host:
            if event > 0:
                yield index, (record.number, record.size, record.stream)
            else:
                yield index, (record.number, None, 0)


def _spans(history: History) -> list[tuple[str, int, int]]:
    return [(span.phase, span.start, end) for span, end in spans(history) if span.step == 2]


def _loading_end(history: History) -> int:
    return next(span.start for span in history.spans if span.step > 0)


def _apply(held: dict[str, int], records: list[Record], event: int) -> None:
    record = records[abs(event) - 1]
    if not record.host:
        held[record.component or "temporary"] += record.size if event > 0 else -record.size


def _largest(history: History, index: int) -> list[dict[str, Any]]:
    alive: set[int] = set()
    for event in history.events[: index + 1]:
        if event > 0:
            alive.add(event - 1)
        else:
            alive.discard(-event - 1)
    found = [history.records[number] for number in alive if not history.records[number].host]
    found.sort(key=lambda record: (-record.size, record.number))
    return [
        {
            "module": record.module,
            "shape": record.shape,
            "dtype": record.dtype,
            "bytes": record.size,
            "component": record.component or "temporary",
        }
        for record in found[:PEAK_TENSORS]
    ]


def _thinned(levels: list[_Level]) -> list[_Level]:
    """The highest of each stretch."""
    stretch = max(1, -(-len(levels) // TIMELINE_POINTS))
    return [max(levels[i : i + stretch], key=lambda level: level[1]) for i in range(0, len(levels), stretch)]
