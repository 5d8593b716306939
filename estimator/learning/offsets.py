"""Offsets: by how much the predictions of measured jobs were off, and how far another job is to be expected off.

A job on a machine has an offset: the same in each of its runs, but for noise. Jobs of one kind, which differ in sizes
alone, share a part of it. What is shared counts for a job of that kind that was never measured; nothing counts for
another kind, another card or another release, but for the CUDA context, which is the card's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from math import exp, hypot, log, sqrt
from typing import Literal, NamedTuple, get_args

import msgspec

from ..budget import Method, Span
from ..common.sizes import GIB, MIB
from ..job.gpu_catalogue import match_nvml_name
from ..job.job import Job
from ..job.settings import ModelSpec, Run, Software, Target, Uncertainties
from .measurement import Measurement, Observed, Predicted, PrivateJob, allocator_words

_RELEASE = re.compile(r"v?(\d+)(?:\.(\d+))?")
_STEP_LIBRARIES = ("torch", "transformers", "litgpt", "torchtitan", "trl", "peft", "bitsandbytes")
_CONTEXT_LIBRARIES = ("torch", "cuda")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A job and the place in which it runs."""

    job: Job
    """Without names."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str
    """Digest of settings that are names."""
    card: str | None
    """Name of the GPU, as NVML gives it; None: unknown."""
    machine: str
    """Digest of the machine; empty: another one, or unknown."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries."""
    allocator: str = ""
    """The allocator's settings."""

    @classmethod
    def of_job(
        cls,
        facts: PrivateJob,
        *,
        card: str | None,
        machine: str,
        versions: Mapping[str, str] | None = None,
        allocator: str = "",
    ) -> "Subject":
        """Return the subject of an estimate; versions of the run count more than those that the job states."""
        stated = {name: text for name, text in msgspec.structs.asdict(facts.job.software).items() if text}
        return cls(
            job=facts.job,
            shape=facts.shape,
            hidden=facts.hidden,
            card=card,
            machine=machine,
            versions={**stated, **(versions or {})},
            allocator=allocator_words(allocator),
        )

    @classmethod
    def of_measurement(cls, run: Measurement) -> "Subject":
        """Return the subject of a measured run."""
        return cls(**{each.name: getattr(run, each.name) for each in fields(cls)})

    @cached_property
    def settings(self) -> Job:
        """The settings on which a step depends."""
        job, software = self.job, self.job.software
        return msgspec.structs.replace(
            job,
            name=None,
            model=ModelSpec(
                id=(job.model.config or {}).get("model_type"), task=job.model.task, attention=job.model.attention
            ),
            training=msgspec.structs.replace(job.training, trainable_parameters=None),
            saving=None,
            target=Target(),
            software=Software(module_loading=software.module_loading, cublas_workspace=software.cublas_workspace),
            unsure=Uncertainties(),
            run=Run(),
        )

    @cached_property
    def kind(self) -> Job:
        """The settings without the sizes, in which jobs of one kind differ."""
        job, training, parallel = self.settings, self.settings.training, self.settings.parallel
        return msgspec.structs.replace(
            job,
            training=msgspec.structs.replace(
                training, micro_batch=1, sequence_length=1, gradient_accumulation=min(2, training.gradient_accumulation)
            ),
            lora=job.lora and msgspec.structs.replace(job.lora, rank=1, targets=[]),
            parallel=msgspec.structs.replace(
                parallel, data_shard=min(2, parallel.data_shard), data_replicate=min(2, parallel.data_replicate)
            ),
        )

    def is_same_job(self, other: "Subject") -> bool:
        """Return True if the other is the very job, wherever it runs."""
        mine, its = (self.settings, self.shape, self.allocator), (other.settings, other.shape, other.allocator)
        return self.is_of_kind(other) and mine == its

    def is_of_kind(self, other: "Subject") -> bool:
        """Return True if the jobs differ in sizes alone, as far as that is known."""
        same = self.kind == other.kind and self.hidden == other.hidden
        return same and self._has_same_releases(other, _STEP_LIBRARIES)

    def has_same_context(self, other: "Subject") -> bool:
        """Return True if the CUDA context of both is the same, on the same card."""
        one, two = (
            (each.settings.training.compile, each.settings.software, each.settings.parallel.world_size > 1)
            for each in (self, other)
        )
        return one == two and self._has_same_releases(other, _CONTEXT_LIBRARIES)

    @cached_property
    def releases(self) -> dict[str, tuple[str, ...]]:
        """The first two numbers of each version, on which memory depends."""
        return {name: found.groups() for name, text in self.versions.items() if (found := _RELEASE.match(text))}

    def _has_same_releases(self, other: "Subject", names: Iterable[str]) -> bool:
        """Return True if no release differs; one that is unknown on a side may be the same."""
        mine, its = self.releases, other.releases
        return all(mine[name] == its[name] for name in names if name in mine and name in its)


def card_name(name: str | None) -> str | None:
    """Return the name of a card in the catalogue, which is the same for all of its drivers; else its own."""
    found = match_nvml_name(name) if name else None
    return found.name if found else name


# What the runs of one job say.


Part = Literal["step", "slack", "outside"]
"""Part of a figure with an offset of its own: the step's tensors, what the allocator keeps beyond them, and what lies
outside of it (the CUDA context, NCCL)."""
PARTS: tuple[Part, ...] = get_args(Part)
FIGURES = ("allocated", "reserved", "device")
"""Figures that end with each part."""
NINETY = 1.645
"""Half of a range that holds nine in ten, in standard deviations."""
_DAY = 86_400.0
_RANK_HALF_LIFE = 3.0
"""Runs after which one counts half: a change of the user's stack is believed after about three runs."""
_AGE_HALF_LIFE_DAYS = 45.0
"""Days after which a run counts half."""
_ALLOCATOR_NOISE = (8 * MIB, 0.002)
"""Bytes, and share of the figure, by which two runs of one job differ: batches differ in what they pad and route."""
_DEVICE_NOISE = (16 * MIB, 0.004)
_READINGS_NOISE = (32 * MIB, 0.01)
"""Readings of NVML miss a peak between two of them; the allocator keeps what it once had, unless it is told not to."""
_SAME_STEP: dict[Method, Method] = {"exact": "formula", "formula": "exact"}
"""Methods that compute a step alike, and count parameters in different ways."""

Parts = tuple[Part, ...]
Scales = dict[Part, float]
"""Standard deviation of each part's error, in bytes."""


def scales(predicted: Predicted) -> Scales:
    """Return the standard deviation of each part's error, in bytes: what the calibrated ranges say."""
    device = _half(predicted.device_range)
    allocated = _half(predicted.allocated_range) if predicted.allocated_range else 0.8 * device
    reserved = _half(predicted.reserved_range) if predicted.reserved_range else max(allocated, 0.95 * device)
    return {
        "step": max(allocated, 1.0 * MIB),
        "slack": max(sqrt(max(0.0, reserved**2 - allocated**2)), 0.005 * predicted.allocated_bytes),
        "outside": max(sqrt(max(0.0, device**2 - reserved**2)), 16.0 * MIB),
    }


def _half(span: Span) -> float:
    return (span.high_bytes - span.low_bytes) / 2 / NINETY


def joint(scale: Scales, parts: Iterable[Part]) -> float:
    """Return the standard deviation of the sum of some parts' errors."""
    return sqrt(sum(scale[part] ** 2 for part in parts))


class Observation(NamedTuple):
    """An offset as the runs of one job show it, in bytes."""

    size: float
    noise: float
    """Standard deviation of the size."""
    run: float
    """Standard deviation of a run from it."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The measured runs of one job on one machine."""

    subject: Subject
    scales: Scales
    runs: tuple[Measurement, ...]
    """The newest first."""
    offsets: dict[Parts, Observation]
    """By part, or by the parts of which only the sum was seen."""
    same: bool
    """It is the very job that is estimated."""

    @property
    def is_of_context(self) -> bool:
        """True if nothing but its CUDA context counts."""
        return set(self.offsets) == {("outside",)}


def collect_evidence(
    measurements: Iterable[Measurement], subject: Subject, predicted: Predicted, method: Method
) -> list[Evidence]:
    """Return what measured runs on the same card say, by job: first the very job, on this machine if it ran there.

    Left out are runs that say nothing of a peak (they leaked, failed, ended early or had none), and what another
    version of vramtop predicted of another job. Of the very job its own prediction counts.

    Args:
        measurements: the runs.
        subject: what is estimated.
        predicted: what is predicted of it.
        method: method of the estimate.
    """
    card, groups = card_name(subject.card), dict[object, list[Measurement]]()
    for run in sorted(measurements, key=lambda run: -run.time):
        if card is not None and card_name(run.card) == card and run.is_complete and run.predicted:
            groups.setdefault(_job_and_machine(run), []).append(run)
    found = [each for runs in groups.values() if (each := _evidence(runs, subject, predicted, method))]
    found.sort(key=lambda each: (not each.same, each.is_of_context, each.subject.machine != subject.machine))
    return found[:MOST_JOBS]


def _job_and_machine(run: Measurement) -> object:
    releases = sorted(Subject.of_measurement(run).releases.items())
    return repr(run.job), run.shape, run.hidden, run.machine, tuple(releases), run.allocator


def _evidence(runs: Sequence[Measurement], subject: Subject, predicted: Predicted, method: Method) -> Evidence | None:
    """Return what the runs of one job say of a subject; None: nothing."""
    newest, its = runs[0], Subject.of_measurement(runs[0])
    if its.is_same_job(subject):
        told, theirs, same = {*PARTS}, predicted, True
    else:
        by_method = newest.by(method) or (newest.by(_SAME_STEP[method]) if method in _SAME_STEP else None)
        theirs, same = by_method or newest.predicted[0], False
        told = {"outside"} if its.has_same_context(subject) else set[Part]()
        if by_method and its.is_of_kind(subject):
            told |= {"step", "slack"} if its.allocator == subject.allocator else {"step"}
        if theirs.version != predicted.version or newest.job.is_served:
            return None
    offsets = {parts: each for parts, each in _offsets(runs, theirs) if told.issuperset(parts)}
    if not offsets:
        return None
    return Evidence(subject=its, scales=scales(theirs), runs=tuple(runs), offsets=offsets, same=same)


def _offsets(runs: Sequence[Measurement], predicted: Predicted) -> Iterator[tuple[Parts, Observation]]:
    seen = [_errors(run.observed, predicted) for run in runs]
    readings = all(run.observed.device_source == "readings" for run in runs)
    allocator, device = (
        _noise(_ALLOCATOR_NOISE, predicted),
        _noise(_READINGS_NOISE if readings else _DEVICE_NOISE, predicted),
    )
    for parts in sorted({parts for errors in seen for parts in errors}):
        known = [(run.time, errors[parts]) for run, errors in zip(runs, seen, strict=True) if parts in errors]
        yield parts, _typical(known, device if "outside" in parts else allocator)


def _errors(observed: Observed, predicted: Predicted) -> dict[Parts, float]:
    """Return the errors that one run shows."""
    found: dict[Parts, float] = {}
    unseen: Parts = ()
    before = 0
    for part, figure in zip(PARTS, FIGURES, strict=True):
        unseen = (*unseen, part)
        size = getattr(observed, f"{figure}_bytes")
        if size is not None:
            error = size - getattr(predicted, f"{figure}_bytes")
            found[unseen] = error - before
            unseen, before = (), error
    return found


def _noise(noise: tuple[int, float], predicted: Predicted) -> float:
    return hypot(noise[0], noise[1] * predicted.device_bytes)


def _typical(known: Sequence[tuple[float, float]], usual: float) -> Observation:
    """Return the weighted median of times and sizes, as one run among several may be of another job than it seemed."""
    newest = known[0][0]
    weighted = [
        (size, 0.5 ** (at / _RANK_HALF_LIFE + (newest - time) / _DAY / _AGE_HALF_LIFE_DAYS))
        for at, (time, size) in enumerate(known)
    ]
    middle = _weighted_median(weighted)
    spread = 1.48 * _weighted_median([(abs(size - middle), weight) for size, weight in weighted])
    total = sum(weight for _, weight in weighted)
    count = total * total / sum(weight * weight for _, weight in weighted)
    squares = sum(weight * (size - middle) ** 2 for size, weight in weighted) / total
    noise = max(usual, spread) / sqrt(max(1.0, count))
    return Observation(middle, max(noise, usual / 2), max(usual, sqrt(squares * count / max(1.0, count - 1))))


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    ordered = sorted(values)
    half, below = sum(weight for _, weight in ordered) / 2, 0.0
    for at, (value, weight) in enumerate(ordered):
        below += weight
        if below > half:
            return value
        if below == half and at + 1 < len(ordered):
            return (value + ordered[at + 1][0]) / 2
    return ordered[-1][0]


# The offset of a job that was not measured: random effects, shrunk to zero where evidence is thin.
#
# Jobs of a kind share an offset, and each has one of its own; both are normal, in units of what the calibrated ranges
# allow for. How large the two are on this user's stack is not known beforehand, nor whether it grows with the step or
# is a number of bytes (a copy of the weights), nor whether one of the measured jobs is not what it seemed. These are
# averaged over, each by how well it explains what was measured.


MOST_JOBS = 8
"""Measured jobs that are used: time grows with the square."""
_SHARED = {0.3: 0.2, 1.0: 0.46, 3.0: 0.32, 10.0: 0.02}
"""Standard deviations of the offset that a kind shares, and their probabilities."""
_OWN = {0.1: 0.25, 0.7: 0.25, 2.0: 0.25, 4.0: 0.25}
"""Standard deviations of a job's own offset: nothing says how large it is, so each has the same chance."""
_FIXED_BYTES, _FIXED_SHARED, _FIXED_OWN, _FIXED = float(GIB), 1.0, 0.1, 0.1
"""Unit, both deviations in it, and probability of an offset that is a number of bytes, whatever the job's sizes."""
_WRONG = 0.3
"""Odds that the runs of one job are of another job than they seemed."""
_TAILS = 1.3
"""What is averaged over has wider tails than a normal error: nine in ten lie within so much more of its deviation."""


class _Offset(NamedTuple):
    """An offset that is to be expected, in bytes."""

    mean: float
    variance: float
    fixed: float
    """Bytes of the mean that do not grow with the job."""


class _Seen(NamedTuple):
    """An offset of a measured job."""

    size: float
    noise: float
    scale: float
    """What the job's ranges allow for."""
    wrong: float
    """Standard deviation of its size if the job is not what it seemed."""


def _expected_offset(seen: Sequence[_Seen], scale: float, *, may_be_fixed: bool) -> _Offset:
    """Return the offset of another job of the kind; all sizes in bytes."""
    answers: list[tuple[float, _Offset]] = []
    fixed = _FIXED if may_be_fixed and seen else 0.0
    for (shared, one), (own, two) in product(_SHARED.items(), _OWN.items()):
        for weight, mean, variance in _filter(seen, shared, own, (1 - fixed) * one * two):
            answers.append((weight, _Offset(mean * scale, variance * scale**2, 0.0)))
    if fixed:
        alike = [each._replace(scale=_FIXED_BYTES) for each in seen]
        for weight, mean, variance in _filter(alike, _FIXED_SHARED, _FIXED_OWN, fixed):
            answers.append((weight, _Offset(mean * _FIXED_BYTES, variance * _FIXED_BYTES**2, mean * _FIXED_BYTES)))
    most = max(weight for weight, _ in answers)
    weighted = [(exp(weight - most), each) for weight, each in answers]
    total = sum(weight for weight, _ in weighted)
    mean = sum(weight * each.mean for weight, each in weighted) / total
    squares = sum(weight * (each.variance + (each.mean - mean) ** 2) for weight, each in weighted)
    return _Offset(mean, squares / total, sum(weight * each.fixed for weight, each in weighted) / total)


def _filter(
    seen: Sequence[_Seen], shared: float, own: float, probability: float
) -> Iterator[tuple[float, float, float]]:
    """Yield the logarithm of the weight, mean and variance of another job's offset, in units of its scale.

    Once with all jobs, and once with each as if it were not what it seemed.
    """
    for wrong in (None, *range(len(seen))):
        mean, variance = 0.0, shared**2
        weight = log(probability if wrong is None else probability * _WRONG)
        for at, each in enumerate(seen):
            size, noise = each.size / each.scale, (each.wrong if at == wrong else each.noise) / each.scale
            total = variance + own**2 + noise**2
            weight -= log(each.scale) + (log(total) + (size - mean) ** 2 / total) / 2
            gain = variance / total
            mean += gain * (size - mean)
            variance *= 1 - gain
        yield weight, mean, variance + own**2


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors to be expected of a prediction, in bytes."""

    step: float
    fixed: float
    """Bytes of ``step`` that do not grow with the job."""
    slack: float
    outside: float
    widths: Mapping[str, float]
    """How wide the ranges of the figures are to be, as shares of the calibrated ones."""


def expected_errors(evidence: Sequence[Evidence], predicted: Predicted) -> Errors:
    """Return the errors of a prediction that measured jobs let expect.

    Args:
        evidence: measured jobs; the first may be the very job.
        predicted: what is predicted.
    """
    scale, first = scales(predicted), evidence[0]
    others = evidence[1:] if first.same else evidence
    found = {part: _Offset(0.0, scale[part] ** 2, 0.0) for part in PARTS}
    for part in {part for parts in first.offsets for part in parts} if first.same else ():
        found[part] = _expected_offset((), scale[part], may_be_fixed=False)
    found |= _offsets_of_kind(others, scale, predicted)
    run = {
        "allocated": _noise(_ALLOCATOR_NOISE, predicted),
        "reserved": 0.0,
        "device": _noise(_DEVICE_NOISE, predicted),
    }
    for parts, seen in first.offsets.items() if first.same else ():
        rest = seen.size - sum(found[part].mean for part in parts)
        total = sum(found[part].variance for part in parts) + seen.noise**2
        for part in parts:
            mean, variance, fixed = found[part]
            gain = variance / total
            found[part] = _Offset(mean + gain * rest, variance * (1 - gain), fixed)
        figure = FIGURES[PARTS.index(parts[-1])]
        run[figure] = max(run[figure], seen.run)
    return Errors(
        step=found["step"].mean,
        fixed=found["step"].fixed,
        slack=found["slack"].mean,
        outside=found["outside"].mean,
        widths=_widths(found, scale, run),
    )


def _offsets_of_kind(evidence: Sequence[Evidence], scale: Scales, predicted: Predicted) -> dict[Part, _Offset]:
    """Return the offsets of a job by those of others; a sum counts where nobody saw its parts, and is split."""
    found: dict[Part, _Offset] = {}
    for parts in sorted({parts for each in evidence for parts in each.offsets}, key=len):
        if not found.keys().isdisjoint(parts):
            continue
        whole, of_step = joint(scale, parts), "step" in parts
        wrong = float(predicted.device_bytes) if of_step else 2 * whole
        seen = [
            _Seen(offset.size, offset.noise, joint(each.scales, parts), wrong)
            for each in evidence
            if (offset := each.offsets.get(parts))
        ]
        mean, variance, fixed = _expected_offset(seen, whole, may_be_fixed=of_step)
        for part in parts:
            share = (scale[part] / whole) ** 2
            found[part] = _Offset(share * mean, share * variance, share * fixed)
    return found


def _widths(found: Mapping[Part, _Offset], scale: Scales, run: Mapping[str, float]) -> dict[str, float]:
    """Return how wide each figure's range is to be for one run, as a share of the calibrated one."""
    widths, variance, noise = {}, 0.0, 0.0
    for at, (part, figure) in enumerate(zip(PARTS, FIGURES, strict=True)):
        variance, noise = variance + found[part].variance, max(noise, run[figure])
        widths[figure] = hypot(_TAILS * sqrt(variance), noise) / joint(scale, PARTS[: at + 1])
    return widths
