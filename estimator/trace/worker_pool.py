"""Keeps an idle worker between requests: the next one need not start a process and import torch (3 to 5 s).

Off by default: a command that makes one estimate has one worker, which tells the versions of its libraries, traces,
and ends with that answer. Sessions, and commands that trace several settings, switch it on. An idle worker holds some
500 MB of host memory, so only one is kept, for at most five minutes, and none that has grown large or has answered
many requests. A request that runs the user's code has a worker of its own. The worker ends with vramtop, also when
that is killed: its input ends.
"""

import contextlib
import resource
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.cancellation import current_token
from ..common.errors import CannotTellError
from ..common.paths import current_folder
from ..common.process_limit import ProcessLimitError, start_thread
from .installed_packages import Interpreter
from .worker_process import Worker, WorkerEndedError

MAX_IDLE_SECONDS = 300
MAX_IDLE_BYTES = 3 << 29
"""Host memory of a worker that is kept: 1.5 GiB."""
ADOPTED_SECONDS = 10.0
"""Time for which a worker is kept at least that has answered which libraries there are."""
MAX_REQUESTS = 100
"""Requests after which a worker is ended: what libraries leave behind adds up."""


class WorkerPool:
    """Answers requests by a worker that an earlier request left, or by a new one. Safe to call from any thread."""

    def __init__(self) -> None:
        self.max_idle_seconds = 0.0
        """Time after which an idle worker is ended; 0: at once."""
        self._lock = threading.Lock()
        self._idle: tuple[Interpreter, Worker, threading.Timer] | None = None

    def request(self, interpreter: Interpreter, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer to one request.

        The worker has this process's environment, never that of a process which vramtop reads: the HOME of another
        user has packages of theirs. The user's own code runs in the current folder.

        Args:
            interpreter: runs the worker.
            message: the request, without its ``id``.
            timeout: seconds, including the start of a new worker.

        Raises:
            CannotTellError: the worker cannot be started, took too long, died, or answered that it cannot.
            CancelledError: the request was cancelled.
        """
        shared = self._is_shared(message)
        if message.get("code"):
            message = {**message, "code": {**message["code"], "current": current_folder()}}
        kept = self._take(interpreter) if shared else None
        if kept is not None:
            with contextlib.suppress(WorkerEndedError):  # torch may crash over what an earlier request left
                return self._ask(kept, interpreter, message, timeout, shared=shared)
        return self._ask(Worker(interpreter.path), interpreter, message, timeout, shared=shared)

    def adopt(self, interpreter: Interpreter, worker: Worker) -> bool:
        """Keep a worker for the interpreter's next request; False: one is kept already, and the caller ends its own."""
        with self._lock:
            if self._idle is not None and self._idle[0] == interpreter and self._idle[1].running:
                return False
        self._keep(interpreter, worker)
        return True

    def close(self) -> None:
        """End the idle worker."""
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            idle[2].cancel()
            idle[1].end()

    def _ask(
        self, worker: Worker, interpreter: Interpreter, message: Mapping[str, Any], timeout: float, *, shared: bool
    ) -> dict[str, Any]:
        """Return a worker's answer; keep the worker if it may answer others."""
        answered = False
        try:
            answer = worker.request(message, timeout)
            answered = True
        except CannotTellError:
            answered = worker.running  # it refused the request; a worker that failed has ended
            raise
        finally:
            # cancelling kills it, even after its answer
            is_kept = shared and self.max_idle_seconds > 0 and not current_token().cancelled
            if answered and is_kept and not _is_worn(worker):
                self._keep(interpreter, worker)
            else:
                worker.end()
        return answer

    def _is_shared(self, message: Mapping[str, Any]) -> bool:
        return not message.get("code")

    def _take(self, key: Interpreter) -> Worker | None:
        with self._lock:
            if self._idle is None or self._idle[0] != key:
                return None
            _, worker, timer = self._idle
            self._idle = None
        timer.cancel()
        if worker.running:
            return worker
        worker.end()
        return None

    def _keep(self, key: Interpreter, worker: Worker) -> None:
        seconds = self.max_idle_seconds or ADOPTED_SECONDS
        timer = threading.Timer(seconds, self._end_if_idle, (worker,))
        timer.daemon = True
        with self._lock:
            displaced, self._idle = self._idle, (key, worker, timer)
        try:
            start_thread(timer)
        except ProcessLimitError:  # it could not be ended later
            self._end_if_idle(worker)
        if displaced is not None:
            displaced[2].cancel()
            displaced[1].end()

    def _end_if_idle(self, worker: Worker) -> None:
        with self._lock:
            if self._idle is None or self._idle[1] is not worker:
                return
            self._idle = None
        worker.end()


def _is_worn(worker: Worker) -> bool:
    """Return True if a worker holds too much memory to be kept, or has answered as many requests as one may."""
    held = resident_bytes(worker.pid)
    return worker.requests >= MAX_REQUESTS or (held is not None and held > MAX_IDLE_BYTES)


def resident_bytes(pid: int) -> int | None:
    """Return a process's memory in RAM; None: this system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * resource.getpagesize()


POOL = WorkerPool()
"""The workers of this process."""


def keep_idle_workers(max_seconds: float = MAX_IDLE_SECONDS) -> None:
    """Keep a worker for the next request from now on: for sessions that make many estimates."""
    POOL.max_idle_seconds = max_seconds
