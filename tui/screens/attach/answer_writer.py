"""Saves the settings that the user fills in for a run: off the UI thread, and in order."""

from collections.abc import Callable
from typing import Any

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.attach.saved_answers import SavedAnswers

from ...background.latest_only_task import CallLater, TaskThread


class AnswerWriter:
    """Collects the answers for one run at a time, and writes them when they are complete.

    Args:
        answers: the file of saved answers.
        call_later: ``call_later`` of the widget that shows problems.
        on_problem: receives a sentence if the file cannot be written, on the UI thread.
    """

    def __init__(self, answers: SavedAnswers, call_later: CallLater, on_problem: Callable[[str], object]) -> None:
        self._answers = answers
        self._call_later = call_later
        self._on_problem = on_problem
        self._thread = TaskThread("answers")
        self.run: str | None = None
        """The run that the answers are for (see ``run_key``)."""
        self.values: dict[str, Any] = {}
        """The answers that the next ``save`` writes."""

    def save(self) -> None:
        """Write the answers collected since the last ``save``."""
        run, values = self.run, self.values
        if run is not None and values:
            self.values = {}
            self._write(lambda: self._answers.save(run, values))

    def remove(self, key: str | None = None) -> None:
        """Remove the answer for a key, from the file too; None: all answers ever saved for this run."""
        self.values = {name: value for name, value in self.values.items() if key not in (None, name)}
        if (run := self.run) is not None:
            self._write(lambda: self._answers.delete(run, None if key is None else [key]))

    def _write(self, change: Callable[[], str | None]) -> None:
        def task() -> None:
            try:
                problem = change()
            except VramtopError as error:
                problem = error.message
            if problem:
                self._call_later(self._on_problem, problem)

        self._thread.submit(task)
