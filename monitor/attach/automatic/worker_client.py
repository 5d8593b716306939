"""Talks to the worker process that reads runs: one request at a time; a worker that takes too long is ended."""

from __future__ import annotations

import base64
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.trace.worker_process import Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job

    from ...board.board import NoBudgetReason
    from ..attachment import Attachment


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Read the run of this process, and estimate its job."""

    pid: int
    start_time: float | None
    on_gpu: Collection[int]
    """Pids that hold GPU memory."""
    gpu_name: str | None
    """Name of its GPU, as NVML gives it."""
    gpu_bytes: int | None
    folder: str | None
    """Working folder of vramtop itself; None: it was removed."""
    corrects: bool = False
    """Correct the budget by the runs that were measured."""
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Settings of the job that the user has named, by dotted key."""


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was read, or the reason why it has no budget."""

    attachment: Attachment | None = None
    job: Job | None = None
    """Its job, with guesses for missing settings."""
    missing: tuple[str, ...] = ()
    """Keys of these settings."""
    budget: Budget | None = None
    reason: NoBudgetReason | None = None
    """Why there is no budget."""
    sentence: str | None = None
    """Sentence that says why there is no budget."""
    too_early: bool = False
    """It was read so early that a later reading may find more."""
    traceback: str | None = None
    """Traceback of a bug that the reading ran into."""


def encode(message: ReadRequest | RunAnswer) -> dict[str, Any]:
    """Return a message as the JSON object that goes through the pipe between vramtop and its own worker."""
    return {"message": base64.b64encode(pickle.dumps(message)).decode()}


def decode(message: Mapping[str, Any]) -> Any:
    """Return the message in a JSON object of ``encode``."""
    return pickle.loads(base64.b64decode(message["message"]))  # noqa: S301 - vramtop's own worker wrote it


PROGRAM = Path(__file__).with_name("read_program.py")
READING_SECONDS = 10.0
"""Reading a run takes 20 to 50 ms; the first request also waits for imports."""


class WorkerClient:
    """Starts the worker with the first request, and again after it had to be ended.

    Args:
        program: the program of the worker.
        reading_seconds: time limit for one reading.
    """

    def __init__(self, program: Path = PROGRAM, reading_seconds: float = READING_SECONDS) -> None:
        self._program = program
        self._reading_seconds = reading_seconds
        self._worker: Worker | None = None

    def read(self, request: ReadRequest) -> RunAnswer:
        """Return the worker's answer; a worker that fails or takes too long is ended, and the reason is the answer."""
        try:
            if self._worker is None:
                self._worker = Worker(Path(sys.executable), self._program)
            answer: RunAnswer = decode(self._worker.request(encode(request), self._reading_seconds))
        except VramtopError as error:
            self.close()
            return RunAnswer(reason="unreadable", sentence=error.message)
        return answer

    def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
