"""The smallest changes that make a job fit, by what they cost in speed and quality, searched with a quick estimate."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from ..budget.budget import Budget
from ..common.errors import CannotTellError, VramtopError
from ..job.job import Job
from ..job.job_file import with_changes
from .change import HOST_LOADING, Change
from .training_changes import candidate_changes

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
Estimate = Callable[[Job], Budget]
Judge = Callable[[Budget], Verdict]

_MAX_PAIR_COST_SHARE = 0.75
"""A pair is offered beside single changes where it costs at most this share of the cheapest one that fits."""
_MIN_COST_FOR_TRIPLES = 1.0
"""A cost beyond which three changes are looked at: as if a step took twice as long."""
_MAX_EXTENDED_PAIRS = 6
"""Pairs that a third change is added to."""
_MAX_CONFIRMATIONS = 4
"""Suggestions that are traced at most, until enough of them hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change, or two together, and what they lead to."""

    parts: tuple[Change, ...]
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    budget: Budget
    verdict: Verdict
    confirmed: bool = False
    """The budget is of a traced step, and not of the quick estimate."""

    @property
    def cost(self) -> float:
        """What ranks it; see ``changes``."""
        return sum(part.cost for part in self.parts)

    @property
    def why(self) -> str:
        """What it costs, in a few words."""
        return "; ".join(dict.fromkeys(part.why for part in self.parts))

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the costs come from."""
        return tuple(dict.fromkeys(part.source for part in self.parts))


def suggest(
    job: Job, current: Budget, estimate: Estimate, judge: Judge, *, gpus: int = 1, most: int = 6
) -> tuple[Suggestion, ...]:
    """What makes the job fit, the cheapest first; then what makes it tight; where nothing does, what comes closest.

    Of changes by degrees (micro-batch, length, GPUs) the smallest that is enough; pairs only of changes of which
    neither is enough alone, and only where no single change is, or where the pair costs much less. Where what is
    enough is dear, or nothing is, a third change is added to the pairs that come closest.

    Args:
        job: as it is.
        current: its budget; where that is not the quick estimate's, what sets them apart is added to every figure.
        estimate: a quick estimate of a changed job.
        judge: whether a budget fits.
        gpus: how many there are, for spreading the job further.
        most: how many to return.
    """
    search = _Search(job, current, calibrated(job, current, estimate), judge)
    changes = candidate_changes(job, gpus=gpus)
    singles = list(_smallest_per_kind(search.tried((change,) for change in changes)))
    if judge(shifted(current, -current.peak.high_bytes)) == "fits":  # the host is no limit
        changes = tuple(change for change in changes if change.kind != HOST_LOADING)
    enough = [s for s in singles if s.verdict == "fits"]
    limit = _MAX_PAIR_COST_SHARE * min((s.cost for s in enough), default=float("inf"))
    alone = {part.kind for s in enough for part in s.parts if s.cost <= limit}
    pairs = sorted((pair for pair in combinations(changes, 2) if _compatible(pair)), key=_cost)
    worth = (pair for pair in pairs if _cost(pair) <= limit and not any(part.kind in alone for part in pair))
    tried = list(_smallest_per_kind(search.tried(worth, until=most)))
    cheapest = min((s.cost for s in (*enough, *tried) if s.verdict == "fits"), default=float("inf"))
    if cheapest > _MIN_COST_FOR_TRIPLES:
        thirds = _triples(tried, changes, _MAX_PAIR_COST_SHARE * cheapest)
        tried += _smallest_per_kind(search.tried(thirds, until=most))
    found = sorted(
        _without_redundant([*singles, *tried]), key=lambda s: (s.cost, len(s.parts), s.budget.peak.device_bytes)
    )
    fitting = [s for s in found if s.verdict == "fits"]
    tight = [s for s in found if s.verdict == "tight"]
    if fitting or tight:
        return tuple([*fitting, *tight][:most])
    return tuple(sorted(found, key=lambda s: s.budget.peak.device_bytes)[:most])


def confirm(
    suggestions: Sequence[Suggestion],
    estimate: Estimate,
    judge: Judge,
    *,
    enough: int = 2,
    progress: Callable[[str], None] | None = None,
) -> tuple[Suggestion, ...]:
    """The best few with the figures of a slower and surer estimate; those that do not hold go, or come last.

    Args:
        suggestions: as ``suggest`` returned them.
        estimate: the surer one, such as a traced step; what it cannot tell stays unconfirmed.
        judge: whether a budget fits.
        enough: how many confirmed ones that fit end the work.
        progress: told what is going on.
    """
    kept: list[Suggestion] = []
    failed: list[Suggestion] = []
    tries = 0
    for at, suggestion in enumerate(suggestions):
        holding = sum(s.confirmed and s.verdict == "fits" for s in kept)
        if suggestion.verdict != "fits" or holding >= enough or tries >= _MAX_CONFIRMATIONS:
            kept.extend(suggestions[at:])
            break
        tries += 1
        if progress:
            progress(f"checking {' and '.join(_words(suggestion.changes))}")
        try:
            budget = estimate(suggestion.budget.job)
        except CannotTellError:
            kept.extend(suggestions[at:])
            break
        except VramtopError:  # the model itself refuses: no suggestion
            continue
        checked = replace(suggestion, budget=budget, verdict=judge(budget), confirmed=True)
        (kept if checked.verdict == "fits" else failed).append(checked)
    kept.sort(key=lambda s: s.verdict != "fits")
    return (*kept, *(s for s in failed if s.verdict == "tight"))


def calibrated(job: Job, current: Budget, estimate: Estimate) -> Estimate:
    """The quick estimate with what sets the job's surer budget apart from it added to every figure."""
    try:
        by = current.peak.device_bytes - estimate(job).peak.device_bytes
    except VramtopError:
        by = 0
    return estimate if not by else lambda changed: shifted(estimate(changed), by)


class _Search:
    """What changed jobs would take, each tried once."""

    def __init__(self, job: Job, current: Budget, estimate: Estimate, judge: Judge) -> None:
        self._job, self._estimate, self._judge = job, estimate, judge
        self._now = current.peak.device_bytes

    def tried(self, candidates: Iterable[tuple[Change, ...]], *, until: int | None = None) -> Iterator[Suggestion]:
        """Those that take less than the job does now; ends when so many of them fit."""
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
            if budget.peak.device_bytes >= self._now and verdict != "fits":
                continue
            yield Suggestion(parts=parts, changes=changes, budget=budget, verdict=verdict)
            fitting += verdict == "fits"
            if until is not None and fitting >= until:
                return


def shifted(budget: Budget, by: int) -> Budget:
    """The budget with all device figures moved by so many bytes; its components stay as they are."""
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
    """Of each combination of kinds the cheapest that fits, and before it what is tight; those that do neither stay."""
    seen: set[tuple[tuple[str, ...], Verdict]] = set()
    for suggestion in found:
        kinds = tuple(sorted(part.kind for part in suggestion.parts))
        if (kinds, "fits") in seen or (suggestion.verdict == "tight" and (kinds, "tight") in seen):
            continue
        seen.add((kinds, suggestion.verdict))
        yield suggestion


def _without_redundant(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Without those of which a part does as well."""
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
    """The pairs that take least, each with every change that goes with both, up to a cost."""
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


def _cost(parts: tuple[Change, ...]) -> float:
    return sum(part.cost for part in parts)


def _words(changes: dict[str, Any]) -> list[str]:
    return [f"{key} = {value}" for key, value in changes.items()]
