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
_LEAST_SPREAD: Mapping[Measure, int] = {
    "device": 130 * MIB,
    "allocated": 32 * MIB,
    "outside": 130 * MIB,
    "loaded": 130 * MIB,
}
"""The same of what is of one size in every job: CUDA context and libraries, workspaces."""
NEAR = 2.5
"""An explanation comes so near, in deviations."""
FARTHEST = 4.0
"""The same where none does."""
_CLOSES = 0.5
"""And leaves no more than this share of the difference."""
_NOTHING = 10.0
"""How plausible it is, relative to the causes, that settings are right and the estimate is off."""
_TOGETHER = 1 / 60
"""Two causes at once: the product of their weights over about the sum of all."""
_MOST_PAIRS = 200
"""So many pairs are estimated: about 60 ms."""
_FAINT = 0.03
"""Less plausible than the best by this factor: not worth a line."""
SAME = 0.005
"""Predictions that differ by less cannot be told apart by any reading."""
_SHORTEST = 16
"""Sequences are looked for down to a sixteenth of the length, and 64 tokens."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a job takes, by what may be observed."""

    device: int
    allocated: int
    outside: int
    loaded: int

    def of(self, measure: Measure) -> int:
        """The figure that was observed."""
        return getattr(self, measure)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Found:
    """Causes, and what they make of the job."""

    weight: float
    """Plausibility times likelihood."""
    figures: Figures
    causes: tuple[Cause, ...]


@dataclass(slots=True, kw_only=True)
class Search:
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

    def of_each(self, together: Sequence[tuple[Cause, ...]]) -> list[Found]:
        """What these make of the job, where it is a job."""
        found = []
        for each in together:
            figures = self._figures(each)
            if figures is not None:
                plausible = math.prod(cause.plausible for cause in each) * _TOGETHER ** (len(each) - 1)
                found.append(Found(plausible * self._likelihood(figures), figures, each))
        return found

    def near(self, found: Sequence[Found], deviations: float) -> list[Found]:
        """Those that come near, and are likelier than an estimate that is off; the likeliest first."""
        now = self._now()
        gap = abs(self._off(now))
        least = _NOTHING * self._likelihood(now)
        close = [
            each
            for each in found
            if each.weight > least and abs(self._off(each.figures)) <= min(deviations * self._spread(), _CLOSES * gap)
        ]
        close.sort(key=lambda each: -each.weight)
        return [each for each in close if each.weight >= _FAINT * close[0].weight]

    def pairs(self, singles: Sequence[Found]) -> list[Found]:
        """Two causes at once, by what their effects come to together if they add up or multiply."""
        now = self._now()
        base = now.of(self.measure)
        moving = [each for each in singles if abs(each.figures.of(self.measure) - base) > SAME * base]
        guesses = []
        for one, other in combinations(moving, 2):
            (a,), (b,) = one.causes, other.causes
            if a.keys & b.keys:
                continue
            first, second = one.figures.of(self.measure), other.figures.of(self.measure)
            miss = min(abs(self._miss(first + second - base)), abs(self._miss(first * second / base)))
            plausible = a.plausible * b.plausible
            guesses.append((plausible / (1 + (miss / (3 * self._spread())) ** 2), (a, b)))
        guesses.sort(key=lambda guess: -guess[0])
        return self.of_each([pair for _, pair in guesses[:_MOST_PAIRS]])

    def shorter(self) -> list[Found]:
        """Sequences so short that they predict what is observed, where there are such.

        A length can be anything: of what lies between the longest and the shortest it takes what the spread covers,
        so that a cause which predicts one figure alone, and the right one, counts for more.
        """
        length, now = self.job.training.sequence_length, self._now().of(self.measure)
        shortest = max(64, length // _SHORTEST)
        if shortest >= length or self.observed >= now:
            return []
        least = self._figures((_of_length(self.job, shortest),))
        if least is None or least.of(self.measure) > self.observed + NEAR * self._spread():
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
        return [Found(cause.plausible * share * self._likelihood(figures), figures, (cause,))]

    def _figures(self, together: tuple[Cause, ...]) -> Figures | None:
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
        return Figures(
            device=budget.peak.device_bytes + mine.device_bytes - quick.device_bytes + allocated + outside,
            allocated=budget.peak.allocated_bytes + mine.allocated_bytes - quick.allocated_bytes + allocated,
            outside=_outside(budget) + _outside(self.budget) - _outside(self.quick) + outside,
            loaded=_loaded(budget) + _loaded(self.budget) - _loaded(self.quick) + loading,
        )

    def _now(self) -> Figures:
        budget = self.budget
        return Figures(budget.peak.device_bytes, budget.peak.allocated_bytes, _outside(budget), _loaded(budget))

    def _off(self, figures: Figures) -> float:
        return self._miss(figures.of(self.measure))

    def _miss(self, predicted: float) -> float:
        off = predicted - self.observed
        return min(0.0, off) if self.at_least else off

    def _spread(self) -> float:
        return max(_SPREAD[self.measure] * self.observed, _LEAST_SPREAD[self.measure])

    def _likelihood(self, figures: Figures) -> float:
        likely = _student(self._off(figures) / self._spread())
        if self.loaded is not None and self.measure != "loaded":
            # what is cached from loading makes it vague
            spread = 2 * _SPREAD["loaded"] * self.loaded + _LEAST_SPREAD["loaded"]
            likely *= _student((figures.loaded - self.loaded) / spread)
        return likely


def _student(deviations: float) -> float:
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
        plausible=COMMON,
        changes={"training.sequence_length": length},
    )
