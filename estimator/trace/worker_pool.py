"""Keeps an idle worker between requests: the next one need not start a process and import torch (3 to 5 s).

Off by default: a command that makes one estimate ends its worker with the answer. Sessions, and commands that trace
several settings, switch it on. An idle worker holds some 500 MB of host memory, so only one is kept, for at most five
minutes, and none that has grown large or has answered many requests. A request that runs the user's code has a worker
of its own. The worker ends with vramtop, also when that is killed: its input ends.
"""

import contextlib
import hashlib
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from platformdirs import user_cache_dir

from ..common.cancellation import current_token
from ..common.errors import CannotTellError, ProcessLimitError, start_thread
from ..common.limits import LimitError, decode_json
from ..common.paths import current_folder
from ..common.private_files import is_own, make_own_folder
from ..common.untrusted_files import read_file
from .interpreters import Interpreter
from .worker_process import Worker, WorkerEndedError, convert_answer

MAX_IDLE_SECONDS = 300
MAX_IDLE_BYTES = 3 << 29
"""Host memory of a worker that is kept: 1.5 GiB."""
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
            if answered and shared and not current_token().cancelled and not _is_worn(worker):
                self._keep(interpreter, worker)
            else:
                worker.end()
        return answer

    def _is_shared(self, message: Mapping[str, Any]) -> bool:
        return self.max_idle_seconds > 0 and not message.get("code")

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
        timer = threading.Timer(self.max_idle_seconds, self._end_if_idle, (worker,))
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


# Cache on disk, of worker answers and of what is computed beside them: a broken cache never stops an estimate.
#
# Files are written whole or not at all. An answer of another user's would decide what fits: where anyone but this user
# and root may write (HOME after sudo or su, a shared XDG_CACHE_HOME), nothing is read and nothing kept.


_MAX_ANSWER_BYTES = 2**26
"""A trace of some 100,000 allocations."""
_RESULT_VERSION = 1
"""Format of files of ``kept_result``."""

T = TypeVar("T")


def cache_file(kind: str, key: object, *, folder: Path | None = None) -> Path:
    """Return the file for the answer to a request.

    Args:
        kind: subfolder by kind of request.
        key: everything that the answer depends on, as plain data.
        folder: cache folder; None: the user's.
    """
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()
    return (folder or _user_folder()) / kind / f"{digest[:32]}.json"


def _user_folder() -> Path:
    try:
        return Path(user_cache_dir("vramtop"))
    except RuntimeError:  # platformdirs 4.4 and newer, where no home is known: nothing is kept in a relative folder
        return Path("~/.cache/vramtop")


def cached_request(
    interpreter: Interpreter,
    request: Mapping[str, Any],
    answer_type: type[T],
    *,
    file: Path,
    version: int,
    timeout: float,
) -> T:
    """Return a worker's answer, from the cache if it is there.

    Answers to requests that run the user's code are not kept, since code may change at any time.

    Args:
        interpreter: runs the worker.
        request: the request.
        answer_type: type of the answer.
        file: file of the cache.
        version: format of the file; a file of another format is ignored.
        timeout: seconds.

    Raises:
        CannotTellError: the worker failed, does not support the request, or its answer has another type.
    """
    cacheable = not request.get("code")
    answer = read_cached(file, version, answer_type) if cacheable else None
    if answer is None:
        message = POOL.request(interpreter, request, timeout)
        answer = convert_answer(message, answer_type)
        if cacheable:
            write_cached(file, version, message)
    return answer


def kept_result(
    kind: str, key: object, compute: Callable[[], T], result_type: type[T], *, code: tuple[Iterable[Path], float]
) -> T:
    """Return what this process computes from a key, from the cache if the same code computed it before.

    Args:
        kind: subfolder by kind of result.
        key: everything that the result depends on besides the code, as plain data.
        compute: computes the result.
        result_type: its type.
        code: the files of the code and of the tables that it reads, and when this process loaded them, in Unix seconds.

    Raises:
        VramtopError: as ``compute`` does.
    """
    digest = code_digest(*code)
    if digest is None:
        return compute()
    file = cache_file(kind, [key, digest])
    result = read_cached(file, _RESULT_VERSION, result_type)
    if result is None:
        result = compute()
        write_cached(file, _RESULT_VERSION, result)
    return result


def code_digest(files: Iterable[Path], loaded: float) -> str | None:
    """Return a digest of what files contain, for the key of what their code computes.

    None if one cannot be read, or has changed since the process loaded it: then it is not known what the process runs.
    """
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            with file.open("rb") as opened:
                if os.fstat(opened.fileno()).st_ctime >= loaded:
                    return None
                content = opened.read()
            digest.update(f"{file.name} {len(content)} ".encode())
            digest.update(content)
    except OSError:
        return None
    return digest.hexdigest()


class _CachedAnswer(msgspec.Struct):
    format: int
    answer: msgspec.Raw


def read_cached(file: Path, version: int, answer_type: type[T]) -> T | None:
    """Return an earlier answer; None if the file is missing, cut, another user's or of another version."""
    if not is_own(file):
        return None
    try:
        kept = decode_json(read_file(file, _MAX_ANSWER_BYTES), _CachedAnswer)
        return decode_json(bytes(kept.answer), answer_type) if kept.format == version else None
    except (OSError, LimitError):
        return None


def write_cached(file: Path, version: int, answer: object) -> None:
    """Keep an answer; if the folder cannot be written to, the next estimate asks the worker again."""
    if not is_own(file):
        return
    kept = _CachedAnswer(format=version, answer=msgspec.Raw(msgspec.json.encode(answer)))
    try:
        make_own_folder(file)
        handle, name = tempfile.mkstemp(dir=file.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as part:
            part.write(msgspec.json.encode(kept))
        Path(name).replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
