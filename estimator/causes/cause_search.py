"""Estimates a job under each possible cause of a divergence, and weighs the causes by how well they predict it.

A weight is a plausibility times the likelihood of the observation. The possibility that the settings are right and the
estimate itself is off counts as one more cause.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import fields

from ..budget import Budget
from ..common.errors import VramtopError
from ..common.records import replace
from ..common.reserved_memory import with_reserved_memory
from ..common.sizes import MIB
from ..job.job import Job
from ..job.job_file.changes import with_changes
from ..job.resolved_job import ResolvedJob
from ..job.settings import Lora

# How often something is the cause, among jobs that hold other memory than predicted: relative and judged, not
# counted, by what frameworks do by default and what their users report. The comments beside the causes give reasons.
COMMON, USUAL, SOME, RARE, UNLIKELY = 8.0, 4.0, 2.0, 1.0, 0.5
Estimate = Callable[[Job], Budget]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Other settings of a job, or memory besides it that no setting describes."""

    name: str
    """Label in tables: ``checkpointing off``."""
    description: str
    """Clause that continues "if": ``activation checkpointing is off``."""
    plausibility: float
    """Prior weight, relative to the other causes."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted job keys and their values; empty if no setting describes it."""
    fix: str = ""
    """Advice, as an imperative; empty if the description suffices."""
    allocated_bytes: int = 0
    """Memory from torch's allocator, besides the effect of ``changes``; negative: less memory."""
    outside_bytes: int = 0
    """Memory from outside of torch's allocator, besides the effect of ``changes``."""

    @property
    def keys(self) -> frozenset[str]:
        """Keys that no other cause may change at the same time."""
        adapters = {f"lora.{field.name}" for field in fields(Lora)} if "lora" in self.changes else set()
        return frozenset({self.name, *self.changes, *adapters})


CauseSource = Callable[[ResolvedJob], Iterator[Cause]]
"""Yields the causes that a job may have: a ``CauseRule`` or a function."""


class CauseRule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of causes: the jobs that it applies to, and other values of their settings."""

    name: str
    description: str
    applies: Callable[[ResolvedJob], bool] = lambda _job: True
    plausibility: float | Callable[[ResolvedJob], float]
    """Prior weight, or a function of the job that returns it."""
    changes: Mapping[str, Any] | Callable[[ResolvedJob], Mapping[str, Any]]
    """Dotted job keys and their values, or a function of the job that returns them."""
    fix: str = ""

    def __call__(self, job: ResolvedJob) -> Iterator[Cause]:
        """Yield the cause if it applies to the job."""
        if self.applies(job):
            yield Cause(
                name=self.name,
                description=self.description,
                plausibility=self.plausibility(job) if callable(self.plausibility) else self.plausibility,
                changes=self.changes(job) if callable(self.changes) else self.changes,
                fix=self.fix,
            )


Measure = Literal["device", "allocated", "outside", "loaded"]
"""The observed quantity: the process as NVML counts it, torch's allocated bytes, or memory outside of torch, each at
its peak; or the process once its weights are loaded, before the first step."""

_SPREAD: Mapping[Measure, float] = {"device": 0.04, "allocated": 0.015, "outside": 0.0, "loaded": 0.04}
"""Standard deviation of predictions, as a share of the measurement: interquartile ranges over 1.35 in the accuracy
table's rows of reserved and device bytes, and of allocated bytes (half as much again for their longer tails)."""
_MIN_SPREAD: Mapping[Measure, int] = {
    "device": 130 * MIB,
    "allocated": 32 * MIB,
    "outside": 130 * MIB,
    "loaded": 130 * MIB,
}
"""Minimum standard deviation: parts of one size in every job, such as CUDA context, libraries and workspaces."""
MAX_Z_SCORE = 2.5
"""Maximum z-score of an accepted explanation."""
FALLBACK_MAX_Z_SCORE = 4.0
"""Maximum z-score if no explanation is within ``MAX_Z_SCORE``."""
_MAX_UNEXPLAINED_SHARE = 0.5
"""Maximum share of the difference that an accepted explanation leaves."""
_NO_CAUSE_PRIOR = 10.0
"""Plausibility, relative to the causes, that the settings are right and the estimate is off."""
_PAIR_FACTOR = 1 / 60
"""Factor on the product of two causes' plausibilities: one over about the sum of all."""
_MAX_PAIRS = 200
"""Maximum number of pairs that are estimated, which takes about 60 ms."""
_MIN_WEIGHT_SHARE = 0.03
"""Minimum weight of a reported explanation, as a share of the best one's."""
SAME_BYTES_SHARE = 0.005
"""Relative difference below which no reading can distinguish two predictions."""
_MAX_SHORTENING = 16
"""Sequences are searched down to the length over this factor, and at least 64 tokens."""


class AllocatorCounters(Protocol):
    """Counters of torch's caching allocator for one process on one GPU; None: unknown."""

    @property
    def allocated_peak_bytes(self) -> int | None:
        """Peak of the tensors' memory."""

    @property
    def reserved_bytes(self) -> int | None:
        """Reserved now, at the time of ``Observation.now_bytes``."""

    @property
    def reserved_peak_bytes(self) -> int | None:
        """Peak of the memory that the allocator holds, its cache included."""

    @property
    def retries(self) -> int | None:
        """Number of times that the cache was flushed because an allocation failed."""

    @property
    def out_of_memory(self) -> int | None:
        """Number of allocations that failed even so."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Observed memory of one rank."""

    device_bytes: int | None
    """Peak of its steady phase; while it loads, its current memory."""
    loading: bool = False
    """It has taken no step yet: ``device_bytes`` are compared with the loading phase."""
    now_bytes: int | None = None
    """Its memory when the counters were read; None: ``device_bytes``."""
    counters: AllocatorCounters | None = None
    at_least: bool = False
    """It ran out of memory, and needed more than observed."""
    assumed: Collection[str] = ()
    """Dotted keys of the job that are defaults or inferences."""


PredictedBytes = Mapping[Measure, int]
"""Prediction of each quantity that may be observed."""


class WeighedCauses(msgspec.Struct, frozen=True):
    """Causes, and the prediction for a job with them."""

    weight: float
    """Plausibility times likelihood."""
    figures: PredictedBytes
    causes: tuple[Cause, ...]


class CauseSearch(msgspec.Struct, frozen=True, kw_only=True):
    """One observation, and the prediction that it is compared with."""

    budget: Budget
    quick: Budget
    estimate: Estimate
    measure: Measure
    observed: int
    at_least: bool
    """The process ran out of memory and needed more than observed: larger predictions count as exact."""

    def weigh(self, groups: Sequence[tuple[Cause, ...]]) -> list[WeighedCauses]:
        """Return each group of causes with its weight, without those that give no valid job."""
        found = []
        for causes in groups:
            figures = self._predict(causes)
            if figures is not None:
                plausibility = math.prod(cause.plausibility for cause in causes) * _PAIR_FACTOR ** (len(causes) - 1)
                found.append(WeighedCauses(plausibility * self._likelihood(figures), figures, causes))
        return found

    def accepted(self, found: Sequence[WeighedCauses], z_score: float) -> list[WeighedCauses]:
        """Return those within ``z_score`` that are more likely than an error of the estimate, the likeliest first."""
        expected = _figures(self.budget)
        gap = abs(self._error(expected))
        least = _NO_CAUSE_PRIOR * self._likelihood(expected)
        close = [
            each
            for each in found
            if each.weight > least
            and abs(self._error(each.figures)) <= min(z_score * self._spread(), _MAX_UNEXPLAINED_SHARE * gap)
        ]
        close.sort(key=lambda each: -each.weight)
        return [each for each in close if each.weight >= _MIN_WEIGHT_SHARE * close[0].weight]

    def pairs(self, singles: Sequence[WeighedCauses]) -> list[WeighedCauses]:
        """Return the most promising pairs of causes, assuming that their effects add up or multiply."""
        base = _figures(self.budget)[self.measure]
        moving = [each for each in singles if abs(each.figures[self.measure] - base) > SAME_BYTES_SHARE * base]
        guesses = []
        for one, other in combinations(moving, 2):
            (a,), (b,) = one.causes, other.causes
            if a.keys & b.keys:
                continue
            first, second = one.figures[self.measure], other.figures[self.measure]
            difference = min(abs(self._difference(first + second - base)), abs(self._difference(first * second / base)))
            plausibility = a.plausibility * b.plausibility
            guesses.append((plausibility / (1 + (difference / (3 * self._spread())) ** 2), (a, b)))
        guesses.sort(key=lambda guess: -guess[0])
        with with_reserved_memory("guessed"):
            rough = replace(self, quick=self.estimate(self.budget.job))
            return rough.weigh([pair for _, pair in guesses[:_MAX_PAIRS]])

    def shorter_sequences(self) -> list[WeighedCauses]:
        """Return the sequence length that predicts the observation, if a shorter one does.

        Any length is possible, so its prior is spread over all of them: only the share within the standard deviation
        counts. A cause with a single prediction, if that is right, then counts for more.
        """
        length, expected = self.budget.job.training.sequence_length, _figures(self.budget)[self.measure]
        min_length = max(64, length // _MAX_SHORTENING)
        if min_length >= length or self.observed >= expected:
            return []
        least = self._predict((_length_cause(length, min_length),))
        if least is None or least[self.measure] > self.observed + MAX_Z_SCORE * self._spread():
            return []
        low, high = min_length, length
        while high - low > max(1, length // 128):
            middle = (low + high) // 2
            figures = self._predict((_length_cause(length, middle),))
            if figures is None:
                return []
            low, high = (middle, high) if figures[self.measure] <= self.observed else (low, middle)
        cause = _length_cause(length, min(_rounded(low), length - 1))
        figures = self._predict((cause,))
        if figures is None:
            return []
        share = min(1.0, math.sqrt(2 * math.pi) * self._spread() / max(1, expected - least[self.measure]))
        return [WeighedCauses(cause.plausibility * share * self._likelihood(figures), figures, (cause,))]

    def _predict(self, causes: tuple[Cause, ...]) -> PredictedBytes | None:
        changes: dict[str, Any] = {}
        for cause in causes:
            changes |= cause.changes
        budget = self.quick
        if changes:
            try:
                budget = self.estimate(with_changes(self.budget.job, changes))
            except VramtopError:
                return None
        allocated = sum(cause.allocated_bytes for cause in causes)
        outside = sum(cause.outside_bytes for cause in causes)
        more: PredictedBytes = {
            "device": allocated + outside,
            "allocated": allocated,
            "outside": outside,
            "loaded": 0,
        }
        found, mine, quick = _figures(budget), _figures(self.budget), _figures(self.quick)
        return {measure: found[measure] + mine[measure] - quick[measure] + more[measure] for measure in more}

    def _error(self, figures: PredictedBytes) -> float:
        return self._difference(figures[self.measure])

    def _difference(self, predicted: float) -> float:
        off = predicted - self.observed
        return min(0.0, off) if self.at_least else off

    def _spread(self) -> float:
        return max(_SPREAD[self.measure] * self.observed, _MIN_SPREAD[self.measure])

    def _likelihood(self, figures: PredictedBytes) -> float:
        """Return Student's t density with three degrees of freedom, not normalised: predictions have long tails."""
        return (1 + (self._error(figures) / self._spread()) ** 2 / 3) ** -2


def _figures(budget: Budget) -> PredictedBytes:
    loading, peak = budget.phase("loading"), budget.phase(budget.peak.phase)
    return {
        "device": budget.peak.device_bytes,
        "allocated": budget.peak.allocated_bytes,
        "outside": peak.outside_bytes if peak else 0,
        "loaded": loading.components.total_bytes if loading else 0,
    }


def _rounded(length: int) -> int:
    """Return a power of two if one is near, else two significant digits: memory does not determine more."""
    power = 1 << round(math.log2(length))
    return power if abs(power / length - 1) <= 0.05 else round(length, 1 - int(math.log10(length)))


def _length_cause(now: int, length: int) -> Cause:
    # batches are padded to their longest text, which is seldom the limit
    return Cause(
        name="shorter sequences",
        description=f"sequences have about {length} tokens, not {now}",
        plausibility=COMMON,
        changes={"training.sequence_length": length},
    )
