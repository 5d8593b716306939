"""Slow work off the UI thread: ``LatestOnlyTask`` runs only the latest request, ``TaskThread`` runs all in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CancelledError, CannotTellError, VramtopError
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.records import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, MutableMapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.attachment import Attachment
    from vramtop.monitor.attach.saved_answers import SavedAnswer, SavedAnswers
    from vramtop.monitor.snapshot.snapshot import ProcessKey

Result = TypeVar("Result")
CallLater = Callable[..., object]
"""``call_later`` of a Textual widget: calls a function on the UI thread; safe to call from any thread."""


class TaskThread:
    """Runs tasks one after another on a daemon thread, which starts with a task and ends when none is left.

    A slow task delays neither the screen nor quitting. An exception in a task goes to ``threading.excepthook``, and the
    next task runs.

    Args:
        name: name of the thread.
        most_waiting: tasks that may wait; None: any number.
    """

    def __init__(self, name: str, most_waiting: int | None = None) -> None:
        self._name = name
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._running = False

    def submit(self, task: Callable[[], None]) -> bool:
        """Run the task after all those submitted before it; False: too many wait already.

        Raises:
            ProcessLimitError: the thread cannot be started.
        """
        with self._lock:
            if self._most_waiting is not None and len(self._tasks) >= self._most_waiting:
                return False
            if not self._running:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
                self._running = True
            self._tasks.append(task)
        return True

    def clear(self) -> None:
        """Drop all tasks that have not started."""
        with self._lock:
            self._tasks.clear()

    def _run(self) -> None:
        while task := self._next():
            try:
                task()
            except Exception as error:  # noqa: BLE001 - reported, so that the next task still runs
                details = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(details))

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._running = bool(self._tasks)
            return self._tasks.popleft() if self._tasks else None


class LatestOnlyTask(Generic[Result]):
    """Runs requests off the UI thread; only the latest request runs, and only its result is delivered.

    A request cancels the one before it, whether that one runs or waits. A result goes through the message queue of a
    widget to the UI thread, and is discarded there if there was another request in the meantime.

    Args:
        name: name of the thread.
        call_later: ``call_later`` of the widget that shows the results.
        on_result: receives each result on the UI thread; may be a coroutine function.
        on_error: receives the message of a VramtopError, likewise; None: such an error is a bug in the request.
    """

    def __init__(
        self,
        name: str,
        call_later: CallLater,
        on_result: Callable[[Result], object],
        on_error: Callable[[str], object] | None = None,
    ) -> None:
        self._thread = TaskThread(name)
        self._call_later = call_later
        self._on_result = on_result
        self._on_error = on_error
        self._latest = 0
        """Number of the latest request."""
        self._token = CancelToken()

    def submit(self, work: Callable[[], Result]) -> None:
        """Run this request in place of all earlier ones, and deliver its result."""
        self.submit_with_progress(lambda report: report(work()))

    def submit_with_progress(self, work: Callable[[Callable[[Result], None]], None]) -> None:
        """Run a request with several results; ``work`` calls its argument with each of them.

        That call raises CancelledError once the request has been cancelled.
        """
        self.cancel()
        number, token = self._latest, self._token
        try:
            self._thread.submit(lambda: self._run(work, number, token))
        except ProcessLimitError as error:
            if self._on_error is None:
                raise
            self._call_later(self._call_if_latest, number, self._on_error, error.message)

    def cancel(self) -> None:
        """Cancel the request that runs or waits: its worker process is terminated, and no result is delivered."""
        self._latest += 1
        self._thread.clear()
        cancelled, self._token = self._token, CancelToken()
        cancelled.cancel()

    def _run(self, work: Callable[[Callable[[Result], None]], None], number: int, token: CancelToken) -> None:
        def deliver(callback: Callable[[Any], object], value: object) -> None:
            if token.cancelled:
                raise CancelledError("a newer request came in")
            self._call_later(self._call_if_latest, number, callback, value)

        with token.scope(), suppress(CancelledError):
            try:
                work(lambda result: deliver(self._on_result, result))
            except CancelledError:
                raise
            except VramtopError as error:
                if self._on_error is None:
                    raise
                deliver(self._on_error, error.message)

    def _call_if_latest(self, number: int, callback: Callable[[Any], object], value: object) -> object:
        return callback(value) if number == self._latest else None


# Saves the settings that the user fills in for a run: off the UI thread, and in order.


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


# Budgets of a job that is being edited: a quick one at once and a refined one after it, both off the UI thread.


class EstimateFunction(Protocol):
    """Estimates a job with the model files and the libraries that a running process sees."""

    def __call__(self, job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        """Return the budget; may raise VramtopError."""


class JobEstimates:
    """Estimates the latest version of a job; budgets of earlier versions are discarded.

    Args:
        quick: a quick estimate.
        refine: a better and slower one; None: there is none.
        call_later: ``call_later`` of the widget that shows the budgets.
        on_budget: receives each budget, quick or refined, on the UI thread.
        on_error: receives the reason why there is no quick budget, likewise.
        on_not_refined: receives the reason why there is no refined budget, likewise.
    """

    def __init__(
        self,
        quick: Callable[..., Budget],
        refine: Callable[..., Budget] | None,
        call_later: CallLater,
        *,
        on_budget: Callable[[Budget], object],
        on_error: Callable[[str], object],
        on_not_refined: Callable[[str], object],
    ) -> None:
        self._quick, self._refine = quick, refine
        self._on_budget, self._on_not_refined = on_budget, on_not_refined
        self._quick_task = LatestOnlyTask("estimate", call_later, on_budget, on_error)
        self._refine_task = LatestOnlyTask("estimate, refined", call_later, self._set_refined, self._set_not_refined)
        self.not_refined: str | None = None
        """Why there is no refined budget of the latest job; None while there may be one."""

    def cancel(self) -> None:
        """Discard all estimates of the job as it was until now."""
        self.not_refined = None
        self._quick_task.cancel()
        self._refine_task.cancel()

    def estimate(self, job: Job, **options: Any) -> None:
        """Request a quick budget of this job; ``options`` are those of the estimate functions."""
        self._quick_task.submit(partial(self._quick, job, **options))

    def refine(self, job: Job, **options: Any) -> None:
        """Request a refined budget of this job, if there is such an estimate."""
        if self._refine is not None:
            self._refine_task.submit(partial(self._refine, job, **options))

    def may_refine(self, budget: Budget) -> bool:
        """Return True if a better budget than this one may still arrive."""
        return self._refine is not None and budget.method == "formula" and self.not_refined is None

    def _set_refined(self, budget: Budget) -> None:
        """Pass on a refined budget; of one that is the closed form again, why nothing better can be had."""
        from vramtop.estimator.estimation import why_untraced  # not at start-up

        if budget.method == "formula":
            self._set_not_refined(why_untraced(budget) or "the closed form has rules for it")
        else:
            self._on_budget(budget)

    def _set_not_refined(self, reason: str) -> None:
        self.not_refined = reason
        self._on_not_refined(reason)


# Reads running processes off the UI thread, and keeps the results: an ended process can no longer be read.


class AttachFunction(Protocol):
    """Reads the job of a running process."""

    def __call__(
        self,
        pid: int,
        *,
        start_time: float | None = None,
        on_gpu: Collection[int] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Attachment:
        """Return the process's job and its evidence; may raise VramtopError."""


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

        from vramtop.monitor.attach.saved_answers import run_key

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
        from vramtop.monitor.attach.saved_answers import SavedAnswer, run_key

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
        from vramtop.monitor.attach.saved_answers import apply_answers

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

    def forget(self, keys: Iterable[ProcessKey]) -> None:
        """Drop what was read of a run."""
        for key in keys:
            self._known.pop(key, None)
