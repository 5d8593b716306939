"""The correction of an estimate by measured runs: a pure function of a budget and the measurements."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..budget import Budget, Components, Learned, Peak, Phase, RankPeak, Span
from ..common.sizes import format_gib
from .evidence import (
    MECHANISMS,
    MOST_JOBS,
    OUTSIDE,
    STEP,
    Evidence,
    JointErrors,
    Mechanism,
    Scales,
    Subject,
    collect_evidence,
    differences,
    joint_errors,
    kinship,
    run_noise,
    scales,
    without_evidence,
)
from .measurement import Measurement, Predicted

# The words for a correction: where, how often and when the job or one near it was measured, and what follows.


_NAMES = {
    "model.shape": "another model of its family",
    "training.micro_batch": "micro-batch {}",
    "training.sequence_length": "sequence length {}",
    "training.gradient_accumulation": "gradient accumulation {}",
    "training.optimizer": "optimizer {}",
    "lora.rank": "LoRA rank {}",
    "lora.targets": "other LoRA targets",
    "parallel.data_shard": "{} shards",
    "parallel.data_replicate": "{} replicas",
}
_MOST_NAMED = 3


def correction_words(evidence: Sequence[Evidence], subject: Subject, peak: Peak, before: Peak) -> str:
    """Return the sentence that goes with a corrected figure.

    Args:
        evidence: what it rests on, the nearest first.
        subject: what is estimated.
        peak: the corrected peak.
        before: the uncorrected peak.
    """
    first = evidence[0]
    figure = f"{format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    rest = f"; uncorrected {format_gib(before.device_bytes)}"
    seen, expected = (
        _seen(first),
        "expected" if first.runs[0].observed.device_bytes is not None else "expected on the GPU",
    )
    others = len(evidence) - 1
    also = f", and {others} other {'job' if others == 1 else 'jobs'}" if others else ""
    if first.same:
        return f"{_times(first, subject)}: {seen}{also}; {expected} {figure}{rest}"
    shares = kinship(first.subject, subject)
    said = {name for error in first.errors for name in error.mechanisms if shares[name] > 0}
    if said and said.issubset(OUTSIDE):
        return f"a job on this card was {_times(first, subject)}{also}: its CUDA context counts here; {figure}{rest}"
    if not others and len(first.runs) == 1 and _width(peak) > _width(before):
        rest += "; a wider range, from one run"
    return f"{_times(first, subject)}: {seen} {_at(first, subject)}{also}; this job scaled from it: {figure}{rest}"


def _width(peak: Peak) -> int:
    return peak.high_bytes - peak.low_bytes


def _times(evidence: Evidence, subject: Subject) -> str:
    here = (
        "here" if evidence.subject.machine and evidence.subject.machine == subject.machine else "on this kind of card"
    )
    count, day = len(evidence.runs), time.strftime("%Y-%m-%d", time.localtime(evidence.time))
    if count == 1:
        return f"measured {here} once, on {day}"
    return f"measured {here} {count} times, last on {day}"


def _seen(evidence: Evidence) -> str:
    """Return the highest figure of the newest run."""
    observed = evidence.runs[0].observed
    for size, name in (
        (observed.device_bytes, ""),
        (observed.reserved_bytes, " reserved"),
        (observed.allocated_bytes, " allocated"),
    ):
        if size is not None:
            return f"{format_gib(size)} GiB{name}"
    return "n/a"


def _at(evidence: Evidence, subject: Subject) -> str:
    """Return in what the measured job differs."""
    changes = differences(evidence.subject, subject)
    named = [_NAMES[name].format(value) for name, value in changes.items() if name in _NAMES and value is not None]
    if not named:
        return "with other settings" if changes else "by the same settings"
    return (
        f"at {', '.join(named[:_MOST_NAMED])}"
        if not named[0].startswith("another")
        else f"by {', '.join(named[:_MOST_NAMED])}"
    )


_LEAST_SHARE = 0.3
"""Least share of a mechanism's error that makes a measured job near enough to be named."""
_LEAST_CHANGE = 0.003
"""A correction below this share of the figure that narrows nothing is none."""
_LEAST_RATIO, _MOST_RATIO = 0.12, 6.0
"""Bounds of a corrected range, as a share of the uncorrected one."""
_EVEN = 0.8
"""Least share of half the width that either side of a corrected range has."""
_STEP_COMPONENTS = ("activations", "logits", "temporary")


def corrected(
    budget: Budget, subject: Subject, measurements: Iterable[Measurement], *, now: float, version: str
) -> Budget:
    """Return the budget corrected by measured runs, with the words that say so; as it is where these say nothing.

    Args:
        budget: an estimate, not corrected yet.
        subject: its job without names, and the place in which it would run.
        measurements: runs on the same machine or the same card.
        now: Unix seconds.
        version: of vramtop.
    """
    if budget.learned is not None or without_evidence(budget):
        return budget
    predicted = Predicted.of(budget, version)
    subject = replace(subject, peak=predicted.phase)
    known = tuple(measurements)
    subject = _with_usual_versions(subject, known)
    own = scales(predicted)
    near = _nearest(collect_evidence(known, subject, predicted, budget.method), subject, own)
    if not near:
        return budget
    errors = joint_errors(near, subject, own, now).of_a_run(run_noise(near, predicted))
    found = spread_errors(budget, predicted, errors, own)
    peak = found.peak
    change = abs(peak.device_bytes - budget.peak.device_bytes)
    if change < _LEAST_CHANGE * budget.peak.device_bytes and not _is_narrower(peak, budget.peak):
        return budget
    runs = [run for each in near for run in each.runs]
    learned = Learned(
        sentence=correction_words(near, subject, peak, budget.peak),
        runs=len(runs),
        jobs=len(near),
        same_job=any(each.same for each in near),
        last=max(run.time for run in runs),
        errors={name: round(size) for name, size in errors.mechanisms.items()},
        uncorrected=budget.peak,
        uncorrected_outside_bytes=predicted.outside_bytes,
        uncorrected_steady_bytes=budget.steady_device_bytes,
    )
    return replace(found, learned=learned)


def spread_errors(budget: Budget, predicted: Predicted, errors: JointErrors, own: Scales) -> Budget:
    """Return the budget with errors added to its figures, ranges, components and phases.

    Args:
        budget: an estimate, not corrected yet.
        predicted: what it predicts.
        errors: its expected errors.
        own: the errors that its ranges allow for.
    """
    peak = _corrected_peak(budget.peak, predicted, errors, own)
    more = peak.device_bytes - budget.peak.device_bytes
    return replace(
        budget,
        peak=peak,
        phases=tuple(_corrected_phase(phase, budget, errors, peak) for phase in budget.phases),
        steady_device_bytes=max(0, budget.steady_device_bytes + more),
        stages=tuple(_corrected_stage(stage, budget.peak, peak) for stage in budget.stages),
    )


def uncorrected(budget: Budget) -> Budget:
    """Return a budget with the peak and the bytes between steps as they were estimated."""
    learned = budget.learned
    if learned is None:
        return budget
    return replace(budget, peak=learned.uncorrected, steady_device_bytes=learned.uncorrected_steady_bytes, learned=None)


def _with_usual_versions(subject: Subject, measurements: Iterable[Measurement]) -> Subject:
    """Return the subject with those versions that nobody states taken from the newest run of its framework here."""
    framework = subject.job.training.framework
    runs = [run for run in measurements if run.job.training.framework == framework]
    here = [run for run in runs if run.machine and run.machine == subject.machine] or runs
    newest = max(here, key=lambda run: run.time, default=None)
    if newest is None:
        return subject
    driver = newest.driver if newest.machine == subject.machine else None
    versions = {**newest.versions, **subject.versions}
    return replace(subject, versions=versions, driver=subject.driver or driver)


def _nearest(evidence: Iterable[Evidence], subject: Subject, own: Scales) -> tuple[Evidence, ...]:
    """Return the evidence that says most about a subject, the nearest first."""
    ranked = []
    for each in evidence:
        shares = kinship(each.subject, subject)
        errors = [error for error in each.errors if any(shares[name] >= _LEAST_SHARE for name in error.mechanisms)]
        said = {name for error in errors for name in error.mechanisms}
        value = sum(shares[name] * own.of(name) for name in said)
        if value > 0:
            ranked.append((not each.same, -value, -each.time, replace(each, errors=tuple(errors))))
    ranked.sort(key=lambda item: item[:3])
    return tuple(each for *_, each in ranked[:MOST_JOBS])


def _corrected_peak(peak: Peak, predicted: Predicted, errors: JointErrors, own: Scales) -> Peak:
    found = errors.mechanisms
    step = _limited(found["fixed"] + found["tokens"], predicted)
    allocated = peak.allocated_bytes + step
    reserved = max(allocated, peak.reserved_bytes + step + round(found["slack"]))
    outside = max(0, peak.device_bytes - peak.reserved_bytes + round(found["context"] + found["nccl"]))
    device = reserved + outside
    device_range = _corrected_span(peak.device_range, peak.device_bytes, device, errors.device, own.joint(MECHANISMS))
    allocated_range = peak.allocated_range and _corrected_span(
        peak.allocated_range, peak.allocated_bytes, allocated, errors.allocated, own.joint(STEP)
    )
    reserved_range = peak.reserved_range and _corrected_span(
        peak.reserved_range, peak.reserved_bytes, reserved, errors.reserved, own.joint((*STEP, "slack"))
    )
    least = predicted.components.weights
    return replace(
        peak,
        components=_corrected_components(
            peak.components, errors, step, outside - peak.device_bytes + peak.reserved_bytes
        ),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=max(device_range.low_bytes, min(least, device)),
        high_bytes=device_range.high_bytes,
        allocated_range=allocated_range,
        reserved_range=reserved_range,
    )


def _limited(error: float, predicted: Predicted) -> int:
    """Return the error of the allocated bytes; a step has no less than what it computes with."""
    parts = predicted.components
    floor = parts.weights + parts.gradients // 2 + parts.optimizer // 2
    return round(max(error, min(0, floor - predicted.allocated_bytes)))


def _corrected_span(span: Span, before: int, after: int, spread: float, prior: float) -> Span:
    """Return a range around the corrected figure, as wide as what remains unknown."""
    ratio = min(_MOST_RATIO, max(_LEAST_RATIO, spread / max(1.0, prior)))
    below, above = even_sides(span, before)
    return Span(max(0, after - round(ratio * below)), after + round(ratio * above))


def even_sides(span: Span, size: int) -> tuple[float, float]:
    """Return the bytes below and above a figure in its range, neither much less than the other.

    What a range has on one side more is what the rules may leave out on any stack; the errors that are learned, and
    those of each job's own, may have either sign.
    """
    below, above = (max(0, each) for each in (size - span.low_bytes, span.high_bytes - size))
    least = _EVEN * (below + above) / 2
    return max(below, least), max(above, least)


def _corrected_components(parts: Components, errors: JointErrors, step: int, outside: int) -> Components:
    """Return components that sum up to the corrected figures."""
    sizes: dict[str, int] = dict(parts.items())
    scaled = {name: sizes[name] for name in _STEP_COMPONENTS if sizes[name]}
    whole = sum(scaled.values())
    fixed = round(errors.mechanisms["fixed"])
    tokens = step - fixed
    if not whole or whole + tokens < 0:
        fixed, tokens = step, 0
    for name, size in scaled.items():
        sizes[name] += round(tokens * size / whole)
    sizes["temporary"] += step - (sum(sizes.values()) - parts.total_bytes)
    nccl = min(outside, round(errors.mechanisms["nccl"])) if sizes["communication"] else 0
    sizes["communication"] = max(0, sizes["communication"] + nccl)
    sizes["context"] += outside - nccl
    return _without_negative(sizes)


def _without_negative(sizes: dict[str, int]) -> Components:
    """Return components of the same sum; what would be below zero is taken from the largest."""
    lacking = sum(min(0, size) for size in sizes.values())
    sizes = {name: max(0, size) for name, size in sizes.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] = max(0, sizes[largest] + lacking)
    return Components(**sizes)


def _corrected_phase(phase: Phase, budget: Budget, errors: JointErrors, peak: Peak) -> Phase:
    """Return a phase with the errors in proportion to its own bytes."""
    outside = peak.device_bytes - peak.reserved_bytes - (budget.peak.device_bytes - budget.peak.reserved_bytes)
    if phase.name == budget.peak.phase:
        return replace(phase, components=peak.components, outside_bytes=max(0, phase.outside_bytes + outside))
    before = budget.peak.components
    whole = sum(getattr(before, name) for name in _STEP_COMPONENTS)
    own = sum(getattr(phase.components, name) for name in _STEP_COMPONENTS)
    share = own / whole if whole else 0.0
    step = round(errors.mechanisms["fixed"] * (phase.name != "loading") + min(1.0, share) * errors.mechanisms["tokens"])
    components = _corrected_components(phase.components, errors, max(step, -own), outside)
    return replace(phase, components=components, outside_bytes=max(0, phase.outside_bytes + outside))


def _corrected_stage(stage: RankPeak, before: Peak, after: Peak) -> RankPeak:
    def scale(size: int, old: int, new: int) -> int:
        return round(size * new / old) if old else size

    return RankPeak(
        device_bytes=scale(stage.device_bytes, before.device_bytes, after.device_bytes),
        low_bytes=scale(stage.low_bytes, before.low_bytes, after.low_bytes),
        high_bytes=scale(stage.high_bytes, before.high_bytes, after.high_bytes),
    )


def _is_narrower(peak: Peak, before: Peak) -> bool:
    return peak.high_bytes - peak.low_bytes < 0.97 * (before.high_bytes - before.low_bytes)


# A correction carried to a changed job, for searches and sweeps: the job's own errors, without the measurements.
#
# What is known of a job's errors is taken as known; in the changed job each mechanism's error is the part that the
# two share, in proportion to the bytes in doubt.


def carried(changed: Budget, like: Budget) -> Budget:
    """Return the budget of a changed job corrected like the job itself; as it is where that was not corrected.

    Args:
        changed: of the changed job, not corrected.
        like: of the job; its correction is carried over.
    """
    learned = like.learned
    if learned is None or changed.learned is not None:
        return changed
    before = Predicted.of(like, "")
    after = Predicted.of(changed, "")
    shares = kinship(_subject(changed, after), _subject(like, before))
    had, has = scales(before), scales(after)
    errors: dict[Mechanism, float] = {
        name: shares[name] * _ratio(has, had, name) * learned.errors.get(name, 0) for name in MECHANISMS
    }
    kept = {figure: _kept(like.peak, learned.uncorrected, figure) for figure in ("allocated", "reserved", "device")}
    share = min(shares["tokens"], shares["fixed"])
    left = {figure: (share * share * known * known + 1 - share * share) ** 0.5 for figure, known in kept.items()}
    found = JointErrors(
        mechanisms=errors,
        allocated=left["allocated"] * has.joint(STEP),
        reserved=left["reserved"] * has.joint((*STEP, "slack")),
        device=left["device"] * has.joint(MECHANISMS),
    )
    return replace(spread_errors(changed, after, found, has), learned=None)


def _subject(budget: Budget, predicted: Predicted) -> Subject:
    """Return the subject of a search: model and place are the same for all of its jobs."""
    return Subject(job=budget.job, shape="", hidden="", card=None, machine="", peak=predicted.phase)


def _ratio(has: Scales, had: Scales, name: Mechanism) -> float:
    return has.of(name) / had.of(name) if had.of(name) else 0.0


def _kept(after: Peak, before: Peak, figure: str) -> float:
    """Return how wide the corrected range is, as a share of the uncorrected one."""
    spans = getattr(after, f"{figure}_range"), getattr(before, f"{figure}_range")
    if spans[0] is None or spans[1] is None:
        return 1.0
    width: int = spans[0].high_bytes - spans[0].low_bytes
    return width / max(1.0, sum(even_sides(spans[1], getattr(before, f"{figure}_bytes"))))
