"""Evidence: what the measured runs of one job together say, as errors of its prediction by mechanism."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

from ..budget import Budget, Method
from ..common import MIB
from ..formula.ranges import SMALL_BYTES, DoubtfulBytes
from .kinship import MECHANISMS, OUTSIDE, STEP, Mechanism, kinship
from .measurement import Measurement, Observed, Predicted
from .subject import Subject

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
