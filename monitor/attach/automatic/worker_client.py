"""The side of vramtop that talks to its worker process: one request at a time, ended when it takes too long."""

from __future__ import annotations

import sys
from pathlib import Path

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.trace.worker_process import Worker

from .run_answer import ReadRequest, RunAnswer, decode, encode

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
