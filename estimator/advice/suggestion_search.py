"""Judges changes of a job in the order of their cost, and returns the best of them with exact figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

import msgspec

from ..budget import Budget
from ..common.errors import Verdict, VramtopError
from ..common.records import replace
from ..job.job import Job
from ..job.job_file.changes import with_changes
from .bounded_search import BoundedSearch, Estimate, Judge
from .changes import Change

ChangeJob = Callable[[Mapping[str, Any]], Job]
"""Returns the job with new values by dotted key."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
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
        """Description of the cost, in a few words; a change of what is trained or computed is never the same result."""
        words = dict.fromkeys(part.why for part in self.parts)
        return "; ".join([*words, *(() if any(part.quality for part in self.parts) else ("same result",))])

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the costs."""
        return tuple(dict.fromkeys(part.source for part in self.parts))


class SuggestionSearch:
    """Judges changed jobs, each on the least that may be reserved first.

    Args:
        job: the job that is changed.
        current: its budget.
        estimate: returns an estimate of a changed job that compares with that budget.
        judge: returns the verdict on a budget.
        change: returns the job with new values by key; None: they change nothing else.
        lowers: only changes with which a GPU holds less are of use: the job takes no more GPUs than there are.
    """

    def __init__(
        self,
        job: Job,
        current: Budget,
        estimate: Estimate,
        judge: Judge,
        *,
        change: "ChangeJob | None" = None,
        lowers: bool = True,
    ) -> None:
        self._change, self._search = change or partial(with_changes, job), BoundedSearch(estimate, judge)
        self._current_bytes: float = current.peak.device_bytes if lowers else inf
        self._current_components: float = inf
        if not lowers:
            return
        try:
            self._current_components = estimate(job).peak.components.total_bytes
        except VramtopError:
            self._current_components = current.peak.components.total_bytes

    def judged(self, candidates: Iterable[tuple[Change, ...]], *, until: int) -> list[Suggestion]:
        """Return the changes that fit or allocate less than the job, until ``until`` of them fit.

        The verdicts are the best that there may be, but those that fit are certain. Of changes of the same kinds none
        is tried after the first that fits.

        Args:
            candidates: the cheapest first.
            until: number of those that fit after which only changes of the same cost are tried.
        """
        found: list[Suggestion] = []
        sufficient: set[tuple[str, ...]] = set()
        for parts in candidates:
            if len(sufficient) >= until and cost_of(parts) > found[-1].cost:
                break
            kinds = _kinds(parts)
            if kinds in sufficient:
                continue
            suggestion = self._judge(parts)
            if suggestion is None:
                continue
            found.append(suggestion)
            if suggestion.verdict == "fits":
                sufficient.add(kinds)
        return found

    def best(self, found: Sequence[Suggestion], most: int) -> tuple[Suggestion, ...]:
        """Return the best suggestions with exact figures: those that fit, then the tight ones, the cheapest first.

        If there are none, those with which the job takes the least memory.
        """
        first: dict[object, Suggestion] = {}
        for suggestion in found:  # others change the same settings in another order
            first.setdefault(tuple(sorted((key, repr(value)) for key, value in suggestion.changes.items())), suggestion)
        found = list(first.values())
        fitting = _without_redundant([s for s in found if s.verdict == "fits"])
        fitting.sort(key=lambda s: (s.cost, len(s.parts), s.budget.peak.device_bytes))
        wanted = most - len(fitting)
        tight = self._tight([s for s in found if s.verdict == "tight"], wanted) if wanted > 0 else []
        return tuple([*fitting, *tight][:most]) or self._smallest(found, most)

    def _judge(self, parts: tuple[Change, ...]) -> Suggestion | None:
        """Return changes with their budget; None if they are invalid, or allocate no less and do not fit."""
        changes: dict[str, Any] = {}
        for part in parts:
            changes |= part.changes
        try:
            budget, verdict = self._search.least(self._change(changes))
            if verdict == "fits":
                budget, verdict = self._search.exact(budget)
        except VramtopError:
            return None
        if verdict != "fits" and budget.peak.components.total_bytes >= self._current_components:
            return None
        return Suggestion(parts=parts, changes=changes, budget=budget, verdict=verdict)

    def _exact(self, suggestion: Suggestion) -> Suggestion:
        budget, verdict = self._search.exact(suggestion.budget)
        return replace(suggestion, budget=budget, verdict=verdict)

    def _tight(self, found: Sequence[Suggestion], wanted: int) -> list[Suggestion]:
        """Return tight suggestions, the first of each combination of kinds, in the order of their cost."""
        certain: list[Suggestion] = []
        kinds: set[tuple[str, ...]] = set()
        by_cost = sorted(found, key=lambda s: (s.cost, len(s.parts)))
        for _, alike in groupby(by_cost, key=lambda s: (s.cost, len(s.parts))):
            group: list[Suggestion] = []
            for suggestion in alike:
                if _kinds(suggestion.parts) in kinds:
                    continue
                exact = self._exact(suggestion)
                if exact.verdict == "tight" and exact.budget.peak.device_bytes < self._current_bytes:
                    group.append(exact)
                    kinds.add(_kinds(exact.parts))
            group.sort(key=lambda s: s.budget.peak.device_bytes)
            certain = _without_redundant([*certain, *group])
            if len(certain) >= wanted:
                break
        return certain

    def _smallest(self, found: Sequence[Suggestion], most: int) -> tuple[Suggestion, ...]:
        """Return the suggestions with the least memory: replayed in the order of the least that they may take."""
        alike = _without_redundant([replace(s, verdict="does_not_fit") for s in found])  # neither fits nor is tight
        exact: list[Suggestion] = []
        for suggestion in sorted(alike, key=lambda s: s.budget.peak.device_bytes):
            if len(exact) >= most and suggestion.budget.peak.device_bytes > exact[most - 1].budget.peak.device_bytes:
                break
            certain = self._exact(suggestion)
            if certain.budget.peak.device_bytes < self._current_bytes:
                exact.append(certain)
                exact.sort(key=lambda s: (s.budget.peak.device_bytes, s.cost, repr(s.changes)))
        return tuple(exact[:most])


def cost_of(parts: tuple[Change, ...]) -> float:
    """Return the cost of changes together."""
    return sum(part.cost for part in parts)


def _kinds(parts: tuple[Change, ...]) -> tuple[str, ...]:
    return tuple(sorted(part.kind for part in parts))


def _without_redundant(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without those of which a part has the same effect."""
    kinds = {id(s): {part.kind for part in s.parts} for s in found}

    def as_good(fewer: Suggestion, more: Suggestion) -> bool:
        if fewer.verdict != more.verdict or not kinds[id(fewer)] < kinds[id(more)]:
            return False
        if not all(more.changes.get(key) == value for key, value in fewer.changes.items()):
            return False
        allocated, needed = more.budget.peak.components.total_bytes, fewer.budget.peak.components.total_bytes
        return fewer.verdict in ("fits", "tight") or allocated >= 0.99 * needed

    return [s for s in found if not any(as_good(fewer, s) for fewer in found)]
