"""Why a job holds more or less than predicted: settings one or two changes away that would predict what is observed.

Each cause (``causes``, ``causes_beside``) is weighed by how plausible it is and how near its prediction comes, against
the estimate being off by itself. What predicts the same bytes cannot be told apart, and is said together.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

from .budget import Budget
from .cause import COMMON, Cause
from .causes import causes
from .causes_beside import Estimate, beside, on_the_card
from .errors import VramtopError
from .job import Job
from .jobfile import with_changes
from .sizes import MIB, format_gib

Measure = Literal["device", "allocated", "loaded"]
"""What was observed: the process as NVML counts it, or torch's allocated bytes, both at their peak; or the process
once its weights are loaded, before the first step."""

_SPREAD: Mapping[Measure, float] = {"device": 0.04, "allocated": 0.015, "loaded": 0.04}
"""Standard deviation of predictions, as a share of what was measured: interquartile ranges over 1.35 of the accuracy
table's rows of reserved and device bytes, and of allocated bytes (with a half more, for their longer tails)."""
_LEAST_SPREAD = 130 * MIB
"""The same of CUDA context and libraries, which small jobs consist of."""
_NEAR = 2.5
"""An explanation comes so near, in deviations."""
_CLOSES = 0.5
"""And leaves no more than this share of the difference."""
_NOTHING = 10.0
"""How plausible it is, relative to the causes, that settings are right and the estimate is off."""
_TOGETHER = 1 / 60
"""Two causes at once: the product of their weights over about the sum of all."""
_MOST_PAIRS = 300
"""So many pairs are estimated: about 80 ms."""
_FAINT = 0.03
"""Less plausible than the best by this factor: not worth a line."""
_MOST = 6
_SAME = 0.005
"""Predictions that differ by less cannot be told apart by any reading."""
_SHORTEST = 16
"""Sequences are looked for down to a sixteenth of the length, and 64 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Something that would predict what is observed."""

    changes: dict[str, Any]
    """Dotted job keys and the values that would explain it; empty where no setting says it."""
    words: str
    """For people: ``activation checkpointing is off``."""
    device_bytes: int
    """What the job would take with them, as NVML counts it."""
    off_bytes: int
    """What it predicts of the figure that was observed, less that."""
    name: str = ""
    """What its causes are called in tables."""
    fix: str = ""
    """What to look at or to do; empty where there is nothing but the words."""
    group: int = 0
    """Explanations of one number predict the same bytes: which of them it is cannot be told from memory."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a job takes, by what may be observed."""

    device: int
    allocated: int
    loaded: int

    def of(self, measure: Measure) -> int:
        return getattr(self, measure)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Found:
    weight: float
    """Plausibility times likelihood."""
    figures: _Figures
    causes: tuple[Cause, ...]


def explain(
    job: Job,
    budget: Budget,
    observed_bytes: int,
    estimate: Estimate,
    *,
    measure: Measure = "device",
    loaded_bytes: int | None = None,
    assumed: Collection[str] = (),
    of_card: bool = False,
    foreign_bytes: int | None = None,
) -> tuple[Explanation, ...]:
    """What comes near to what is observed, the likeliest first; empty where nothing does, or nothing needs to.

    Single causes first; two together only where no single one explains it. What a cause makes of the job is taken
    from the quick estimate and added to the budget, so that a traced budget keeps its own figure.

    Args:
        job: as it was read.
        budget: its prediction.
        observed_bytes: what a rank holds in the steady phase; by ``measure`` otherwise.
        estimate: a quick estimate of a changed job; may raise VramtopError.
        measure: what ``observed_bytes`` are.
        loaded_bytes: what the process held between loading and the first step, if that is known.
        assumed: dotted keys of the job that nobody wrote down: defaults and inferences.
        of_card: ``observed_bytes`` are those of the whole card, not of one process.
        foreign_bytes: what other processes are known to hold on it.
    """
    try:
        quick = estimate(job)
    except VramtopError:
        return ()
    search = _Search(job=job, budget=budget, quick=quick, estimate=estimate, measure=measure, observed=observed_bytes)
    search.loaded = loaded_bytes
    singles = [*causes(job, assumed), *beside(job, quick, estimate)]
    if of_card:
        singles += on_the_card(quick, foreign_bytes)
    found = search.of_each([(cause,) for cause in singles])
    found += search.shorter()
    near = search.near(found) or search.near(search.pairs(found))
    return tuple(_explanations(near, observed_bytes, measure))


@dataclass(slots=True, kw_only=True)
class _Search:
    """One observation, and what it is held against."""

    job: Job
    budget: Budget
    quick: Budget
    estimate: Estimate
    measure: Measure
    observed: int
    loaded: int | None = None
    singles: dict[str, _Found] = field(default_factory=dict)

    def of_each(self, together: Sequence[tuple[Cause, ...]]) -> list[_Found]:
        """What these make of the job, where it is a job."""
        found = []
        for each in together:
            figures = self._figures(each)
            if figures is not None:
                plausible = math.prod(cause.plausible for cause in each) * _TOGETHER ** (len(each) - 1)
                found.append(_Found(plausible * self._likelihood(figures), figures, each))
        return found

    def near(self, found: Sequence[_Found]) -> list[_Found]:
        """Those that come near, and are likelier than an estimate that is off; the likeliest first."""
        now = self._now()
        gap = abs(now.of(self.measure) - self.observed)
        least = _NOTHING * self._likelihood(now)
        close = [
            each
            for each in found
            if each.weight > least and abs(self._off(each.figures)) <= min(_NEAR * self._spread(), _CLOSES * gap)
        ]
        close.sort(key=lambda each: -each.weight)
        return [each for each in close if each.weight >= _FAINT * close[0].weight]

    def pairs(self, singles: Sequence[_Found]) -> list[_Found]:
        """Two causes at once, by what their effects come to together if they add up or multiply."""
        now = self._now()
        base = now.of(self.measure)
        moving = [each for each in singles if abs(each.figures.of(self.measure) - base) > _SAME * base]
        guesses = []
        for one, other in combinations(moving, 2):
            (a,), (b,) = one.causes, other.causes
            if a.keys & b.keys:
                continue
            first, second = one.figures.of(self.measure), other.figures.of(self.measure)
            miss = min(abs(first + second - base - self.observed), abs(first * second / base - self.observed))
            plausible = a.plausible * b.plausible
            guesses.append((plausible / (1 + (miss / (3 * self._spread())) ** 2), (a, b)))
        guesses.sort(key=lambda guess: -guess[0])
        return self.of_each([pair for _, pair in guesses[:_MOST_PAIRS]])

    def shorter(self) -> list[_Found]:
        """Sequences so short that they predict what is observed, where there are such.

        A length can be anything: of what lies between the longest and the shortest it takes what the spread covers,
        so that a cause which predicts one figure alone, and the right one, counts for more.
        """
        length, now = self.job.training.sequence_length, self._now().of(self.measure)
        shortest = max(64, length // _SHORTEST)
        if shortest >= length or self.observed >= now:
            return []
        least = self._figures((_of_length(self.job, shortest),))
        if least is None or least.of(self.measure) > self.observed + _NEAR * self._spread():
            return []
        low, high = shortest, length
        while high - low > max(1, length // 128):
            middle = (low + high) // 2
            figures = self._figures((_of_length(self.job, middle),))
            if figures is None:
                return []
            low, high = (middle, high) if figures.of(self.measure) <= self.observed else (low, middle)
        cause = _of_length(self.job, low)
        figures = self._figures((cause,))
        if figures is None:
            return []
        share = min(1.0, math.sqrt(2 * math.pi) * self._spread() / max(1, now - least.of(self.measure)))
        return [_Found(cause.plausible * share * self._likelihood(figures), figures, (cause,))]

    def _figures(self, together: tuple[Cause, ...]) -> _Figures | None:
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
        return _Figures(
            device=budget.peak.device_bytes + mine.device_bytes - quick.device_bytes + allocated + outside,
            allocated=budget.peak.allocated_bytes + mine.allocated_bytes - quick.allocated_bytes + allocated,
            loaded=_loaded(budget) + _loaded(self.budget) - _loaded(self.quick) + loading,
        )

    def _now(self) -> _Figures:
        peak = self.budget.peak
        return _Figures(peak.device_bytes, peak.allocated_bytes, _loaded(self.budget))

    def _off(self, figures: _Figures) -> int:
        return figures.of(self.measure) - self.observed

    def _spread(self) -> float:
        return max(_SPREAD[self.measure] * self.observed, _LEAST_SPREAD * (0.25 if self.measure == "allocated" else 1))

    def _likelihood(self, figures: _Figures) -> float:
        likely = _student(self._off(figures) / self._spread())
        if self.loaded is not None and self.measure != "loaded":
            # what is cached from loading makes it vague
            likely *= _student((figures.loaded - self.loaded) / (2 * _SPREAD["loaded"] * self.loaded + _LEAST_SPREAD))
        return likely


def _student(deviations: float) -> float:
    """Student's t of three degrees: predictions have long tails."""
    return (1 + deviations**2 / 3) ** -2


def _loaded(budget: Budget) -> int:
    loading = budget.phase("loading")
    return loading.components.total_bytes if loading else 0


def _of_length(job: Job, length: int) -> Cause:
    # batches are padded to their longest text, and that is seldom the limit
    return Cause(
        name="shorter sequences",
        words=f"sequences have about {length} tokens, not {job.training.sequence_length}",
        plausible=COMMON,
        changes={"training.sequence_length": length},
    )


def _explanations(near: Sequence[_Found], observed: int, measure: Measure) -> Iterator[Explanation]:
    for number, group in enumerate(_groups(near, measure)):
        for each in group:
            yield Explanation(
                changes={key: value for cause in each.causes for key, value in cause.changes.items()},
                words=" and ".join(cause.words for cause in each.causes),
                device_bytes=each.figures.device,
                off_bytes=each.figures.of(measure) - observed,
                name=" + ".join(cause.name for cause in each.causes),
                fix="; ".join(cause.fix for cause in each.causes if cause.fix),
                group=number,
            )


def _groups(near: Sequence[_Found], measure: Measure) -> list[list[_Found]]:
    """The same bytes together, the likeliest group first; in all no more than are worth reading."""
    groups: list[list[_Found]] = []
    for each in near[:_MOST]:
        size = each.figures.of(measure)
        group = next((g for g in groups if abs(g[0].figures.of(measure) - size) <= _SAME * size), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return sorted(groups, key=lambda group: -group[0].weight)
