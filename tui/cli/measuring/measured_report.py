"""A measurement beside its prediction, as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec

from vramtop.estimator.budget import Budget, Span
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.job.job_file.changes import job_to_mapping
from vramtop.estimator.trace.measure.measured_step import MeasuredStep, OutOfMemory

from ...draw.palette import peak_place
from ...draw.text_output import TextOutput, format_table
from .measure_job import MeasuredJob


def measured_json(found: MeasuredJob) -> dict[str, Any]:
    """Return the line of JSON about one job."""
    step, outside, budget = found.step, found.outside, found.budget
    measured: dict[str, Any] | None = None
    if step is not None:
        measured = {
            **step.to_json(),
            "process_bytes": outside.process_bytes,
            "device_bytes": outside.device_bytes,
            "context_bytes": outside.context_bytes,
            "stages": {stage: msgspec.to_builtins(found) for stage, found in outside.stages.items()},
        }
    error = found.error
    if step is not None and step.out_of_memory is not None:
        error = f"out of memory {step.out_of_memory.place}: {step.out_of_memory.message}"
    return {
        "schema": 1,
        "job": {**job_to_mapping(found.job), "name": found.job.label},
        "predicted": None if budget is None else peak_json(found, budget),
        "device": step.device if step else None,
        "card": found.card,
        "driver": found.driver,
        "versions": step.versions if step else {},
        "measured": measured,
        "error": error,
        "seconds": found.seconds,
        "notes": [*found.notes, *([f"Not predicted: {found.unpredicted}."] if found.unpredicted else [])],
    }


def peak_json(found: MeasuredJob, budget: Budget) -> dict[str, Any]:
    """Return the predicted peak; of a run on the CPU null for what only a GPU has."""
    peak, on_cpu = budget.peak, found.step is not None and found.step.device == "cpu"
    components: dict[str, int | None] = dict(peak.components.items())
    if on_cpu:
        components |= {"context": None, "communication": None}
    return {
        "method": budget.method,
        "phase": peak.phase,
        "components": components,
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": None if on_cpu else peak.reserved_bytes,
        "device_bytes": None if on_cpu else peak.device_bytes,
        "low_bytes": None if on_cpu else peak.low_bytes,
        "high_bytes": None if on_cpu else peak.high_bytes,
        "allocated_range": None if on_cpu or peak.allocated_range is None else asdict(peak.allocated_range),
        "reserved_range": None if on_cpu or peak.reserved_range is None else asdict(peak.reserved_range),
        "cache_bytes": None if on_cpu else peak.cache_bytes,
    }


_ALIGNED = "<>>>>"


def measured_lines(found: MeasuredJob, step: MeasuredStep, output: TextOutput) -> Iterator[str]:
    """Yield the figures side by side: torch's, NVML's, by component and by phase, then the notes."""
    budget, on_cpu = found.budget, step.device == "cpu"
    most = step.highest.allocated_bytes or (budget.peak.allocated_bytes if budget else 0)
    unit, name = (GIB, "GiB") if most >= GIB // 10 else (MIB, "MiB")
    yield from (output.paint(line, None, bold=True) for line in output.wrapped(_headline(found, step), further="  "))
    if step.out_of_memory is not None:
        yield from output.wrapped(_failure(step, step.out_of_memory, unit, name), further="  ")
    if budget is not None:
        yield from output.wrapped(f"predicted ({budget.method}): the peak {peak_place(budget)}", further="  ")
    yield ""
    rows = [(name, "measured", "predicted", "difference", "" if on_cpu else "range"), *_rows(found, step, unit)]
    yield from (output.text(line.rstrip()) for line in format_table(rows, _ALIGNED))
    notes = [*found.notes, *([f"not predicted: {found.unpredicted}"] if found.unpredicted else [])]
    if on_cpu:
        notes.append(
            "both figures are for the CPU, without CUDA context, cuBLAS workspaces and allocator cache; vramtop "
            "estimate includes these; a model with dropout takes more on a CPU, whose masks are as large as their input"
        )
    if on_cpu and found.job.parallel.cpu_offload != "none":
        notes.append("on a CPU, memory offloaded to the host is included")
    if step.highest.retries:
        notes.append(f"the allocator freed its cache {step.highest.retries} times because memory was full")
    if notes:
        yield ""
    for note in notes:
        yield from output.wrapped(f"note: {note}", further="  ")


def _headline(found: MeasuredJob, step: MeasuredStep) -> str:
    where = found.card or "a GPU" if step.device == "cuda" else "the CPU (a tiny model)"
    ranks = f"{len(step.ranks)} ranks on " if len(step.ranks) > 1 else ""
    versions = ", ".join(f"{name} {step.versions[name]}" for name in ("torch", "transformers") if name in step.versions)
    count = len(step.highest.allocated_by_step_bytes)
    steps = "" if step.out_of_memory or not count else f"{count} step{'s' * (count != 1)} on "
    return f"{found.job.label}: {steps}{ranks}{where}; {versions}"


def _failure(step: MeasuredStep, failed: OutOfMemory, unit: int, name: str) -> str:
    held = [
        f"{size / unit:.2f} {name} {word}"
        for size, word in ((failed.allocated_bytes, "allocated"), (failed.reserved_bytes, "reserved"))
        if size is not None
    ]
    rank = f" of rank {step.ranks.index(step.highest)}" if len(step.ranks) > 1 else ""
    return f"It ran out of memory {failed.place}{rank}, with {' and '.join(held)}: {failed.message}"


_PHASES = ("loading", "forward", "backward", "optimizer step")
_PARTS = ("weights", "gradients", "optimizer")
_UNKNOWN = "-"


def _rows(found: MeasuredJob, step: MeasuredStep, unit: int) -> Iterator[tuple[str, str, str, str, str]]:
    rank, budget, on_cpu = step.highest, found.budget, step.device == "cpu"
    peak = budget.peak if budget else None

    def text(size: int | None) -> str:
        return _UNKNOWN if size is None else f"{size / unit:.2f}"

    def row(name: str, seen: int | None, told: int | None, span: Span | None = None) -> tuple[str, str, str, str, str]:
        apart = _UNKNOWN if seen is None or not told else f"{100 * (seen - told) / told:+.1f} %"
        bounds = f"{span.low_bytes / unit:.2f} - {span.high_bytes / unit:.2f}" if span and not on_cpu else ""
        return name, text(seen), text(told), apart, bounds

    def both(name: str) -> tuple[str, str, str, str, str]:
        told = getattr(peak, f"{name}_bytes", None)
        return row(name, getattr(rank, f"{name}_bytes"), told, getattr(peak, f"{name}_range", None))

    yield both("allocated")
    if not on_cpu:
        outside, reserved = found.outside, rank.reserved_bytes
        device = outside.process_bytes if outside.process_bytes is not None else outside.device_bytes
        yield both("reserved")
        yield row("device (NVML)", device, peak.device_bytes if peak else None, peak.device_range if peak else None)
        outside_torch = None if device is None or reserved is None else device - reserved
        yield row("  outside torch", outside_torch, peak.device_bytes - peak.reserved_bytes if peak else None)
    for name in _PARTS:
        yield row(f"  {name}", rank.components.get(name), _whole_component(budget, name))
    for phase in _PHASES:
        seen = rank.phases.get(phase)
        told = next((each.allocated_bytes for each in budget.phases if each.name == phase), None) if budget else None
        if seen is not None or told is not None:
            yield row(f"allocated, {phase}", seen.allocated if seen else None, told)


def _whole_component(budget: Budget | None, name: str) -> int | None:
    """Return what a component takes where all of it exists: in some phase; of gradients, in the optimizer step."""
    if budget is None:
        return None
    step = budget.phase("optimizer step")
    if name == "gradients" and step is not None and step.components.gradients:
        return step.components.gradients
    most: int = max(getattr(phase.components, name) for phase in budget.phases)
    return most
