"""Saves the settings that the user fills in for a run: off the UI thread, and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import VramtopError

from ...background.latest_only_task import CallLater, TaskThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.monitor.attach.saved_answers import SavedAnswers


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
        self._run: str | None = None
        self._values: dict[str, Any] = {}

    def start_run(self, run: str) -> None:
        """Take the following answers as those for this run (see ``run_key``)."""
        self._run, self._values = run, {}

    def set_answer(self, key: str, value: Any) -> None:
        """Collect an answer; the next ``save`` writes it."""
        self._values[key] = value

    def remove_answer(self, key: str) -> None:
        """Remove the answer for a key, from the file too."""
        self._values.pop(key, None)
        if (run := self._run) is not None:
            self._write(lambda: self._answers.delete(run, [key]))

    def save(self) -> None:
        """Write the answers collected since the last ``save``."""
        run, values = self._run, self._values
        if run is not None and values:
            self._values = {}
            self._write(lambda: self._answers.save(run, values))

    def remove_all(self) -> None:
        """Remove all answers ever saved for this run."""
        self._values = {}
        if (run := self._run) is not None:
            self._write(lambda: self._answers.delete(run))

    def _write(self, change: Callable[[], str | None]) -> None:
        def task() -> None:
            try:
                problem = change()
            except VramtopError as error:
                problem = error.message
            if problem:
                self._call_later(self._on_problem, problem)

        self._thread.submit(task)
