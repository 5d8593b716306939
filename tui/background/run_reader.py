"""Reads running processes off the UI thread, and keeps what it read: once they have ended, nothing more can be."""

from collections.abc import Callable, Collection, Iterable, MutableMapping
from typing import Protocol

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.saved_answers import SavedAnswers, with_saved_answers
from vramtop.monitor.snapshot.snapshot import ProcessKey

from .latest_only_task import LatestOnlyTask


class Attach(Protocol):
    """Reads a running process."""

    def __call__(
        self, pid: int, *, start_time: float | None = None, on_gpu: Collection[int] | None = None
    ) -> Attachment:
        """Its job; may raise VramtopError."""


class RunReader:
    """Reads one process at a time; the newest wins.

    Args:
        attach: reads a running process.
        answers: what the user has filled in before.
        known: what was read, by each process of a run.
        take: gets a pid, and what was read of it or the sentence why nothing could be; on another thread.
    """

    def __init__(
        self,
        attach: Attach,
        answers: SavedAnswers,
        known: MutableMapping[ProcessKey, Attachment],
        take: Callable[[int, Attachment | str], None],
    ) -> None:
        self._attach = attach
        self._answers = answers
        self._known = known
        self._take = take
        self._work = LatestOnlyTask("attach")

    def read(
        self, pid: int, start_time: float | None, *, on_gpu: Collection[int] | None = None, recall: bool = True
    ) -> None:
        """Read a process.

        Args:
            pid: of the process.
            start_time: when it started, where that is known: pids are reused.
            on_gpu: pids that hold GPU memory, where that is known.
            recall: what the user has filled in for its command line counts.
        """
        self._work.submit(lambda: self._answer(pid, start_time, on_gpu, recall=recall))

    def keep(self, attachment: Attachment) -> tuple[ProcessKey, ...]:
        """Keep what was read of a run; returns its processes."""
        keys = tuple((rank.pid, rank.start_time) for rank in attachment.ranks)
        self._known.update(dict.fromkeys(keys, attachment))
        return keys

    def before(self, keys: Iterable[ProcessKey]) -> Attachment | None:
        """What was read of a run while it could be."""
        return next((self._known[key] for key in keys if key in self._known), None)

    def drop(self, keys: Iterable[ProcessKey]) -> None:
        """Nobody asks for this run any more."""
        for key in keys:
            self._known.pop(key, None)

    def _answer(self, pid: int, start_time: float | None, on_gpu: Collection[int] | None, *, recall: bool) -> None:
        """Runs on a thread of its own."""
        answer: Attachment | str
        try:
            answer = self._attach(pid, start_time=start_time, on_gpu=on_gpu)
            answer = with_saved_answers(answer, self._answers) if recall else answer
        except VramtopError as error:
            answer = error.message
        self._take(pid, answer)
