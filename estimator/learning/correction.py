"""The correction of an estimate by measured runs of the same job: what was seen, and how far it varied."""

import time
from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from statistics import median_low

from ..budget import Budget, Components, Learned, Peak, Phase, RankPeak, Span
from ..common.records import replace
from ..common.sizes import MIB, format_gib
from .measurement import Measurement, Observed, Predicted
from .subject import Subject

MOST_RUNS = 5
"""Runs that count, the newest ones: a change of the user's stack is believed after three."""
_LEAST_CHANGE = 0.003
"""A correction below this share of the figure that narrows nothing is none."""
_NARROWER = 0.97
_NOISE = {"allocated": (16 * MIB, 0.004), "reserved": (16 * MIB, 0.004), "device": (32 * MIB, 0.008)}
"""Bytes, and share of the figure, by which one run of a job may lie beyond the others: batches differ in what they pad
and route. Readings of NVML also miss a peak between two of them."""
_READINGS_NOISE = (64 * MIB, 0.02)
_STEP_COMPONENTS = ("activations", "logits", "temporary")


def corrected(budget: Budget, subject: Subject, measurements: Iterable[Measurement]) -> Budget:
    """Return the budget corrected by measured runs of its job, with the words that say so; without any, as it is.

    Runs of other jobs say nothing, however near they are; nor do runs that leaked, failed or ended early.

    Args:
        budget: an estimate, not corrected yet.
        subject: its job without names, and the place in which it would run.
        measurements: runs.
    """
    if budget.learned is not None or budget.serving is not None or budget.job.is_served:
        return budget  # a server fills the memory that it is given
    runs = _runs_of(subject, measurements)
    if not runs:
        return budget
    before, predicted = budget.peak, Predicted.of(budget, "")
    spans = _observed_spans([run.observed for run in runs[:MOST_RUNS]])
    errors = _errors({name: size - getattr(before, f"{name}_bytes") for name, (size, _) in spans.items()})
    found = _add_errors(budget, errors, {name: span for name, (_, span) in spans.items()})
    change = abs(found.peak.device_bytes - before.device_bytes)
    is_narrower = _width(found.peak) < _NARROWER * _width(before)
    if change < _LEAST_CHANGE * before.device_bytes and not is_narrower:
        return budget
    learned = Learned(
        sentence=_sentence(runs, subject, found.peak, before),
        runs=len(runs[:MOST_RUNS]),
        jobs=1,
        same_job=True,
        last=runs[0].time,
        errors={
            "fixed": 0,
            "tokens": errors["step"],
            "slack": errors["slack"],
            "context": errors["outside"],
            "nccl": 0,
        },
        uncorrected=before,
        uncorrected_outside_bytes=predicted.outside_bytes,
        uncorrected_steady_bytes=budget.steady_device_bytes,
    )
    return replace(found, learned=learned)


def uncorrected(budget: Budget) -> Budget:
    """Return a budget with the peak and the bytes between steps as they were estimated."""
    learned = budget.learned
    if learned is None:
        return budget
    return replace(budget, peak=learned.uncorrected, steady_device_bytes=learned.uncorrected_steady_bytes, learned=None)


def carried(changed: Budget, like: Budget) -> Budget:
    """Return the budget of a changed job moved by the correction of the job itself, for searches and sweeps.

    What lies outside of the allocator is taken as it was; the rest in proportion to the bytes of the step. The range
    stays as wide as the estimate of the changed job has it, which was not measured.

    Args:
        changed: of the changed job, not corrected.
        like: of the job; its correction is carried over, if it has one.
    """
    learned = like.learned
    if learned is None or changed.learned is not None:
        return changed
    if changed.job == like.job:
        return like
    share = _step_bytes(changed.peak.components) / max(1, _step_bytes(learned.uncorrected.components))
    errors = {
        "step": round(share * learned.errors.get("tokens", 0)),
        "slack": round(share * learned.errors.get("slack", 0)),
        "outside": learned.errors.get("context", 0),
    }
    return _add_errors(changed, errors, {})


def _runs_of(subject: Subject, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the runs of a job with the newest one's releases, the newest first: of this machine, if there are any."""
    runs = [
        run
        for run in sorted(measurements, key=lambda run: -run.time)
        if run.is_complete and subject.is_same_job(Subject.of_measurement(run))
    ]
    runs = [run for run in runs if run.machine and run.machine == subject.machine] or runs
    return [run for run in runs if Subject.of_measurement(run).has_same_releases(Subject.of_measurement(runs[0]))]


def _observed_spans(seen: Sequence[Observed]) -> dict[str, tuple[int, Span]]:
    """Return the median of each figure that was seen, and the range in which the next run is expected."""
    found = {}
    for name, usual in _NOISE.items():
        sizes = [size for each in seen if (size := getattr(each, f"{name}_bytes")) is not None]
        if not sizes:
            continue
        is_sampled = name == "device" and all(each.device_source == "readings" for each in seen)
        least, share = _READINGS_NOISE if is_sampled else usual
        beyond = round(hypot(least, share * max(sizes)))
        found[name] = median_low(sizes), Span(min(sizes) - beyond, max(sizes) + beyond)
    return found


def _errors(seen: Mapping[str, int]) -> dict[str, int]:
    """Return the errors by part; an unobserved figure is taken to be as far off as the nearest observed one.

    Args:
        seen: error of each figure that was seen.
    """
    device = next((seen[name] for name in ("device", "reserved", "allocated") if name in seen), 0)
    reserved = seen.get("reserved", device if "device" in seen else seen.get("allocated", 0))
    allocated = seen.get("allocated", reserved)
    return {"step": allocated, "slack": reserved - allocated, "outside": device - reserved}


def _sentence(runs: Sequence[Measurement], subject: Subject, peak: Peak, before: Peak) -> str:
    """Return the words for a correction: where, how often and when the job was measured, and what follows."""
    here = "here" if runs[0].machine and runs[0].machine == subject.machine else "on this kind of card"
    day = time.strftime("%Y-%m-%d", time.localtime(runs[0].time))
    times = f"once, on {day}" if len(runs) == 1 else f"{len(runs)} times, last on {day}"
    figure = f"{format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    expected = "expected" if runs[0].observed.device_bytes is not None else "expected on the GPU"
    seen = _highest(runs[0].observed)
    return f"measured {here} {times}: {seen}; {expected} {figure}; uncorrected {format_gib(before.device_bytes)}"


def _highest(observed: Observed) -> str:
    for size, name in (
        (observed.device_bytes, ""),
        (observed.reserved_bytes, " reserved"),
        (observed.allocated_bytes, " allocated"),
    ):
        if size is not None:
            return f"{format_gib(size)} GiB{name}"
    return "n/a"


def _width(peak: Peak) -> int:
    return peak.high_bytes - peak.low_bytes


def _add_errors(budget: Budget, errors: Mapping[str, int], spans: Mapping[str, Span]) -> Budget:
    """Return the budget with errors added to its figures, components and phases.

    Args:
        budget: a budget.
        errors: bytes by part: step, slack, outside.
        spans: ranges of figures that were seen; the others move with their figures.
    """
    before = budget.peak
    peak = _corrected_peak(before, errors, spans)
    step, outside = peak.allocated_bytes - before.allocated_bytes, _outside(peak) - _outside(before)
    whole = _step_bytes(before.components)

    def corrected_phase(phase: Phase) -> Phase:
        own = _step_bytes(phase.components)
        share = 1.0 if phase.name == before.phase else min(1.0, own / whole if whole else 0.0)
        components = _corrected_components(phase.components, max(round(share * step), -own), outside)
        return replace(phase, components=components, outside_bytes=max(0, phase.outside_bytes + outside))

    return replace(
        budget,
        peak=replace(peak, components=_corrected_components(before.components, step, outside)),
        phases=tuple(map(corrected_phase, budget.phases)),
        steady_device_bytes=max(0, budget.steady_device_bytes + peak.device_bytes - before.device_bytes),
        stages=tuple(_corrected_stage(stage, before, peak) for stage in budget.stages),
    )


def _outside(peak: Peak) -> int:
    return peak.device_bytes - peak.reserved_bytes


def _step_bytes(parts: Components) -> int:
    return sum(getattr(parts, name) for name in _STEP_COMPONENTS)


def _corrected_peak(peak: Peak, errors: Mapping[str, int], spans: Mapping[str, Span]) -> Peak:
    """Return the peak with other figures and ranges; its components are as they were."""
    parts = peak.components
    computed_with = parts.weights + parts.gradients // 2 + parts.optimizer // 2
    step = max(errors["step"], min(0, computed_with - peak.allocated_bytes))
    allocated = peak.allocated_bytes + step
    reserved = max(allocated, peak.reserved_bytes + step + errors["slack"])
    device = reserved + max(0, _outside(peak) + errors["outside"])

    def span(name: str, old: Span | None, before: int, after: int) -> Span | None:
        found = spans.get(name)
        if found is None and old is not None:
            found = Span(old.low_bytes + after - before, old.high_bytes + after - before)
        return found and Span(max(0, min(found.low_bytes, after)), max(found.high_bytes, after))

    device_range = span("device", peak.device_range, peak.device_bytes, device) or peak.device_range
    return replace(
        peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=max(device_range.low_bytes, min(parts.weights, device)),
        high_bytes=device_range.high_bytes,
        allocated_range=span("allocated", peak.allocated_range, peak.allocated_bytes, allocated),
        reserved_range=span("reserved", peak.reserved_range, peak.reserved_bytes, reserved),
    )


def _corrected_components(parts: Components, step: int, outside: int) -> Components:
    """Return components that sum up to the corrected figures: the step's in proportion, what is outside in the context.

    Args:
        parts: components.
        step: bytes that the step takes more.
        outside: bytes that lie more outside of the allocator.
    """
    sizes: dict[str, int] = dict(parts.items())
    whole, left = _step_bytes(parts), step
    for name in _STEP_COMPONENTS if whole + step >= 0 else ():
        more = round(step * sizes[name] / whole) if whole else 0
        sizes[name] += more
        left -= more
    sizes["temporary"] += left
    sizes["context"] += outside
    lacking = sum(min(0, size) for size in sizes.values())
    sizes = {name: max(0, size) for name, size in sizes.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] = max(0, sizes[largest] + lacking)
    return Components(**sizes)


def _corrected_stage(stage: RankPeak, before: Peak, after: Peak) -> RankPeak:
    def scale(size: int, old: int, new: int) -> int:
        return round(size * new / old) if old else size

    return RankPeak(
        device_bytes=scale(stage.device_bytes, before.device_bytes, after.device_bytes),
        low_bytes=scale(stage.low_bytes, before.low_bytes, after.low_bytes),
        high_bytes=scale(stage.high_bytes, before.high_bytes, after.high_bytes),
    )
