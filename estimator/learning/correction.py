"""The correction of an estimate by measured runs: a pure function of a budget and the measurements."""

import time
from collections.abc import Iterable, Sequence

from ..budget import Budget, Components, Learned, Peak, Phase, RankPeak, Span
from ..common.records import replace
from ..common.sizes import format_gib
from .measurement import Measurement, Predicted
from .offsets import FIGURES, PARTS, Errors, Evidence, Subject, collect_evidence, expected_errors, scales

# The words for a correction: where, how often and when the job or one of its kind was measured, and what follows.


def correction_words(evidence: Sequence[Evidence], subject: Subject, peak: Peak, before: Peak) -> str:
    """Return the sentence that goes with a corrected figure.

    Args:
        evidence: what it rests on, the nearest first.
        subject: what is estimated.
        peak: the corrected peak.
        before: the uncorrected peak.
    """
    first, others = evidence[0], len(evidence) - 1
    figure = f"{format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    rest = f"; uncorrected {format_gib(before.device_bytes)}"
    times, seen = _times(first, subject), _seen(first)
    also = f", and {others} other {'job' if others == 1 else 'jobs'}" if others else ""
    if first.same:
        expected = "expected" if first.runs[0].observed.device_bytes is not None else "expected on the GPU"
        return f"{times}: {seen}{also}; {expected} {figure}{rest}"
    if first.is_of_context:
        return f"a job on this card was {times}{also}: its CUDA context is used here; {figure}{rest}"
    if not others and len(first.runs) == 1 and _width(peak) > _width(before):
        rest += "; the range is wider, as there is only one run"
    return f"{times}: {seen} {_sizes(first.subject, subject)}{also}; this job scaled from it: {figure}{rest}"


def _width(peak: Peak) -> int:
    return peak.high_bytes - peak.low_bytes


def _times(evidence: Evidence, subject: Subject) -> str:
    is_here = evidence.subject.machine and evidence.subject.machine == subject.machine
    here = "here" if is_here else "on this kind of card"
    count, day = len(evidence.runs), time.strftime("%Y-%m-%d", time.localtime(evidence.runs[0].time))
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


def _sizes(measured: Subject, subject: Subject) -> str:
    """Return in which sizes the measured job differs."""
    if measured.shape != subject.shape:
        return "by another model of its family"
    job, other = measured.job, subject.job
    pairs = (
        ("micro-batch {}", job.training.micro_batch, other.training.micro_batch),
        ("sequence length {}", job.training.sequence_length, other.training.sequence_length),
        (
            "gradient accumulation {}",
            job.training.gradient_accumulation,
            other.training.gradient_accumulation,
        ),
        ("LoRA rank {}", job.lora and job.lora.rank, other.lora and other.lora.rank),
        ("{} shards", job.parallel.data_shard, other.parallel.data_shard),
        ("{} replicas", job.parallel.data_replicate, other.parallel.data_replicate),
    )
    named = [words.format(mine) for words, mine, its in pairs if mine != its]
    return f"at {', '.join(named)}" if named else "with other settings"


_LEAST_CHANGE = 0.003
"""A correction below this share of the figure that narrows nothing is none."""
_LEAST_RATIO, _MOST_RATIO = 0.12, 6.0
"""Bounds of a corrected range, as a share of the uncorrected one."""
_EVEN = 0.8
"""Least share of half the width that either side of a corrected range has."""
_NARROWER = 0.97
_NCCL_ERROR = 3.0
"""Error of a byte of NCCL relative to one of CUDA's context (``ranges.calibration``)."""
_STEP_COMPONENTS = ("activations", "logits", "temporary")


def corrected(budget: Budget, subject: Subject, measurements: Iterable[Measurement], *, version: str) -> Budget:
    """Return the budget corrected by measured runs, with the words that say so; as it is where these say nothing.

    Args:
        budget: an estimate, not corrected yet.
        subject: its job without names, and the place in which it would run.
        measurements: runs on the same card.
        version: of vramtop.
    """
    if budget.learned is not None or budget.serving is not None or budget.job.is_served:
        return budget  # a server fills the memory that it is given
    predicted = Predicted.of(budget, version)
    known = tuple(measurements)
    subject = _with_usual_versions(subject, known)
    evidence = collect_evidence(known, subject, predicted, budget.method)
    if not evidence:
        return budget
    errors = expected_errors(evidence, predicted)
    found = _add_errors(budget, predicted, errors)
    peak = found.peak
    change = abs(peak.device_bytes - budget.peak.device_bytes)
    is_narrower = _width(peak) < _NARROWER * _width(budget.peak)
    if change < _LEAST_CHANGE * budget.peak.device_bytes and not is_narrower:
        return budget
    runs = [run for each in evidence for run in each.runs]
    nccl = _nccl_share(predicted) * errors.outside
    learned = Learned(
        sentence=correction_words(evidence, subject, peak, budget.peak),
        runs=len(runs),
        jobs=len(evidence),
        same_job=evidence[0].same,
        last=max(run.time for run in runs),
        errors={
            "fixed": round(errors.fixed),
            "tokens": round(errors.step - errors.fixed),
            "slack": round(errors.slack),
            "context": round(errors.outside - nccl),
            "nccl": round(nccl),
        },
        uncorrected=budget.peak,
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


def _with_usual_versions(subject: Subject, measurements: Iterable[Measurement]) -> Subject:
    """Return the subject with those versions that nobody states taken from the newest run of its framework here."""
    framework = subject.job.training.framework
    runs = [run for run in measurements if run.job.training.framework == framework]
    here = [run for run in runs if run.machine and run.machine == subject.machine] or runs
    newest = max(here, key=lambda run: run.time, default=None)
    if newest is None:
        return subject
    return replace(subject, versions={**newest.versions, **subject.versions})


def _add_errors(budget: Budget, predicted: Predicted, errors: Errors) -> Budget:
    """Return the budget with errors added to its figures, ranges, components and phases."""
    before = budget.peak
    peak = _corrected_peak(before, predicted, errors)
    more = peak.device_bytes - before.device_bytes
    step, outside = peak.allocated_bytes - before.allocated_bytes, _outside(peak) - _outside(before)
    nccl = _nccl_share(predicted)
    whole = _step_bytes(before.components)

    def corrected_phase(phase: Phase) -> Phase:
        own = _step_bytes(phase.components)
        share = 1.0 if phase.name == before.phase else min(1.0, own / whole if whole else 0.0)
        components = _corrected_components(phase.components, max(round(share * step), -own), outside, nccl)
        return replace(phase, components=components, outside_bytes=max(0, phase.outside_bytes + outside))

    return replace(
        budget,
        peak=replace(peak, components=_corrected_components(before.components, step, outside, nccl)),
        phases=tuple(map(corrected_phase, budget.phases)),
        steady_device_bytes=max(0, budget.steady_device_bytes + more),
        stages=tuple(_corrected_stage(stage, before, peak) for stage in budget.stages),
    )


def _outside(peak: Peak) -> int:
    return peak.device_bytes - peak.reserved_bytes


def _step_bytes(parts: Components) -> int:
    return sum(getattr(parts, name) for name in _STEP_COMPONENTS)


def _corrected_peak(peak: Peak, predicted: Predicted, errors: Errors) -> Peak:
    """Return the peak with other figures and ranges; its components are as they were."""
    parts = predicted.components
    computed_with = parts.weights + parts.gradients // 2 + parts.optimizer // 2
    step = round(max(errors.step, min(0, computed_with - peak.allocated_bytes)))
    allocated = peak.allocated_bytes + step
    reserved = max(allocated, peak.reserved_bytes + step + round(errors.slack))
    device = reserved + max(0, _outside(peak) + round(errors.outside))
    device_range = _corrected_span(peak.device_range, peak.device_bytes, device, errors.widths["device"])
    return replace(
        peak,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=max(device_range.low_bytes, min(parts.weights, device)),
        high_bytes=device_range.high_bytes,
        allocated_range=peak.allocated_range
        and _corrected_span(peak.allocated_range, peak.allocated_bytes, allocated, errors.widths["allocated"]),
        reserved_range=peak.reserved_range
        and _corrected_span(peak.reserved_range, peak.reserved_bytes, reserved, errors.widths["reserved"]),
    )


def _corrected_span(span: Span, before: int, after: int, width: float) -> Span:
    """Return a range around the corrected figure, as wide as what remains unknown."""
    ratio = min(_MOST_RATIO, max(_LEAST_RATIO, width))
    below, above = _even_sides(span, before)
    return Span(max(0, after - round(ratio * below)), after + round(ratio * above))


def _even_sides(span: Span, size: int) -> tuple[float, float]:
    """Return the bytes below and above a figure in its range, neither much less than the other.

    What a range has on one side more is what the rules may leave out on any stack; the errors that are learned, and
    those of each job's own, may have either sign.
    """
    below, above = (max(0, each) for each in (size - span.low_bytes, span.high_bytes - size))
    least = _EVEN * (below + above) / 2
    return max(below, least), max(above, least)


def _corrected_components(parts: Components, step: int, outside: int, nccl: float) -> Components:
    """Return components that sum up to the corrected figures.

    Args:
        parts: components.
        step: bytes that the step takes more.
        outside: bytes that lie more outside of the allocator.
        nccl: share of these that is NCCL's.
    """
    sizes: dict[str, int] = dict(parts.items())
    whole, left = _step_bytes(parts), step
    for name in _STEP_COMPONENTS if whole + step >= 0 else ():
        more = round(step * sizes[name] / whole) if whole else 0
        sizes[name] += more
        left -= more
    sizes["temporary"] += left
    sizes["communication"] += round(nccl * outside)
    sizes["context"] += outside - round(nccl * outside)
    lacking = sum(min(0, size) for size in sizes.values())
    sizes = {name: max(0, size) for name, size in sizes.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] = max(0, sizes[largest] + lacking)
    return Components(**sizes)


def _nccl_share(predicted: Predicted) -> float:
    """Return NCCL's share of an error outside of the allocator: of the variances that the calibration gives."""
    context, nccl = predicted.components.context, predicted.outside_bytes - predicted.components.context
    return (_NCCL_ERROR * nccl) ** 2 / max(1.0, context**2 + (_NCCL_ERROR * nccl) ** 2) if nccl > 0 else 0.0


def _corrected_stage(stage: RankPeak, before: Peak, after: Peak) -> RankPeak:
    def scale(size: int, old: int, new: int) -> int:
        return round(size * new / old) if old else size

    return RankPeak(
        device_bytes=scale(stage.device_bytes, before.device_bytes, after.device_bytes),
        low_bytes=scale(stage.low_bytes, before.low_bytes, after.low_bytes),
        high_bytes=scale(stage.high_bytes, before.high_bytes, after.high_bytes),
    )


def carried(changed: Budget, like: Budget) -> Budget:
    """Return the budget of a changed job corrected like the job itself, for searches and sweeps.

    The offsets of the job count for the changed one if it is of the same kind, in proportion to the bytes in doubt.

    Args:
        changed: of the changed job, not corrected.
        like: of the job; its correction is carried over, if it has one.
    """
    learned = like.learned
    if learned is None or changed.learned is not None:
        return changed
    before, after = Predicted.of(like, ""), Predicted.of(changed, "")
    one, other = (Subject(job=budget.job, shape="", hidden="", card=None, machine="") for budget in (like, changed))
    is_of_kind = one.is_of_kind(other) and before.phase == after.phase
    told = {"step": is_of_kind, "slack": is_of_kind, "outside": one.has_same_context(other)}
    had, has = scales(before), scales(after)
    share = {part: told[part] * has[part] / had[part] for part in PARTS}
    seen = learned.errors
    fixed = seen.get("fixed", 0)
    errors = Errors(
        step=told["step"] * fixed + share["step"] * seen.get("tokens", 0),
        fixed=told["step"] * fixed,
        slack=share["slack"] * seen.get("slack", 0),
        outside=share["outside"] * (seen.get("context", 0) + seen.get("nccl", 0)),
        widths={
            figure: _width_ratio(like.peak, learned.uncorrected, figure) if is_of_kind else 1.0 for figure in FIGURES
        },
    )
    return _add_errors(changed, after, errors)


def _width_ratio(after: Peak, before: Peak, figure: str) -> float:
    """Return how wide the corrected range is, as a share of the uncorrected one."""
    span, old = getattr(after, f"{figure}_range"), getattr(before, f"{figure}_range")
    if span is None or old is None:
        return 1.0
    width: int = span.high_bytes - span.low_bytes
    return width / max(1.0, sum(_even_sides(old, getattr(before, f"{figure}_bytes"))))
