"""What is worked out about a job while it is being typed, off the UI thread; only the newest question counts."""

from collections.abc import Callable
from dataclasses import dataclass

from vramtop.estimator.advice.suggestions import Suggestion, suggest
from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.job.job import Job

from ...background.latest_only_task import LatestOnlyTask
from .capacity import Capacity
from .sweep import AXES, Axis, Sweep, sweep_setting

Estimate = Callable[[Job], Budget]
Vary = Callable[[Job], Estimate]
_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What could be changed, and what that would lead to."""

    budget: Budget
    """What it was worked out for."""
    suggestions: tuple[Suggestion, ...] = ()
    """What makes it fit, the cheapest first; else what comes closest; none where it fits."""
    sweeps: tuple[Sweep, ...] = ()
    """Over the micro-batch and over the sequence length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Who is told what, on another thread; each gets the number of its question first."""

    budget: Callable[[int, Budget], None]
    refused: Callable[[int, str], None]
    """There is no budget, and why."""
    not_refined: Callable[[int, str], None]
    """There is no better budget than the quick one, and why."""
    advice: Callable[[int, Advice], None]


class Checks:
    """Asks for budgets and advice.

    Args:
        quick: a quick estimate.
        deep: a better and slower one; None: there is none.
        vary: gives a still quicker estimate of jobs with the same model, for searches.
        answers: who is told.
    """

    def __init__(self, quick: Estimate, deep: Estimate | None, vary: Vary, answers: Answers) -> None:
        self._quick, self._deep, self._vary = quick, deep, vary
        self._tell = answers
        self._work, self._slow = LatestOnlyTask("fit check"), LatestOnlyTask("fit check, refined")
        self._search = LatestOnlyTask("fit check, suggestions")
        self._advised = 0
        self.asked = 0
        """Number of the newest question."""
        self.given_up: str | None = None
        """Why there is no better answer to it than the quick one."""

    def renew(self) -> None:
        """Nobody asks for older settings any more."""
        self.asked += 1
        self._advised += 1
        self.given_up = None
        self._slow.interrupt()
        self._search.interrupt()

    def ask(self, job: Job) -> None:
        """A budget for this job, quickly."""
        asked = self.asked
        self._work.submit(lambda: self._answer(job, asked))

    def ask_deep(self, job: Job, asked: int) -> None:
        """A better one, unless other settings are asked for by now."""
        if self._deep is not None and asked == self.asked:
            deep = self._deep
            self._slow.submit(lambda: self._refine(deep, job, asked))

    def advise(self, budget: Budget, judge: Capacity) -> None:
        """What to change in this budget's job so that it fits, and what it would take otherwise."""
        self._advised += 1
        asked, number = self.asked, self._advised
        self._search.submit(lambda: self._advise(budget, judge, asked, number))

    def is_waiting(self, budget: Budget) -> bool:
        """A better budget than this one may come."""
        return self._deep is not None and budget.method == "formula" and self.given_up is None

    def _answer(self, job: Job, asked: int) -> None:
        try:
            budget = self._quick(job)
        except VramtopError as error:
            self._tell.refused(asked, error.message)
        else:
            self._tell.budget(asked, budget)

    def _refine(self, deep: Estimate, job: Job, asked: int) -> None:
        try:
            budget = deep(job)
        except CancelledError:
            return
        except VramtopError as error:
            self._tell.not_refined(asked, error.message)
        else:
            self._tell.budget(asked, budget)

    def _advise(self, budget: Budget, judge: Capacity, asked: int, number: int) -> None:
        try:
            advice = self._advice(budget, judge, number)
        except VramtopError:  # no rule for this model: there is nothing to search with
            advice = Advice(budget=budget)
        if number == self._advised:
            self._tell.advice(asked, advice)

    def _advice(self, budget: Budget, judge: Capacity, number: int) -> Advice:
        vary = self._vary(budget.job)

        def estimate(job: Job) -> Budget:
            if number != self._advised:
                raise CancelledError("other settings are asked for by now")
            return vary(job)

        found: tuple[Suggestion, ...] = ()
        if judge.rooms and judge.verdict(budget) in ("does_not_fit", "tight"):
            found = suggest(budget.job, budget, estimate, judge.verdict, gpus=len(judge.rooms), most=_MOST)
        limits, longest = judge.limits(budget), getattr(vary, "max_positions", None)

        def over(axis: Axis) -> Sweep:
            return sweep_setting(budget.job, axis, estimate, judge.verdict, limits, max_positions=longest)

        return Advice(budget=budget, suggestions=found, sweeps=tuple(over(axis) for axis in AXES))
