"""What the causes of a divergence make of a job, and how likely that makes each of them.

A weight is a plausibility times the likelihood of what was observed, so that the estimate being off by itself counts
as one more cause.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from ..budget.budget import Budget
from ..common.errors import VramtopError
from ..common.sizes import MIB
from ..job.job import Job
from ..job.job_file import with_changes
from .cause import COMMON, Cause
from .extra_memory import Estimate

Measure = Literal["device", "allocated", "outside", "loaded"]
"""What was observed: the process as NVML counts it, torch's allocated bytes, or what is held outside of torch, each at
its peak; or the process once its weights are loaded, before the first step."""

_SPREAD: Mapping[Measure, float] = {"device": 0.04, "allocated": 0.015, "outside": 0.0, "loaded": 0.04}
"""Standard deviation of predictions, as a share of what was measured: interquartile ranges over 1.35 of the accuracy
table's rows of reserved and device bytes, and of allocated bytes (with a half more, for their longer tails)."""
_MIN_SPREAD: Mapping[Measure, int] = {
    "device": 130 * MIB,
    "allocated": 32 * MIB,
    "outside": 130 * MIB,
    "loaded": 130 * MIB,
}
"""The same of what is of one size in every job: CUDA context and libraries, workspaces."""
MAX_Z_SCORE = 2.5
"""An explanation comes so near, in deviations."""
FALLBACK_MAX_Z_SCORE = 4.0
"""The same where none does."""
_MAX_UNEXPLAINED_SHARE = 0.5
"""And leaves no more than this share of the difference."""
_NO_CAUSE_PRIOR = 10.0
"""How plausible it is, relative to the causes, that settings are right and the estimate is off."""
_PAIR_FACTOR = 1 / 60
"""Two causes at once: the product of their weights over about the sum of all."""
_MAX_PAIRS = 200
"""So many pairs are estimated: about 60 ms."""
_MIN_WEIGHT_SHARE = 0.03
"""Less plausible than the best by this factor: not worth a line."""
SAME_BYTES_SHARE = 0.005
"""Predictions that differ by less cannot be told apart by any reading."""
_MAX_SHORTENING = 16
"""Sequences are looked for down to a sixteenth of the length, and 64 tokens."""


@dataclass(frozen=True, slots=True)
class PredictedBytes:
    """What a job takes, by what may be observed."""

    device: int
    allocated: int
    outside: int
    loaded: int

    def of(self, measure: Measure) -> int:
        """The figure that was observed."""
        return getattr(self, measure)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class WeighedCauses:
    """Causes, and what they make of the job."""

    weight: float
    """Plausibility times likelihood."""
    figures: PredictedBytes
    causes: tuple[Cause, ...]


@dataclass(slots=True, kw_only=True)
class CauseSearch:
    """One observation, and what it is held against."""

    job: Job
    budget: Budget
    quick: Budget
    estimate: Estimate
    measure: Measure
    observed: int
    loaded: int | None = None
    """What was held between loading and the first step, if that is known."""
    at_least: bool = False
    """It would have held more, had there been room: predictions beyond it are not off."""

    def of_each(self, together: Sequence[tuple[Cause, ...]]) -> list[WeighedCauses]:
        """What these make of the job, where it is a job."""
        found = []
        for each in together:
            figures = self._figures(each)
            if figures is not None:
                plausibility = math.prod(cause.plausibility for cause in each) * _PAIR_FACTOR ** (len(each) - 1)
                found.append(WeighedCauses(plausibility * self._likelihood(figures), figures, each))
        return found

    def near(self, found: Sequence[WeighedCauses], deviations: float) -> list[WeighedCauses]:
        """Those that come near, and are likelier than an estimate that is off; the likeliest first."""
        now = self._now()
        gap = abs(self._off(now))
        least = _NO_CAUSE_PRIOR * self._likelihood(now)
        close = [
            each
            for each in found
            if each.weight > least
            and abs(self._off(each.figures)) <= min(deviations * self._spread(), _MAX_UNEXPLAINED_SHARE * gap)
        ]
        close.sort(key=lambda each: -each.weight)
        return [each for each in close if each.weight >= _MIN_WEIGHT_SHARE * close[0].weight]

    def pairs(self, singles: Sequence[WeighedCauses]) -> list[WeighedCauses]:
        """Two causes at once, by what their effects come to together if they add up or multiply."""
        now = self._now()
        base = now.of(self.measure)
        moving = [each for each in singles if abs(each.figures.of(self.measure) - base) > SAME_BYTES_SHARE * base]
        guesses = []
        for one, other in combinations(moving, 2):
            (a,), (b,) = one.causes, other.causes
            if a.keys & b.keys:
                continue
            first, second = one.figures.of(self.measure), other.figures.of(self.measure)
            miss = min(abs(self._miss(first + second - base)), abs(self._miss(first * second / base)))
            plausibility = a.plausibility * b.plausibility
            guesses.append((plausibility / (1 + (miss / (3 * self._spread())) ** 2), (a, b)))
        guesses.sort(key=lambda guess: -guess[0])
        return self.of_each([pair for _, pair in guesses[:_MAX_PAIRS]])

    def shorter(self) -> list[WeighedCauses]:
        """Sequences so short that they predict what is observed, where there are such.

        A length can be anything: of what lies between the longest and the shortest it takes what the spread covers,
        so that a cause which predicts one figure alone, and the right one, counts for more.
        """
        length, now = self.job.training.sequence_length, self._now().of(self.measure)
        shortest = max(64, length // _MAX_SHORTENING)
        if shortest >= length or self.observed >= now:
            return []
        least = self._figures((_of_length(self.job, shortest),))
        if least is None or least.of(self.measure) > self.observed + MAX_Z_SCORE * self._spread():
            return []
        low, high = shortest, length
        while high - low > max(1, length // 128):
            middle = (low + high) // 2
            figures = self._figures((_of_length(self.job, middle),))
            if figures is None:
                return []
            low, high = (middle, high) if figures.of(self.measure) <= self.observed else (low, middle)
        cause = _of_length(self.job, min(_rounded(low), length - 1))
        figures = self._figures((cause,))
        if figures is None:
            return []
        share = min(1.0, math.sqrt(2 * math.pi) * self._spread() / max(1, now - least.of(self.measure)))
        return [WeighedCauses(cause.plausibility * share * self._likelihood(figures), figures, (cause,))]

    def _figures(self, together: tuple[Cause, ...]) -> PredictedBytes | None:
        changes: dict[str, Any] = {}
        for cause in together:
            changes |= cause.changes
        budget = self.quick
        if changes:
            try:
                budget = self.estimate(with_changes(self.job, changes))
            except VramtopError:
                return None
        allocated = sum(cause.allocated_bytes for cause in together)
        outside = sum(cause.outside_bytes for cause in together)
        loading = sum(cause.loading_bytes for cause in together)
        mine, quick = self.budget.peak, self.quick.peak
        return PredictedBytes(
            device=budget.peak.device_bytes + mine.device_bytes - quick.device_bytes + allocated + outside,
            allocated=budget.peak.allocated_bytes + mine.allocated_bytes - quick.allocated_bytes + allocated,
            outside=_outside(budget) + _outside(self.budget) - _outside(self.quick) + outside,
            loaded=_loaded(budget) + _loaded(self.budget) - _loaded(self.quick) + loading,
        )

    def _now(self) -> PredictedBytes:
        budget = self.budget
        return PredictedBytes(budget.peak.device_bytes, budget.peak.allocated_bytes, _outside(budget), _loaded(budget))

    def _off(self, figures: PredictedBytes) -> float:
        return self._miss(figures.of(self.measure))

    def _miss(self, predicted: float) -> float:
        off = predicted - self.observed
        return min(0.0, off) if self.at_least else off

    def _spread(self) -> float:
        return max(_SPREAD[self.measure] * self.observed, _MIN_SPREAD[self.measure])

    def _likelihood(self, figures: PredictedBytes) -> float:
        likely = _student_t(self._off(figures) / self._spread())
        if self.loaded is not None and self.measure != "loaded":
            # what is cached from loading makes it vague
            spread = 2 * _SPREAD["loaded"] * self.loaded + _MIN_SPREAD["loaded"]
            likely *= _student_t((figures.loaded - self.loaded) / spread)
        return likely


def _student_t(deviations: float) -> float:
    """Student's t of three degrees: predictions have long tails."""
    return (1 + deviations**2 / 3) ** -2


def _loaded(budget: Budget) -> int:
    loading = budget.phase("loading")
    return loading.components.total_bytes if loading else 0


def _outside(budget: Budget) -> int:
    fullest = budget.phase(budget.peak.phase)
    return fullest.outside_bytes if fullest else 0


def _rounded(length: int) -> int:
    """A power of two where one is near, else two digits: more cannot be told."""
    power = 1 << round(math.log2(length))
    return power if abs(power / length - 1) <= 0.05 else round(length, 1 - int(math.log10(length)))


def _of_length(job: Job, length: int) -> Cause:
    # batches are padded to their longest text, and that is seldom the limit
    return Cause(
        name="shorter sequences",
        words=f"sequences have about {length} tokens, not {job.training.sequence_length}",
        plausibility=COMMON,
        changes={"training.sequence_length": length},
    )
