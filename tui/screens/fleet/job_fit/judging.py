"""Judges a typed job on the latest fleet: loading, estimates and placements run on threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from vramtop.estimator.common import CannotTellError, VramtopError
from vramtop.monitor.fleet.placing import place_job

from ....background import LatestOnlyTask
from ....job import load_typed

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget
    from vramtop.monitor.fleet import Fleet
    from vramtop.monitor.fleet.placing import FleetFit

    from ....job import BudgetsByCard, TypedJob


_Step = Callable[[], object]
"""Shows one result; called on the UI thread."""


class BudgetsFor(Protocol):
    """Makes the budgets of a typed job by type of GPU; called off the UI thread."""

    def __call__(self, typed: TypedJob, *, traced: bool) -> BudgetsByCard:
        """Return them; ``traced``: by the most accurate method that is available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A job judged on one reading of a fleet."""

    fleet: Fleet
    fit: FleetFit
    typed: TypedJob
    budgets: BudgetsByCard

    @property
    def budget(self) -> Budget | None:
        """Budget on the type of GPU of the first host; None: no host has a GPU that the job can use."""
        return next(
            (self.budgets.by_card[fit.card] for fit in self.fit.hosts if fit.card in self.budgets.by_card), None
        )


class FleetJudge:
    """Judges one job on every new fleet, and estimates it only once for each type of GPU.

    Of several fleets that arrive while one is judged, only the latest is judged after it: a slow machine shows fewer
    judgements, not none.

    Args:
        call_later: ``call_later`` of the screen.
        budgets_for: makes the budgets of a job.
        on_judgement: receives each judgement, on the UI thread, like the others.
        on_problem: receives the reason why there is none.
        on_tracing: receives what the traced estimate does: a sentence, or None when it has ended.
    """

    def __init__(
        self,
        call_later: Callable[..., object],
        budgets_for: BudgetsFor,
        *,
        on_judgement: Callable[[Judgement], object],
        on_problem: Callable[[str], object],
        on_tracing: Callable[[str | None], object],
    ) -> None:
        self._budgets_for = budgets_for
        self._on_judgement, self._on_problem, self._on_tracing = on_judgement, on_problem, on_tracing
        self._job_task = LatestOnlyTask[_Step]("fleet fit, job", call_later, self._deliver, on_problem)
        self._place_task = LatestOnlyTask[Judgement]("fleet fit, hosts", call_later, self._placed, self._not_placed)
        self._fleet: Fleet | None = None
        self._waiting: tuple[str, bool] | None = None
        """A job that waits for the first fleet."""
        self._current: Judgement | None = None
        self._is_placing = False

    def cancel(self) -> None:
        """Forget the job; nothing of it is delivered any more."""
        self._waiting = self._current = None
        self._is_placing = False
        self._job_task.cancel()
        self._place_task.cancel()

    def judge_text(self, text: str, *, traced: bool) -> None:
        """Load what the user typed and judge it by the closed form.

        Args:
            text: the job.
            traced: then by the most accurate method as well.
        """
        self.cancel()
        if self._fleet is None:
            self._waiting = text, traced
        else:
            self._job_task.submit_with_progress(partial(self._load, text, traced, self._fleet))

    def show_fleet(self, fleet: Fleet) -> None:
        """Judge the job on a new fleet."""
        is_new, self._fleet = fleet is not self._fleet, fleet
        if self._waiting is not None:
            text, traced = self._waiting
            self.judge_text(text, traced=traced)
        elif is_new:
            self._place()

    def _load(self, text: str, traced: bool, fleet: Fleet, report: Callable[[_Step], None]) -> None:
        """Judge by the closed form, and then by a trace; called off the UI thread."""
        typed = load_typed(text)
        try:
            report(partial(self._judged, _judge(typed, self._budgets_for(typed, traced=False), fleet)))
        except CannotTellError as error:
            if not traced:
                raise CannotTellError(f"{error.message.rstrip('.')}; Enter tries a trace") from None
            report(partial(self._on_problem, f"{error.message.rstrip('.')}; a trace is tried"))
        if not traced:
            return
        report(partial(self._on_tracing, "a step is traced for a better estimate"))
        try:
            report(partial(self._judged, _judge(typed, self._budgets_for(typed, traced=True), fleet)))
        except VramtopError as error:
            report(partial(self._not_traced, error.message))
        else:
            report(partial(self._on_tracing, None))

    def _deliver(self, step: _Step) -> None:
        step()

    def _judged(self, judgement: Judgement) -> None:
        """Take the judgement of a new estimate; placements by an older one are discarded."""
        self._place_task.cancel()
        self._is_placing = False
        self._show(judgement)

    def _not_traced(self, reason: str) -> None:
        if self._current is None:
            self._on_problem(reason)
        else:
            self._on_tracing(f"not traced: {reason}")

    def _show(self, judgement: Judgement) -> None:
        self._current = judgement
        self._on_judgement(judgement)
        self._place()

    def _place(self) -> None:
        """Judge the latest fleet if it is not judged yet, unless another one is being judged."""
        current, fleet = self._current, self._fleet
        if current is None or fleet is None or self._is_placing or current.fleet is fleet:
            return
        self._is_placing = True
        self._place_task.submit(partial(_judge, current.typed, current.budgets, fleet))

    def _placed(self, judgement: Judgement) -> None:
        self._is_placing = False
        self._show(judgement)

    def _not_placed(self, reason: str) -> None:
        self._is_placing = False
        self._on_problem(reason)


def _judge(typed: TypedJob, budgets: BudgetsByCard, fleet: Fleet) -> Judgement:
    fit = place_job(fleet, typed.loaded.job.parallel.world_size, budgets.on)
    return Judgement(fleet=fleet, fit=fit, typed=typed, budgets=budgets)
