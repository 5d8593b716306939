"""Budgets for a job that is being edited: a quick one at once, a better one behind it, both off the UI thread."""

from collections.abc import Callable, Mapping
from typing import Protocol

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.job.job import Job
from vramtop.monitor.attach.attachment import Attachment

from .latest_only_task import LatestOnlyTask

_Take = Callable[[int, "Budget | str"], None]
_GiveUp = Callable[[int, str], None]


class Estimate(Protocol):
    """An estimate that looks for models where the attached process does, and counts with its libraries."""

    def __call__(self, job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        """The budget; may raise VramtopError."""


class Estimates:
    """Asks for budgets; only answers to the newest question count.

    Args:
        quick: a quick estimate.
        deep: a better and slower one; None: there is none.
        take: gets the number of a question, and a budget or the sentence why there is none; on another thread.
        give_up: gets the number of a question, and the sentence why there is no better budget; likewise.
    """

    def __init__(self, quick: Estimate, deep: Estimate | None, *, take: _Take, give_up: _GiveUp) -> None:
        self._quick, self._deep = quick, deep
        self._take, self._give_up = take, give_up
        self._work, self._slow = LatestOnlyTask("estimate"), LatestOnlyTask("estimate, refined")
        self.asked = 0
        """Number of the newest question."""
        self.given_up = False
        """There is no better answer to it."""

    def renew(self) -> None:
        """Nobody asks for older settings any more."""
        self.asked += 1
        self.given_up = False
        self._slow.interrupt()

    def ask(self, job: Job, attachment: Attachment) -> None:
        """Answer for this job."""
        asked = self.asked
        self._work.submit(lambda: self._answer(self._quick, job, attachment, asked))
        if self._deep is not None:
            deep = self._deep
            self._slow.submit(lambda: self._answer(deep, job, attachment, asked))

    def is_waiting(self, budget: Budget) -> bool:
        """A better budget than this one may come."""
        return self._deep is not None and budget.method == "formula" and not self.given_up

    def _answer(self, estimate: Estimate, job: Job, attachment: Attachment, asked: int) -> None:
        """Runs on a thread of its own."""
        answer: Budget | str
        try:
            answer = estimate(job, environ=attachment.estimate_environ, python=attachment.worker_python)
        except CancelledError:
            return
        except VramtopError as error:
            if estimate is self._deep:
                self._give_up(asked, error.message)
                return
            answer = error.message
        self._take(asked, answer)
