"""Evidence: what the measured runs of one job together say, as errors of its prediction by mechanism."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import exp, hypot, log, pi, sqrt
from operator import mul
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from ..budget import Budget, Method
from ..common.sizes import MIB
from ..formula.ranges import SMALL_BYTES, DoubtfulBytes
from ..job.gpu_catalogue import match_nvml_name
from ..job.job import Job
from .measurement import Measurement, Observed, Predicted, PrivateJob, allocator_words

# Subject of an estimate or a measurement: the job without names, and the machine on which it runs.


_VERSION_PARTS = re.compile(r"v?(\d+)(?:\.(\d+))?")
_STATED = ("torch", "cuda", "transformers", "bitsandbytes", "peft", "litgpt", "torchtitan", "trl")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A job and the place in which it runs. Two subjects are compared trait by trait (``kinship``)."""

    job: Job
    """Without names."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str
    """Digest of settings that are names."""
    card: str | None
    machine: str
    driver: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    allocator: str = ""
    peak: str = ""
    """Phase in which the peak is predicted."""

    @classmethod
    def of_job(
        cls,
        facts: PrivateJob,
        *,
        card: str | None,
        machine: str,
        driver: str | None = None,
        versions: Mapping[str, str] | None = None,
        allocator: str = "",
        peak: str = "",
    ) -> "Subject":
        """Return the subject of an estimate.

        Args:
            facts: the job without names.
            card: name of the GPU, as NVML gives it; None: unknown.
            machine: digest of the machine; empty: another one, or unknown.
            driver: version of its driver.
            versions: versions of libraries, which count more than those that the job states.
            allocator: the allocator's settings.
            peak: phase in which the peak is predicted.
        """
        return cls(
            job=facts.job,
            shape=facts.shape,
            hidden=facts.hidden,
            card=card,
            machine=machine,
            driver=driver,
            versions={**_stated(facts.job), **(versions or {})},
            allocator=allocator_words(allocator),
            peak=peak,
        )

    @classmethod
    def of_measurement(cls, measurement: Measurement, peak: str = "") -> "Subject":
        """Return the subject of a measurement.

        Args:
            measurement: the measurement.
            peak: phase in which the peak was predicted.
        """
        return cls(
            job=measurement.job,
            shape=measurement.shape,
            hidden=measurement.hidden,
            card=measurement.card,
            machine=measurement.machine,
            driver=measurement.driver,
            versions=measurement.versions,
            allocator=measurement.allocator,
            peak=peak,
        )

    @cached_property
    def traits(self) -> dict[str, Any]:
        """The settings on which memory depends, by dotted key, and the place; None: unknown."""
        found: dict[str, Any] = {
            "machine": self.machine or None,
            "card": _card(self.card),
            "driver": _release(self.driver, parts=1),
            "allocator": self.allocator,
            "model.shape": self.shape,
            "hidden": self.hidden,
            "peak": self.peak,
        }
        for name in _STATED:
            found[f"software.{name}"] = _release(self.versions.get(name), parts=2)
        for table in msgspec.structs.fields(Job):
            value = getattr(self.job, table.name)
            if isinstance(value, msgspec.Struct):
                for key, each in msgspec.structs.asdict(value).items():
                    found.setdefault(f"{table.encode_name}.{key}", each)
            found[table.encode_name] = value if isinstance(value, list) else isinstance(value, msgspec.Struct)
        config = self.job.model.config or {}
        found["model.family"] = config.get("model_type")
        found["distributed"] = self.job.parallel.world_size > 1
        found["accumulates"] = self.job.training.gradient_accumulation > 1
        return found


def _card(name: str | None) -> str | None:
    """Return the name of the card in the catalogue, which is the same for all of its drivers; else its own."""
    found = match_nvml_name(name) if name else None
    return found.name if found else name


def _stated(job: Job) -> dict[str, str]:
    return {name: value for name in _STATED if (value := getattr(job.software, name))}


def _release(version: str | None, *, parts: int) -> tuple[str, ...] | None:
    """Return the first parts of a version, on which memory depends; None: unknown."""
    found = _VERSION_PARTS.match(version or "")
    return None if found is None else found.groups()[:parts]


# Kinship: how much of a mechanism's error in one job is its error in another, by what differs between the two.
#
# An error that was seen travels only as far as the mechanism that makes it is the same. Each row of the table is one
# trait, with the share of the error (a correlation) that a difference in it leaves of each mechanism; 0: nothing.
# Several differences multiply, so that all shares of a set of jobs together are a valid covariance. A setting without
# a row, also one that is added later, lets only the CUDA context through.


Mechanism = Literal["fixed", "tokens", "slack", "context", "nccl"]
"""Mechanism that makes an error.

``fixed``: tensors that no rule knows, whatever the batch (a copy of weights, a buffer of the loop); ``tokens``: what a
token takes in activations, logits and temporary tensors; ``slack``: what the allocator keeps; ``context``: CUDA
context, kernels and libraries; ``nccl``: NCCL's buffers.
"""
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
STEP: tuple[Mechanism, ...] = ("fixed", "tokens")
"""The mechanisms of the allocated bytes."""
OUTSIDE: tuple[Mechanism, ...] = ("context", "nccl")
"""The mechanisms of the bytes outside of torch's allocator."""
_Shares = tuple[float, float, float, float, float]
"""Shares of the mechanisms, in their order."""
_ALL: _Shares = (1, 1, 1, 1, 1)
_ELSE: _Shares = (0, 0, 0, 1, 0)
"""A setting of the step without a row: what it changes is not known."""
_UNKNOWN_SHARE = 0.5
"""At least, for a version or a card that is unknown on one side; not more, as it may be the same as two others that
differ."""
_TRAITS: Mapping[str, _Shares] = {
    #                                  fixed tokens slack context nccl
    "machine": (0.97, 0.98, 0.95, 0.90, 0.90),
    "card": (0.95, 0.95, 0.90, 0.00, 0.00),
    "driver": (1.00, 1.00, 1.00, 0.60, 0.80),
    "allocator": (1.00, 1.00, 0.00, 1.00, 1.00),
    "hidden": (0.00, 0.00, 0.00, 1.00, 0.80),
    # versions: of torch no error travels to another release; of the others none in what they run
    "software.torch": (0.00, 0.00, 0.00, 0.00, 0.00),
    "software.cuda": (0.90, 0.90, 0.90, 0.00, 0.50),
    "software.transformers": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.bitsandbytes": (0.50, 0.50, 0.50, 0.80, 1.00),
    "software.peft": (0.50, 0.50, 0.50, 1.00, 1.00),
    "software.litgpt": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.torchtitan": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.trl": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.vllm": _ALL,
    "software.sglang": _ALL,
    "software.module_loading": (1.00, 1.00, 1.00, 0.00, 1.00),
    "software.cublas_workspace": (0.00, 1.00, 0.90, 0.90, 1.00),
    # the model
    "model.family": (0.00, 0.00, 0.30, 1.00, 1.00),
    "model.shape": (0.50, 0.80, 0.60, 1.00, 1.00),
    "model.task": (0.00, 0.00, 0.00, 1.00, 1.00),
    "model.attention": (0.90, 0.00, 0.00, 0.90, 1.00),
    "model.num_labels": _ALL,  # in the shape
    "model.config": _ALL,  # in family and shape
    "model.id": _ALL,
    "model.code_folder": _ALL,
    "model.trust_remote_code": _ALL,
    # the step
    "training.framework": (0.00, 0.00, 0.00, 0.80, 0.90),
    "training.micro_batch": (1.00, 0.97, 0.75, 1.00, 1.00),
    "training.sequence_length": (1.00, 0.95, 0.75, 1.00, 1.00),
    "training.gradient_accumulation": _ALL,
    "accumulates": (0.90, 0.90, 0.50, 1.00, 1.00),
    "training.optimizer": (0.00, 0.90, 0.00, 1.00, 1.00),
    "training.optimizer_options": (0.00, 0.95, 0.50, 1.00, 1.00),
    "training.precision": (0.00, 0.00, 0.00, 0.95, 1.00),
    "training.compile": (0.00, 0.00, 0.00, 0.00, 1.00),
    "training.varying_lengths": (0.90, 0.80, 0.30, 1.00, 1.00),
    "training.trainable_parameters": _ALL,
    # adapters
    "lora": (0.00, 0.00, 0.00, 0.80, 0.90),
    "lora.rank": (0.50, 0.90, 0.70, 1.00, 1.00),
    "lora.targets": (0.50, 0.70, 0.60, 1.00, 1.00),
    "lora.quantization": (0.00, 0.00, 0.00, 0.80, 1.00),
    # parallelism: more ranks of the same kind
    "distributed": (0.00, 0.00, 0.00, 0.90, 0.00),
    "parallel.strategy": (0.00, 0.00, 0.00, 0.90, 0.00),
    "parallel.data_shard": (0.70, 0.95, 0.60, 1.00, 0.80),
    "parallel.data_replicate": (0.90, 0.97, 0.80, 1.00, 0.80),
    "parallel.load_on_rank_zero": (0.90, 1.00, 0.90, 1.00, 1.00),
    # what no step depends on
    "name": _ALL,
    "run": _ALL,
    "target": _ALL,
    "unsure": _ALL,
    "saving": _ALL,
    "peak": (0.50, 0.30, 0.50, 1.00, 1.00),
}
_TABLES = ("run.", "target.", "unsure.", "saving.")
"""Tables without an effect on a step."""


def kinship(one: Subject, other: Subject) -> dict[Mechanism, float]:
    """Return the share of each mechanism's error that two subjects have in common; the same for either order."""
    shares = [1.0] * len(MECHANISMS)
    first, second = one.traits, other.traits
    for name in first.keys() | second.keys():
        mine, its = first.get(name), second.get(name)
        if mine == its:
            continue
        row = share_row(name)
        unknown = (mine is None or its is None) and _may_be_unknown(name)
        shares = [
            had * (max(share, _UNKNOWN_SHARE) if unknown else share) for had, share in zip(shares, row, strict=True)
        ]
    return dict(zip(MECHANISMS, shares, strict=True))


def differences(one: Subject, other: Subject) -> dict[str, object]:
    """Return the settings of the first subject that differ from the other's and that change a step, by dotted key."""
    first, second = one.traits, other.traits
    names = (name for name in first if first[name] != second.get(name) and "." in name)
    return {name: first[name] for name in sorted(names) if share_row(name) != _ALL}


@cache
def share_row(name: str) -> _Shares:
    """Return what a difference in a trait leaves of each mechanism's error."""
    if name in _TRAITS:
        return _TRAITS[name]
    return _ALL if name.startswith(_TABLES) else _ELSE


def _may_be_unknown(name: str) -> bool:
    return name.startswith("software.") or name in ("card", "driver", "machine")


NINETY = 1.645
"""Half of a range that holds nine in ten, in standard deviations."""
DAY = 86_400.0
_RANK_HALF_LIFE = 3.0
"""Runs after which one counts half: a change of the user's stack is believed after about three runs."""
_AGE_HALF_LIFE_DAYS = 45.0
"""Days after which a run counts half."""
_COUNT_SHARE = 0.002
"""Error of the states, whose parameters are counted, as a share of them: nine in ten jobs are within it."""
_LEAST_STEP_SHARE = 0.01
"""Least error of a step, as a share of its activations, logits and temporary tensors."""
_LEAST_SLACK_SHARE = 0.005
"""Least error of what the allocator keeps, as a share of the allocated bytes."""
_ALLOCATOR_NOISE = (8 * MIB, 0.002)
"""Bytes, and share of the figure, by which two runs of one job differ: batches differ in what they pad and route."""
_DEVICE_NOISE = (16 * MIB, 0.004)
_READINGS_NOISE = (32 * MIB, 0.01)
"""Readings of NVML miss a peak between two of them; the allocator keeps what it once had, unless it is told not to."""
_SAME_STEP: dict[Method, Method] = {"exact": "formula", "formula": "exact"}
"""Methods that compute a step alike, and count parameters in different ways."""
_NCCL_SHARE = 3.0
"""Error of a byte of NCCL relative to one of CUDA's context (``ranges.calibration``)."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviation of a prediction's error by mechanism, in bytes: what the calibrated ranges say."""

    fixed: float
    tokens: float
    slack: float
    context: float
    nccl: float

    def of(self, mechanism: Mechanism) -> float:
        """Return the standard deviation of one mechanism's error."""
        return float(getattr(self, mechanism))

    def joint(self, mechanisms: Iterable[Mechanism]) -> float:
        """Return the standard deviation of the sum of some mechanisms' errors."""
        return sqrt(sum(self.of(name) ** 2 for name in mechanisms))


def scales(predicted: Predicted) -> Scales:
    """Return the errors that the ranges of a prediction allow for, by mechanism."""
    device = _half(predicted.device_range.low_bytes, predicted.device_range.high_bytes)
    spans = predicted.allocated_range, predicted.reserved_range
    allocated = _half(spans[0].low_bytes, spans[0].high_bytes) if spans[0] else 0.8 * device
    reserved = _half(spans[1].low_bytes, spans[1].high_bytes) if spans[1] else max(allocated, 0.95 * device)
    parts = predicted.components
    doubtful = DoubtfulBytes.of(
        parts,
        allocated=predicted.allocated_bytes,
        reserved=predicted.reserved_bytes,
        outside=predicted.outside_bytes,
    )
    fixed = min(hypot(SMALL_BYTES, _COUNT_SHARE * doubtful.states) / NINETY, allocated)
    outside = _rest(device, reserved, 16 * MIB)
    nccl = _NCCL_SHARE * doubtful.nccl
    whole = max(1.0, hypot(doubtful.context, nccl))
    return Scales(
        fixed=fixed,
        tokens=_rest(allocated, fixed, _LEAST_STEP_SHARE * doubtful.step),
        slack=_rest(reserved, allocated, _LEAST_SLACK_SHARE * predicted.allocated_bytes),
        context=outside * doubtful.context / whole,
        nccl=outside * nccl / whole,
    )


def _half(low: int, high: int) -> float:
    return (high - low) / 2 / NINETY


def _rest(whole: float, part: float, least: float) -> float:
    return max(sqrt(max(0.0, whole * whole - part * part)), least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One observed error of a prediction: the sum of those of some mechanisms, in bytes."""

    mechanisms: tuple[Mechanism, ...]
    size: float
    noise: float
    """Standard deviation of the size, as far as these runs tell it."""
    run: float
    """Standard deviation of the same figure in another run."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The measured runs of one job in one place."""

    subject: Subject
    predicted: Predicted
    scales: Scales
    runs: tuple[Measurement, ...]
    """The newest first."""
    errors: tuple[Error, ...]
    same: bool
    """It is the very job that is estimated."""

    @property
    def time(self) -> float:
        """Unix seconds of the newest run."""
        return self.runs[0].time


def collect_evidence(
    measurements: Iterable[Measurement], subject: Subject, predicted: Predicted, method: Method
) -> tuple[Evidence, ...]:
    """Return the evidence of measured runs, one item per job.

    Left out are runs that say nothing of a peak on a GPU (they leaked, failed, ended early or had none), and what
    another method or another version of vramtop predicted of another job. Of the very job its own prediction
    counts.

    Args:
        measurements: the runs.
        subject: what is estimated.
        predicted: what is predicted of it; also of its own earlier runs, whichever version estimated these.
        method: method of the estimate.
    """
    groups: dict[object, list[Measurement]] = {}
    for each in measurements:
        if each.is_complete and each.card is not None and not each.job.is_served and each.predicted:
            groups.setdefault(_same_job(each), []).append(each)
    found = []
    for runs in groups.values():
        runs.sort(key=lambda run: -run.time)
        own_method = runs[0].by(method) or (runs[0].by(_SAME_STEP[method]) if method in _SAME_STEP else None)
        first = own_method or runs[0].predicted[0]
        its = Subject.of_measurement(runs[0], first.phase)
        same = all(share == 1 for share in kinship(_in_place_of(its, subject), subject).values())
        if not same and first.version != predicted.version:
            continue
        theirs = predicted if same else first
        # no method changes what lies outside of torch's allocator
        errors = tuple(
            error for error in _errors(runs, theirs) if same or own_method or set(error.mechanisms) <= {*OUTSIDE}
        )
        if errors:
            found.append(
                Evidence(
                    subject=its, predicted=theirs, scales=scales(theirs), runs=tuple(runs), errors=errors, same=same
                )
            )
    return tuple(found)


def _in_place_of(one: Subject, other: Subject) -> Subject:
    """Return a subject as if it ran where another one does, on the same driver, with the same phase as its peak."""
    return replace(one, machine=other.machine, driver=other.driver, peak=other.peak)


def _same_job(run: Measurement) -> object:
    versions = tuple(sorted(run.versions.items()))
    return repr(run.job), run.shape, run.hidden, run.card, run.machine, run.driver, versions, run.allocator


def _errors(runs: Sequence[Measurement], predicted: Predicted) -> Iterator[Error]:
    """Yield the errors that these runs show, as far as somebody knew the figures."""
    allocated, reserved, device = (
        _typical(runs, [_difference(each.observed, name, predicted) for each in runs])
        for name in ("allocated_bytes", "reserved_bytes", "device_bytes")
    )
    slack = _typical(runs, [_between(each, "reserved_bytes", "allocated_bytes", predicted) for each in runs])
    outside = _typical(runs, [_between(each, "device_bytes", "reserved_bytes", predicted) for each in runs])
    by_allocator = _noise(_ALLOCATOR_NOISE, predicted.reserved_bytes)
    readings = all(each.observed.device_source == "readings" for each in runs)
    by_device = _noise(_READINGS_NOISE if readings else _DEVICE_NOISE, predicted.device_bytes)
    if allocated is not None:
        yield _error(STEP, allocated, by_allocator)
    if slack is not None:
        yield _error(("slack",), slack, by_allocator)
    elif reserved is not None:
        yield _error((*STEP, "slack"), reserved, by_allocator)
    if outside is not None:
        yield _error(OUTSIDE, outside, by_device)
    elif device is not None and allocated is None and reserved is None:
        yield _error(MECHANISMS, device, by_device)


@dataclass(frozen=True, slots=True)
class _Typical:
    size: float
    spread: float
    """Standard deviation of a run from it, odd ones left out; 0: one run."""
    whole: float
    """Standard deviation with the outliers, as the next run may be one of them."""
    count: float
    """Runs that it counts as."""


def _error(mechanisms: tuple[Mechanism, ...], typical: _Typical, usual: float) -> Error:
    noise = max(usual, typical.spread) / sqrt(max(1.0, typical.count))
    return Error(mechanisms=mechanisms, size=typical.size, noise=max(noise, usual / 2), run=max(usual, typical.whole))


def run_noise(evidence: Iterable[Evidence], predicted: Predicted) -> tuple[float, float, float]:
    """Return the standard deviations of one run's allocated, reserved and device bytes from those of its job.

    Args:
        evidence: measured jobs; runs of the very job tell how much it varies.
        predicted: of the job.
    """
    allocator, device = (
        _noise(_ALLOCATOR_NOISE, predicted.reserved_bytes),
        _noise(_DEVICE_NOISE, predicted.device_bytes),
    )
    seen = [error for each in evidence if each.same for error in each.errors]
    step, slack, outside = (
        max((error.run for error in seen if name in error.mechanisms), default=0.0)
        for name in ("tokens", "slack", "context")
    )
    allocated = max(allocator, step)
    reserved = max(allocated, slack)
    return allocated, reserved, max(device, reserved, outside)


def _noise(noise: tuple[int, float], size: int) -> float:
    return hypot(noise[0], noise[1] * size)


def _typical(runs: Sequence[Measurement], sizes: Sequence[int | None]) -> _Typical | None:
    """Return the median of what these runs show, the newer ones weighted more; None: nothing is known.

    A median, since one run among several may be of another job than it seemed.
    """
    known = [(run.time, size) for run, size in zip(runs, sizes, strict=True) if size is not None]
    if not known:
        return None
    newest = known[0][0]
    weighted = [
        (size, 0.5 ** (at / _RANK_HALF_LIFE + (newest - time) / DAY / _AGE_HALF_LIFE_DAYS))
        for at, (time, size) in enumerate(known)
    ]
    middle = _weighted_median(weighted)
    spread = 1.48 * _weighted_median([(abs(size - middle), weight) for size, weight in weighted])
    total = sum(weight for _, weight in weighted)
    count = total * total / sum(weight * weight for _, weight in weighted)
    squares = sum(weight * (size - middle) ** 2 for size, weight in weighted) / total
    return _Typical(middle, spread, sqrt(squares * count / max(1.0, count - 1)), count)


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


def _difference(observed: Observed, name: str, predicted: Predicted) -> int | None:
    seen = getattr(observed, name)
    return None if seen is None else int(seen - getattr(predicted, name))


def _between(run: Measurement, above: str, below: str, predicted: Predicted) -> int | None:
    """Return the error of the difference between two figures."""
    more, less = _difference(run.observed, above, predicted), _difference(run.observed, below, predicted)
    return None if more is None or less is None else more - less


def without_evidence(budget: Budget) -> bool:
    """Return True if no measurement can correct a budget: a server fills the memory that it is given."""
    return budget.serving is not None or budget.job.is_served


# Gaussian regression in plain Python: small dense matrices, by Cholesky's decomposition.


Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Posterior:
    """Estimate of some unknowns from observations, and how well the assumed covariance explains these."""

    means: tuple[float, ...]
    variances: tuple[float, ...]
    log_evidence: float


def posterior(observed: Sequence[float], covariance: Matrix, cross: Matrix, prior: Sequence[float]) -> Posterior:
    """Return means and variances of unknowns that are jointly normal with the observations, all with mean zero.

    Args:
        observed: the observations.
        covariance: of the observations, noise included.
        cross: of each unknown (a row) with each observation.
        prior: variance of each unknown.
    """
    lower = _cholesky(covariance)
    whitened = _forward(lower, observed)
    means, variances = [], []
    for row, own in zip(cross, prior, strict=True):
        weights = _forward(lower, row)
        means.append(sum(map(mul, weights, whitened)))
        variances.append(max(0.0, own - sum(map(mul, weights, weights))))
    fit = sum(map(mul, whitened, whitened))
    volume = 2 * sum(log(lower[at][at]) for at in range(len(lower)))
    return Posterior(tuple(means), tuple(variances), -0.5 * (fit + volume + len(observed) * log(2 * pi)))


def _cholesky(matrix: Matrix) -> list[list[float]]:
    """Return the lower triangle whose product with its transpose is the matrix."""
    lower: list[list[float]] = []
    for at, row in enumerate(matrix):
        new: list[float] = []
        for column in range(at):
            other = lower[column]
            rest = row[column] - sum(map(mul, new, other))
            new.append(rest / other[column])
        own = row[at] - sum(map(mul, new, new))
        new.append(sqrt(max(own, 1e-9 * abs(row[at]), 1e-300)))
        lower.append(new)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Solve ``lower x = values``."""
    solved: list[float] = []
    for row, value in zip(lower, values, strict=True):
        rest = value - sum(map(mul, row, solved))  # as far as it is solved
        solved.append(rest / row[-1])
    return solved


# The errors of a job's prediction, given what was measured of others: normal, shrunk to zero when evidence is thin.
#
# Each mechanism's error in a job has two parts, both normal: one that it shares with other jobs, as far as their
# kinship and the time between them leave it, and one of its own. How large either is on this user's stack, next to
# what the calibrated ranges say, is not known beforehand, nor whether one of the measured jobs is not what it seemed:
# these are averaged over, each by how well it explains the measurements. Mechanisms that no observation joins are
# independent: that two jobs have the same CUDA context says nothing of whether they share what a token takes.


MOST_JOBS = 6
"""Measured jobs that are used, the nearest ones: time grows with the cube."""
_MEMORY_DAYS = 500.0
"""Time in which the correlation of two errors falls to 1/e: what makes an error may change without a version."""


class _Parts(NamedTuple):
    """The parts of a mechanism's error, as shares of what the calibrated ranges say, and the probability of that."""

    shared: float
    own: float
    share: float = 1.0


def _each(shared: Mapping[float, float], own: Mapping[float, float]) -> tuple[_Parts, ...]:
    return tuple(_Parts(one, two, had * share) for one, had in shared.items() for two, share in own.items())


_FIXED = _each({1.0: 0.8, 40.0: 0.2}, {0.0: 1.0})
"""Prior of ``fixed``: a run may hold a whole copy of the weights that the prediction does not have; no calibrated range
allows for that."""
_TOKENS = _each({0.3: 0.2, 1.0: 0.46, 3.0: 0.32, 10.0: 0.02}, {0.1: 0.25, 0.7: 0.25, 2.0: 0.25, 4.0: 0.25})
"""Prior of ``tokens``: nothing says how large the own part of a job is, so each size has the same chance."""
_OTHERS = _each({1.0: 0.75, 3.0: 0.25}, {0.1: 0.5, 0.7: 0.5})
"""Prior of the other mechanisms."""
_CALIBRATED = (_Parts(1.0, 0.0),)
"""Prior of mechanisms of which nothing was seen: nothing but the calibration is known."""
_KNOWN_SHARE = 0.3
"""Least kinship with a measured job at which something was seen of a mechanism."""
_WRONG, _WRONG_SAME = 0.3, 0.05
"""Probability that the runs of one job are of another job than they seemed, and that one run of the very job is."""
_WRONG_SHARE = 1.0
"""Standard deviation of the step of such a job, as a share of what was predicted: it may be anything."""
_WRONG_OTHERS = 2.0
"""Standard deviation of its allocator and context, as a share of the calibrated ranges: these are of the machine."""
_FIGURES: tuple[tuple[Mechanism, ...], ...] = (STEP, (*STEP, "slack"), MECHANISMS)
"""The mechanisms whose errors add up in the allocated, the reserved and the device's bytes."""
_UNKNOWNS: tuple[tuple[Mechanism, ...], ...] = (*((each,) for each in MECHANISMS), *_FIGURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointErrors:
    """Expected errors of one prediction, in bytes, and their uncertainty."""

    mechanisms: dict[Mechanism, float]
    """Expected error by mechanism."""
    allocated: float
    """Standard deviation of the error of the allocated bytes that remains."""
    reserved: float
    device: float

    def of_a_run(self, noise: tuple[float, float, float]) -> "JointErrors":
        """Return the errors of one run of the job.

        Args:
            noise: standard deviations of a run's allocated, reserved and device bytes from those of its job.
        """
        allocated, reserved, device = map(hypot, (self.allocated, self.reserved, self.device), noise)
        return replace(self, allocated=allocated, reserved=reserved, device=device)


class _Answer(NamedTuple):
    """Logarithm of the weight of what is assumed, and means and variances of the unknowns under it."""

    weight: float
    means: tuple[float, ...]
    variances: tuple[float, ...]


def joint_errors(evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> JointErrors:
    """Return the errors to be expected of a prediction.

    Args:
        evidence: measured jobs, ``MOST_JOBS`` at most.
        subject: what is predicted.
        own: standard deviations of its errors.
        now: Unix seconds.
    """
    jobs = _Jobs(evidence, subject, own, now)
    groups = [_Group(jobs, names) for names in _joined(evidence)]
    found = _average([_sum(share, [group.answer(wrong) for group in groups]) for wrong, share in _wrong(evidence)])
    first, few = len(MECHANISMS), _student(evidence)
    allocated, reserved, device = (few * sqrt(variance) for variance in found.variances[first:])
    return JointErrors(
        mechanisms=dict(zip(MECHANISMS, found.means, strict=False)),
        allocated=allocated,
        reserved=reserved,
        device=device,
    )


def _student(evidence: Sequence[Evidence]) -> float:
    """Return how much wider Student's range of nine in ten is than the normal one, for so few jobs or runs.

    The first terms of its expansion in the degrees of freedom (Abramowitz and Stegun, 26.7.5).
    """
    known = max([len(evidence), *(len(each.runs) for each in evidence if each.same)]) + 2
    return 1 + 0.926 / known + 0.863 / known**2


def _wrong(evidence: Sequence[Evidence]) -> Iterator[tuple[int | None, float]]:
    """Yield the job that is not what it seemed (None: there is none) and the probability of that.

    That several runs of the very job that is asked about are not what they seemed is as good as impossible: the
    next one will be like them.
    """
    yield None, 1.0
    for at, each in enumerate(evidence):
        yield at, _WRONG_SAME ** len(each.runs) if each.same else _WRONG


def _joined(evidence: Sequence[Evidence]) -> list[frozenset[Mechanism]]:
    """Return the mechanisms in groups: those whose errors were seen as one sum are in one."""
    groups = [frozenset[Mechanism]((name,)) for name in MECHANISMS]
    for each in evidence:
        for error in each.errors:
            met = [group for group in groups if not group.isdisjoint(error.mechanisms)]
            groups = [group for group in groups if group not in met]
            groups.append(frozenset[Mechanism]().union(*met))
    return groups


def _average(answers: Sequence[_Answer]) -> _Answer:
    """Return the mean and the variance over all that may be assumed, and its weight as a whole."""
    most = max(each.weight for each in answers)
    shares = [exp(each.weight - most) for each in answers]
    total = sum(shares)
    means, variances = [], []
    for at in range(len(_UNKNOWNS)):
        mean = sum(share * each.means[at] for share, each in zip(shares, answers, strict=True)) / total
        squares = (each.variances[at] + (each.means[at] - mean) ** 2 for each in answers)
        means.append(mean)
        variances.append(sum(share * square for share, square in zip(shares, squares, strict=True)) / total)
    return _Answer(most + log(total), tuple(means), tuple(variances))


def _sum(share: float, answers: Sequence[_Answer]) -> _Answer:
    """Return the answer of independent groups together, with the probability of what they all assume."""
    return _Answer(
        log(share) + sum(each.weight for each in answers),
        tuple(map(sum, zip(*(each.means for each in answers), strict=True))),
        tuple(map(sum, zip(*(each.variances for each in answers), strict=True))),
    )


class _Jobs:
    """The measured jobs and, after them, the one that is asked about: kinship of each two."""

    def __init__(self, evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> None:
        self.evidence = evidence
        self.scales = [*(each.scales for each in evidence), own]
        self.target = len(evidence)
        subjects = [*(each.subject for each in evidence), subject]
        times = [*(min(each.time, now) for each in evidence), now]
        every = range(len(subjects))
        self.kin = [[_kin(subjects, times, one, other) for other in every] for one in every]
        same = {self.target, *(at for at, each in enumerate(evidence) if each.same)}
        self.one_job = [[one == other or {one, other} <= same for other in every] for one in every]


class _Group:
    """The observations of some mechanisms and their covariances, whatever is assumed."""

    def __init__(self, jobs: _Jobs, names: frozenset[Mechanism]) -> None:
        self._rows = [
            (at, error) for at, each in enumerate(jobs.evidence) for error in each.errors if names & {*error.mechanisms}
        ]
        self._sizes = [error.size for _, error in self._rows]
        self._noises = [
            (at, error.noise**2, _noise_of_wrong(jobs.evidence[at], error) ** 2) for at, error in self._rows
        ]
        sums = [(at, error.mechanisms) for at, error in self._rows]
        asked = [(jobs.target, tuple(names & {*figure})) for figure in _UNKNOWNS]
        known = {
            name for at, mechanisms in sums for name in mechanisms if jobs.kin[jobs.target][at][name] >= _KNOWN_SHARE
        }
        choices = [
            _FIXED if "fixed" in known else _CALIBRATED,
            _TOKENS if "tokens" in known else _CALIBRATED,
            _OTHERS if known.difference(STEP) else _CALIBRATED,
        ]
        self._assumed = []
        for fixed, tokens, others in product(*choices):
            parts = {name: {"fixed": fixed, "tokens": tokens}.get(name, others) for name in names}
            covariance = [[_covariance(jobs, parts, one, other) for other in sums] for one in (*sums, *asked)]
            prior = [_covariance(jobs, parts, one, one) for one in asked]
            self._assumed.append((fixed.share * tokens.share * others.share, covariance, prior))

    def answer(self, wrong: int | None) -> _Answer:
        """Return what these observations say if one job is not what it seemed."""
        count = len(self._rows)
        answers = []
        for share, covariance, prior in self._assumed:
            noisy = [list(row) for row in covariance[:count]]
            for at, (job, noise, more) in enumerate(self._noises):
                noisy[at][at] += noise + more * (job == wrong)
            found = posterior(self._sizes, noisy, covariance[count:], prior)
            answers.append(_Answer(log(share) + found.log_evidence, found.means, found.variances))
        return _average(answers)


def _covariance(
    jobs: _Jobs,
    parts: Mapping[Mechanism, _Parts],
    one: tuple[int, tuple[Mechanism, ...]],
    other: tuple[int, tuple[Mechanism, ...]],
) -> float:
    """Return the covariance of two sums of errors, each of a job."""
    mine, its = one[0], other[0]
    kin, first, second = jobs.kin[mine][its], jobs.scales[mine], jobs.scales[its]
    is_one = jobs.one_job[mine][its]
    return sum(
        kin[name] * first.of(name) * second.of(name) * (parts[name].shared ** 2 + is_one * parts[name].own ** 2)
        for name in one[1]
        if name in other[1]
    )


def _noise_of_wrong(evidence: Evidence, error: Error) -> float:
    """Return the standard deviation that an observation has more if its job is not what it seemed."""
    if any(name in STEP for name in error.mechanisms):
        return _WRONG_SHARE * evidence.predicted.device_bytes
    return _WRONG_OTHERS * evidence.scales.joint(error.mechanisms)


def _kin(subjects: Sequence[Subject], times: Sequence[float], one: int, other: int) -> dict[Mechanism, float]:
    if one == other:
        return dict.fromkeys(MECHANISMS, 1.0)
    fading = exp(-abs(times[one] - times[other]) / DAY / _MEMORY_DAYS)
    return {name: fading * share for name, share in kinship(subjects[one], subjects[other]).items()}
