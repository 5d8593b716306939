"""What the user says of a run on a screen, on its way to the file of answers: off the UI thread, and in order."""

from collections import deque
from collections.abc import Callable
from typing import Any

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.attach.saved_answers import SavedAnswers

from .latest_only_task import LatestOnlyTask


class AnswerWriter:
    """Gathers the answers for one run at a time.

    Args:
        answers: where they are kept.
        say: takes a sentence for the user, on another thread.
    """

    def __init__(self, answers: SavedAnswers, say: Callable[[str], None]) -> None:
        self._answers = answers
        self._say = say
        self._work = LatestOnlyTask("answers")
        self._todo: deque[Callable[[], str | None]] = deque()
        self._run: str | None = None
        self._values: dict[str, Any] = {}

    def begin(self, run: str) -> None:
        """What follows is about this run (see ``run_key``)."""
        self._run, self._values = run, {}

    def take(self, key: str, value: Any) -> None:
        """The user gives a value; it is kept with the next ``keep``."""
        self._values[key] = value

    def drop(self, key: str) -> None:
        """The user gives no value any more."""
        self._values.pop(key, None)
        if (run := self._run) is not None:
            self._do(lambda: self._answers.delete(run, [key]))

    def keep(self) -> None:
        """The values make sense: remember them."""
        run, values = self._run, self._values
        if run is not None and values:
            self._values = {}
            self._do(lambda: self._answers.save(run, values))

    def forget(self) -> None:
        """Forget all that was ever given for this run."""
        self._values = {}
        if (run := self._run) is not None:
            self._do(lambda: self._answers.delete(run))

    def _do(self, task: Callable[[], str | None]) -> None:
        self._todo.append(task)
        self._work.submit(self._work_off)

    def _work_off(self) -> None:
        while self._todo:
            try:
                said = self._todo.popleft()()
            except VramtopError as error:
                said = error.message
            if said:
                self._say(said)
