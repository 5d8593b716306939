"""Searches for the smallest changes that make a job fit, ranked by their cost in speed and quality."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from ..budget import Budget
from ..common import CannotTellError, VramtopError, with_reserved_memory
from ..job import Job, with_changes
from .change import HOST_LOADING, Change
from .change_table import candidate_changes

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
Estimate = Callable[[Job], Budget]
Judge = Callable[[Budget], Verdict]

_MAX_PAIR_COST_SHARE = 0.75
"""Maximum cost of a pair, as a share of the cheapest single change that fits."""
_MIN_COST_FOR_TRIPLES = 1.0
"""Three changes are tried if the cheapest solution costs more: as if a step took twice as long."""
_MAX_EXTENDED_PAIRS = 6
"""Number of pairs to which a third change is added."""
_MAX_CONFIRMATIONS = 4
"""Maximum number of suggestions that are traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One to three changes, and the budget of the changed job."""

    parts: tuple[Change, ...]
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    budget: Budget
    verdict: Verdict
    confirmed: bool = False
    """The budget comes from a traced step, not from the quick estimate."""

    @property
    def cost(self) -> float:
        """Slowdown and loss of quality together, by which suggestions are ranked."""
        return sum(part.cost for part in self.parts)

    @property
    def why(self) -> str:
        """Description of the cost, in a few words."""
        return "; ".join(dict.fromkeys(part.why for part in self.parts))

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the costs."""
        return tuple(dict.fromkeys(part.source for part in self.parts))


def suggest(
    job: Job,
    current: Budget,
    estimate: Estimate,
    judge: Judge,
    *,
    gpus: int = 1,
    most: int = 6,
) -> tuple[Suggestion, ...]:
    """Return changes that make the job fit, the cheapest first, then those that make it tight.

    If nothing does either, the changes that lower its memory most. Of graded changes (micro-batch, length, GPUs) only
    the smallest sufficient one is returned. Pairs combine changes of which neither is sufficient alone, and are tried
    only if no single change is sufficient, or if the pair costs much less. If all solutions are costly, a third change
    is added to the best pairs.

    Args:
        job: the job to change.
        current: its budget; if that is not the quick estimate's, the difference is added to every figure.
        estimate: returns a quick estimate of a changed job.
        judge: returns the verdict on a budget.
        gpus: number of GPUs that there are, for sharding the job further.
        most: maximum number of suggestions.
    """
    search = _Search(job, current, calibrated(job, current, estimate), judge)
    changes = candidate_changes(job, gpus=gpus)
    singles = list(_smallest_per_kind(search.estimates((change,) for change in changes)))
    if judge(shifted(current, -current.peak.high_bytes)) == "fits":  # host memory is no limit
        changes = tuple(change for change in changes if change.kind != HOST_LOADING)
    with with_reserved_memory("guessed"):
        combining = _Search(job, current, calibrated(job, current, estimate), judge)
        combined = _search_combinations(combining, changes, singles, most)
    ranked = _ranked(_without_redundant(_without_repetitions([*singles, *combined])))
    return tuple(_settled(search, ranked, most)[:most])


def _settled(search: "_Search", ranked: Sequence[Suggestion], most: int) -> list[Suggestion]:
    """Return the best suggestions with the figures of a better estimate, in their order by it."""
    candidates = (suggestion.parts for suggestion in ranked[: 2 * most])
    return _ranked(list(search.estimates(candidates, until=most)))


def confirm(
    suggestions: Sequence[Suggestion],
    estimate: Estimate,
    judge: Judge,
    *,
    enough: int = 2,
    progress: Callable[[str], None] | None = None,
) -> tuple[Suggestion, ...]:
    """Return the suggestions with the best few checked by a slower and more accurate estimate.

    Those that do not fit after all are dropped, or come last if they are tight.

    Args:
        suggestions: the result of ``suggest``.
        estimate: the more accurate one, such as a traced step; a job that it cannot estimate stays unconfirmed.
        judge: returns the verdict on a budget.
        enough: number of confirmed suggestions that fit after which the check ends.
        progress: called with the step that is being done.
    """
    kept: list[Suggestion] = []
    failed: list[Suggestion] = []
    tries = 0
    for index, suggestion in enumerate(suggestions):
        holding = sum(s.confirmed and s.verdict == "fits" for s in kept)
        if suggestion.verdict != "fits" or holding >= enough or tries >= _MAX_CONFIRMATIONS:
            kept.extend(suggestions[index:])
            break
        tries += 1
        if progress:
            progress(f"checking {' and '.join(_words(suggestion.changes))}")
        try:
            budget = estimate(suggestion.budget.job)
        except CannotTellError:
            kept.extend(suggestions[index:])
            break
        except VramtopError:  # the model itself rejects it
            continue
        checked = replace(suggestion, budget=budget, verdict=judge(budget), confirmed=True)
        (kept if checked.verdict == "fits" else failed).append(checked)
    kept.sort(key=lambda s: s.verdict != "fits")
    return (*kept, *(s for s in failed if s.verdict == "tight"))


def calibrated(job: Job, current: Budget, estimate: Estimate) -> Estimate:
    """Return the quick estimate, shifted by the difference between it and the job's more accurate budget."""
    try:
        by = current.peak.device_bytes - estimate(job).peak.device_bytes
    except VramtopError:
        by = 0
    return estimate if not by else lambda changed: shifted(estimate(changed), by)


def _search_combinations(
    search: "_Search", changes: Sequence[Change], singles: Sequence[Suggestion], most: int
) -> list[Suggestion]:
    """Return pairs that cost much less than the sufficient single changes, and triples if all of them are costly."""
    enough = [s for s in singles if s.verdict == "fits"]
    limit = _MAX_PAIR_COST_SHARE * _lowest_cost(enough)
    alone = {part.kind for s in enough for part in s.parts if s.cost <= limit}
    pairs = sorted((pair for pair in combinations(changes, 2) if _compatible(pair)), key=_cost)
    worth = (pair for pair in pairs if _cost(pair) <= limit and not any(part.kind in alone for part in pair))
    found = list(_smallest_per_kind(search.estimates(worth, until=most)))
    cheapest = _lowest_cost([s for s in (*enough, *found) if s.verdict == "fits"])
    if cheapest > _MIN_COST_FOR_TRIPLES:
        triples = _triples(found, changes, _MAX_PAIR_COST_SHARE * cheapest)
        found += _smallest_per_kind(search.estimates(triples, until=most))
    return found


def _ranked(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return those that fit, then the tight ones, the cheapest first; if there are none, those with least memory."""
    by_cost = sorted(found, key=lambda s: (s.cost, len(s.parts), s.budget.peak.device_bytes))
    fitting = [s for s in by_cost if s.verdict == "fits"]
    tight = [s for s in by_cost if s.verdict == "tight"]
    return [*fitting, *tight] or sorted(by_cost, key=lambda s: s.budget.peak.device_bytes)


class _Search:
    """Estimates changed jobs."""

    def __init__(self, job: Job, current: Budget, estimate: Estimate, judge: Judge) -> None:
        self._job, self._estimate, self._judge = job, estimate, judge
        self._current_bytes = current.peak.device_bytes

    def estimates(self, candidates: Iterable[tuple[Change, ...]], *, until: int | None = None) -> Iterator[Suggestion]:
        """Yield the changes that lower the memory that the job needs, until ``until`` of them fit."""
        fitting = 0
        for parts in candidates:
            changes: dict[str, Any] = {}
            for part in parts:
                changes |= part.changes
            try:
                budget = self._estimate(with_changes(self._job, changes))
            except VramtopError:
                continue
            verdict = self._judge(budget)
            if budget.peak.device_bytes >= self._current_bytes and verdict != "fits":
                continue
            yield Suggestion(parts=parts, changes=changes, budget=budget, verdict=verdict)
            fitting += verdict == "fits"
            if until is not None and fitting >= until:
                return


def shifted(budget: Budget, by: int) -> Budget:
    """Return the budget with ``by`` bytes added to all device figures; its components are unchanged."""
    if not by:
        return budget
    peak = replace(
        budget.peak,
        device_bytes=max(0, budget.peak.device_bytes + by),
        low_bytes=max(0, budget.peak.low_bytes + by),
        high_bytes=max(0, budget.peak.high_bytes + by),
    )
    stages = tuple(
        replace(
            stage,
            device_bytes=max(0, stage.device_bytes + by),
            low_bytes=max(0, stage.low_bytes + by),
            high_bytes=max(0, stage.high_bytes + by),
        )
        for stage in budget.stages
    )
    return replace(budget, peak=peak, steady_device_bytes=peak.device_bytes, stages=stages)


def _smallest_per_kind(found: Iterable[Suggestion]) -> Iterator[Suggestion]:
    """Yield the cheapest that fits of each combination of kinds, and the tight one before it; all that do neither."""
    seen: set[tuple[tuple[str, ...], Verdict]] = set()
    for suggestion in found:
        kinds = tuple(sorted(part.kind for part in suggestion.parts))
        if (kinds, "fits") in seen or (suggestion.verdict == "tight" and (kinds, "tight") in seen):
            continue
        seen.add((kinds, suggestion.verdict))
        yield suggestion


def _without_repetitions(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without those that change the same settings in another order."""
    first: dict[object, Suggestion] = {}
    for suggestion in found:
        first.setdefault(tuple(sorted((key, repr(value)) for key, value in suggestion.changes.items())), suggestion)
    return list(first.values())


def _without_redundant(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without those of which a part has the same effect."""
    kinds = {id(s): {part.kind for part in s.parts} for s in found}

    def as_good(fewer: Suggestion, more: Suggestion) -> bool:
        if fewer.verdict != more.verdict or not kinds[id(fewer)] < kinds[id(more)]:
            return False
        if not all(more.changes.get(key) == value for key, value in fewer.changes.items()):
            return False
        smaller = more.budget.peak.device_bytes < 0.99 * fewer.budget.peak.device_bytes
        return fewer.verdict in ("fits", "tight") or not smaller

    return [s for s in found if not any(as_good(fewer, s) for fewer in found)]


def _triples(pairs: Sequence[Suggestion], changes: Sequence[Change], limit: float) -> list[tuple[Change, ...]]:
    """Return the pairs that need the least memory, each with every compatible third change, up to a cost."""
    cheap = (pair for pair in pairs if len(pair.parts) == 2 and pair.verdict != "fits" and pair.cost <= limit)
    triples = [
        (*pair.parts, change)
        for pair in sorted(cheap, key=lambda pair: pair.budget.peak.device_bytes)[:_MAX_EXTENDED_PAIRS]
        for change in changes
        if all(_compatible((part, change)) for part in pair.parts)
    ]
    return sorted((parts for parts in triples if _cost(parts) <= limit), key=_cost)


def _compatible(pair: tuple[Change, ...]) -> bool:
    first, second = pair
    return first.kind != second.kind and not first.changes.keys() & second.changes.keys()


def _lowest_cost(suggestions: Sequence[Suggestion]) -> float:
    return min((s.cost for s in suggestions), default=float("inf"))


def _cost(parts: tuple[Change, ...]) -> float:
    return sum(part.cost for part in parts)


def _words(changes: dict[str, Any]) -> list[str]:
    return [f"{key} = {value}" for key, value in changes.items()]
