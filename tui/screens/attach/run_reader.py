"""Reads running processes and writes the user's answers, off the UI thread: an ended process can no longer be read."""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.saved_answers import SavedAnswer, SavedAnswers, apply_answers, run_key
from vramtop.monitor.snapshot.snapshot import ProcessKey

from ...background.latest_only_task import CallLater, LatestOnlyTask, TaskThread

AttachFunction = Callable[..., "Attachment"]
"""Reads the job of a running process, and its evidence; its arguments are those of ``read_run``."""


class RunReader:
    """Reads one process at a time; a new request replaces the one before.

    Args:
        attach: reads a running process.
        answers: settings that the user filled in before.
        known: what was read so far, by each process of a run.
        call_later: ``call_later`` of the widget that shows the results.
        on_read: receives what was read, on the UI thread.
        on_error: receives the reason why the process could not be read, likewise.
    """

    def __init__(
        self,
        attach: AttachFunction,
        answers: SavedAnswers,
        known: MutableMapping[ProcessKey, Attachment],
        call_later: CallLater,
        *,
        on_read: Callable[[Attachment], object],
        on_error: Callable[[str], object],
    ) -> None:
        self._attach = attach
        self._answers = answers
        self._known = known
        self._recalled: dict[str, Mapping[str, SavedAnswer]] = {}
        """The user's earlier answers, by run key, as they were when the run was read."""
        self._task = LatestOnlyTask("attach", call_later, on_read, on_error)

    def read(
        self, pid: int, start_time: float | None, *, on_gpu: Collection[int] | None = None, recall: bool = True
    ) -> None:
        """Read a process, unless it was read before.

        Args:
            pid: of the process.
            start_time: start of the process, if known: pids are reused.
            on_gpu: pids that hold GPU memory, if known.
            recall: apply the settings that the user filled in for this command line before.
        """
        known = self._known.get((pid, start_time)) if recall else None
        if known is not None:
            self._task.submit(lambda: known)
            return

        def read() -> Attachment:
            attachment = self._attach(pid, start_time=start_time, on_gpu=on_gpu)
            run = run_key(attachment)
            self._recalled[run] = {}
            problem = self._recall(run) if recall else None
            answered = self._with_answers(attachment, self._recalled[run], on_gpu)
            return replace(answered, warnings=(*answered.warnings, problem)) if problem else answered

        self._task.submit(read)

    def read_again(
        self, attachment: Attachment, edits: Mapping[str, Any], *, on_gpu: Collection[int] | None = None
    ) -> Attachment:
        """Return a process as it is read with the user's edits; not for the UI thread.

        Args:
            attachment: what was read before.
            edits: values by job key.
            on_gpu: pids that hold GPU memory, if known.

        Raises:
            VramtopError: it can no longer be read.
        """
        plain = self._attach(attachment.pid, start_time=attachment.start_time, on_gpu=on_gpu)
        now, run = self._answers.clock(), run_key(plain)
        if run not in self._recalled:  # it was read by somebody else
            self._recall(run)
        answers = {key: SavedAnswer(value=value, given=now) for key, value in edits.items()}
        return self._with_answers(plain, {**self._recalled[run], **answers}, on_gpu)

    def cancel(self) -> None:
        """Discard the result of the current request."""
        self._task.cancel()

    def _recall(self, run: str) -> str | None:
        """Load the user's earlier answers for a run; returns a sentence if they cannot be read."""
        try:
            self._recalled[run] = self._answers.load(run)
        except CannotTellError as error:
            self._recalled[run] = {}
            return error.message
        return None

    def _with_answers(
        self, plain: Attachment, answers: Mapping[str, SavedAnswer], on_gpu: Collection[int] | None
    ) -> Attachment:
        pid, start = plain.pid, plain.start_time
        return apply_answers(
            plain, answers, reread=lambda given: self._attach(pid, start_time=start, on_gpu=on_gpu, given=given)
        )

    def remember(self, attachment: Attachment) -> tuple[ProcessKey, ...]:
        """Keep what was read of a run, and return the run's processes."""
        keys = tuple((rank.pid, rank.start_time) for rank in attachment.ranks)
        self._known.update(dict.fromkeys(keys, attachment))
        return keys

    def remembered(self, keys: Iterable[ProcessKey]) -> Attachment | None:
        """Return what was read of a run earlier; None if it was never read."""
        return next((self._known[key] for key in keys if key in self._known), None)


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
