"""Summary of an allocation history: phases and their peaks by component, a timeline, the largest tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .allocator_blocks import RELEASED, RETURNED, USED_ELSEWHERE
from .history import COMPONENTS, REHEARSED, AllocationHistory, PhaseSpan, StorageRecord, phase_spans

_Level = tuple[int, int, tuple[int, ...]]
"""Index of an event, the bytes allocated after it, and those bytes by component."""
MAX_PEAK_TENSORS = 20
MAX_TIMELINE_POINTS = 500
MEASURED_STEP = 2
"""The first step also creates the optimizer's states; from the second on, steps repeat."""


def summarize(history: AllocationHistory, step: int = MEASURED_STEP) -> dict[str, Any]:
    """Return phases, timeline and largest tensors of a step.

    Every figure is in bytes; the components of a phase sum to its ``allocated``. Loading is its end, but for a program
    whose peak is before that.
    """
    all_spans = phase_spans(history)
    spans = [span for span in all_spans if span.step == step]
    loading_end = next(span.start for span in all_spans if span.step > 0)
    present = {record.component for record in history.records}
    allocated = dict.fromkeys((*COMPONENTS, *(each for each in REHEARSED if each in present)), 0)
    total = most = most_at = 0
    for span in all_spans:
        for index in range(span.start, min(span.end, loading_end)):
            total += _apply_event(allocated, history.records, history.events[index])
            if total > most and span.name == "loading":
                most, most_at = total, index
    phases: dict[str, dict[str, Any]] = {"loading": {"allocated": total, "components": dict(allocated)}}
    for event in history.events[loading_end : spans[0].start]:
        _apply_event(allocated, history.records, event)
    points, peak_event = _measure_phases(history, spans, allocated, phases)
    if most > max(phase["allocated"] for phase in phases.values()):
        peak_event = most_at
        parts = dict.fromkeys(allocated, 0)
        for event in history.events[: most_at + 1]:
            _apply_event(parts, history.records, event)
        parts["weights"] += parts["temporary"]  # those that are gone before a step have no other name
        parts["temporary"] = 0
        phases["loading"] = {"allocated": most, "components": parts}
    return {
        "phases": phases,
        "peak_tensors": [
            {
                "module": each.module,
                "shape": each.shape,
                "dtype": each.dtype,
                "bytes": each.size,
                "component": each.component or "temporary",
                "line": each.line,
                "own_line": each.own_line,
            }
            for each in held_at(history, peak_event)[:MAX_PEAK_TENSORS]
        ],
        "peak_event": peak_event,
        "timeline": [(index, total) for index, total, _ in points],
        "timeline_components": {name: [parts[i] for _, _, parts in points] for i, name in enumerate(allocated)},
        "timeline_phases": [[span.name, span.start] for span in spans],
    }


def allocator_events(history: AllocationHistory) -> Iterator[tuple[int, tuple[int, int | None, int]]]:
    """Yield the index of each event and the event for the allocator model.

    An event is ``(record, bytes, stream)`` or, for a release, ``(record, None, what)`` with one of the allocator's
    ``RELEASED``, ``USED_ELSEWHERE`` and ``RETURNED``; host memory is left out.
    """
    returns = iter([*history.returns, (len(history.events), -1)])
    at, returned = next(returns)
    for index, event in enumerate(history.events):
        while at <= index and returned >= 0:
            if not history.records[returned].host:
                yield index, (returned, None, RETURNED)
            at, returned = next(returns)
        record = history.records[abs(event) - 1]
        if not record.host:
            if event > 0:
                yield index, (record.number, record.size, record.stream)
            else:
                yield index, (record.number, None, USED_ELSEWHERE if record.used_on else RELEASED)


def _measure_phases(
    history: AllocationHistory, spans: list[PhaseSpan], allocated: dict[str, int], phases: dict[str, dict[str, Any]]
) -> tuple[list[_Level], int]:
    """Add each phase's peak to `phases`; return the timeline's levels, and the event of the highest peak.

    Of the levels after every event, the timeline has the highest of each of at most ``MAX_TIMELINE_POINTS`` stretches
    of equal length.
    """
    levels: list[_Level] = []
    stretch = max(1, -(-sum(span.end - span.start for span in spans) // MAX_TIMELINE_POINTS))
    number, total = 0, sum(allocated.values())
    peak = (-1, spans[0].start)
    for span in spans:
        highest = phases.setdefault(span.name, {"allocated": -1})
        for index in range(span.start - 1, span.end):  # the level at the start of the phase counts too
            if index >= span.start:
                total += _apply_event(allocated, history.records, history.events[index])
                if number % stretch == 0:
                    levels.append((index, total, tuple(allocated.values())))
                elif total > levels[-1][1]:
                    levels[-1] = (index, total, tuple(allocated.values()))
                number += 1
            if total > highest["allocated"]:
                highest.update(allocated=total, components=dict(allocated))
            if total > peak[0]:
                peak = (total, index)
    return levels, peak[1]


def _apply_event(allocated: dict[str, int], records: list[StorageRecord], event: int) -> int:
    """Add an event to what is allocated by component; return by how much it changes the sum."""
    record = records[abs(event) - 1]
    if record.host:
        return 0
    change = record.size if event > 0 else -record.size
    allocated[record.component or "temporary"] += change
    return change


def held_at(history: AllocationHistory, index: int) -> list[StorageRecord]:
    """Return what is allocated after an event, the largest first."""
    live: set[int] = set()
    for event in history.events[: index + 1]:
        if event > 0:
            live.add(event - 1)
        else:
            live.discard(-event - 1)
    records = [history.records[number] for number in live if not history.records[number].host]
    return sorted(records, key=lambda record: (-record.size, record.number))
