"""Converts a budget to JSON (schema 1) and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..common import InputError
from ..job import job_from_mapping, job_to_mapping
from ..job.effective_batch import effective_batch
from .budget import (
    Budget,
    ComponentName,
    Components,
    LargeTensor,
    Method,
    ModelFacts,
    Peak,
    Phase,
    PhaseMark,
    PhaseName,
    RankPeak,
    Timeline,
)
from .host_need import HostNeed
from .learned import Learned
from .serving_need import ServingNeed

if TYPE_CHECKING:
    from .json_types import BudgetJson, TimelineJson

SCHEMA: Final = 1


def budget_to_json(budget: Budget) -> "BudgetJson":
    """Return plain dicts and lists; what is unknown is left out (``largest``, ``timeline``, ``host``, ``learned``)."""
    found: BudgetJson = {
        "schema": SCHEMA,
        "job": job_to_mapping(budget.job),
        "model": asdict(budget.model),
        "method": budget.method,
        "phases": [
            {
                "name": phase.name,
                "components": asdict(phase.components),
                "allocated_bytes": phase.allocated_bytes,
            }
            for phase in budget.phases
        ],
        "peak": asdict(budget.peak),
        "steady_device_bytes": budget.steady_device_bytes,
        "assumptions": list(budget.assumptions),
        "warnings": list(budget.warnings),
    }
    if budget.largest:
        found["largest"] = [asdict(tensor) for tensor in budget.largest]
    if budget.stages:
        found["stages"] = [asdict(stage) for stage in budget.stages]
    if budget.host is not None:
        found["host"] = asdict(budget.host)
    if budget.serving is not None:
        found["serving"] = asdict(budget.serving)
    if budget.learned is not None:
        found["learned"] = asdict(budget.learned)
    batch = effective_batch(budget.job)
    if batch is not None:
        found["effective_batch"] = batch.to_json()
    if budget.timeline is not None:
        found["timeline"] = _timeline_to_json(budget.timeline)
    return found


def budget_from_json(data: Mapping[str, Any]) -> Budget:
    """Return the budget that ``budget_to_json`` wrote; unknown keys are ignored.

    Raises:
        InputError: it is no such JSON, or has another schema.
    """
    try:
        read = msgspec.convert(data, _Budget)
    except msgspec.ValidationError as error:
        raise InputError(f"this is no budget as vramtop writes it: {error}") from None
    if read.schema != SCHEMA:
        raise InputError(
            f"this budget has schema {read.schema}, and this vramtop reads schema {SCHEMA} only; estimate the job again"
        )
    return Budget(
        job=job_from_mapping(read.job, where="the budget's job"),
        model=read.model,
        method=read.method,
        phases=tuple(
            Phase(
                name=phase.name,
                components=phase.components,
                outside_bytes=phase.components.total_bytes - phase.allocated_bytes,
            )
            for phase in read.phases
        ),
        peak=read.peak,
        steady_device_bytes=read.steady_device_bytes,
        assumptions=read.assumptions,
        warnings=read.warnings,
        largest=read.largest,
        timeline=_timeline_from_json(read.timeline) if read.timeline else None,
        stages=read.stages,
        host=read.host,
        serving=read.serving,
        learned=read.learned,
    )


class _Phase(msgspec.Struct, frozen=True):
    name: PhaseName
    components: Components
    allocated_bytes: int


class _Timeline(msgspec.Struct, frozen=True):
    events: tuple[int, ...]
    components: dict[ComponentName, tuple[int, ...]]
    reserved_bytes: tuple[int, ...]
    outside_bytes: int
    phases: tuple[PhaseMark, ...]


class _Budget(msgspec.Struct, frozen=True):
    schema: int
    job: dict[str, Any]
    model: ModelFacts
    method: Method
    phases: tuple[_Phase, ...]
    peak: Peak
    steady_device_bytes: int
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    largest: tuple[LargeTensor, ...] = ()
    timeline: _Timeline | None = None
    stages: tuple[RankPeak, ...] = ()
    host: HostNeed | None = None
    serving: ServingNeed | None = None
    learned: Learned | None = None


def _timeline_to_json(timeline: Timeline) -> "TimelineJson":
    """Return the timeline by columns, without components that stay empty."""
    names = [name for name, _ in Components().items()]
    columns = {name: [getattr(level, name) for level in timeline.levels] for name in names}
    return {
        "events": list(timeline.events),
        "components": {name: sizes for name, sizes in columns.items() if any(sizes)},
        "reserved_bytes": list(timeline.reserved_bytes),
        "outside_bytes": timeline.outside_bytes,
        "phases": [asdict(mark) for mark in timeline.phases],
    }


def _timeline_from_json(read: _Timeline) -> Timeline:
    columns = (read.events, read.reserved_bytes, *read.components.values())
    if {len(column) for column in columns} != {len(read.events)}:
        raise InputError("this is no budget as vramtop writes it: the columns of its timeline differ in length")
    rows = zip(*read.components.values(), strict=True)
    return Timeline(
        events=read.events,
        levels=tuple(Components(**dict(zip(read.components, row, strict=True))) for row in rows),
        reserved_bytes=read.reserved_bytes,
        outside_bytes=read.outside_bytes,
        phases=read.phases,
    )
