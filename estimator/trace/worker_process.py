"""The worker process: a program run by another Python, which answers each request, a line of JSON, with another."""

import atexit
import os
import selectors
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from ..common.cancellation import current_token
from ..common.errors import CannotTellError
from ..common.process_limit import process_limit_error
from .start_python import start_python

WORKER_PROGRAM = Path(__file__).parents[1] / "worker" / "__main__.py"
_STDERR_TAIL_BYTES = 4096
_END_SECONDS = 1.0
"""Most that a process takes to end once its output is closed."""
T = TypeVar("T")
_ALIVE: "weakref.WeakSet[subprocess.Popen[bytes]]" = weakref.WeakSet()
"""Workers that may still run; they are killed when vramtop ends, whichever thread waits for them."""
_BESIDE: ContextVar[Callable[[], object] | None] = ContextVar("what runs beside a worker", default=None)


@contextmanager
def beside_worker(work: Callable[[], object]) -> Iterator[None]:
    """Have work done while a worker computes its answer to a request that the thread makes in the block.

    Args:
        work: called once a request has been sent, for each of them; not at all if none is sent. It must raise nothing.
    """
    before = _BESIDE.set(work)
    try:
        yield
    finally:
        _BESIDE.reset(before)


class WorkerEndedError(CannotTellError):
    """The worker ended without an answer."""


def convert_answer(message: Mapping[str, Any], answer_type: type[T]) -> T:
    """Return a worker's message as a typed answer.

    Raises:
        CannotTellError: the message has another type.
    """
    try:
        return msgspec.convert(message, answer_type)
    except msgspec.ValidationError as error:
        raise CannotTellError(
            f"vramtop cannot read the worker's answer ({error}); this is a bug in vramtop, please report it"
        ) from None


class Worker:
    """A running worker. It takes one request at a time; another thread may call ``close`` to end that.

    Args:
        python: the interpreter that runs it.
        program: the file to run.
        environ: its environment; None: this process's.

    Raises:
        CannotTellError: it cannot be started.
    """

    def __init__(
        self, python: Path, program: Path = WORKER_PROGRAM, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self._python = python
        self.requests = 0
        """Requests that it was sent."""
        self._buffer = b""
        self._closed = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process, closed with it
        try:
            self._process = start_python(python, program, environ=environ, stderr=self._stderr)
        except CannotTellError:
            self._stderr.close()
            raise
        _ALIVE.add(self._process)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    def request(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and return its answer.

        Args:
            message: the request, without its ``id``.
            timeout: seconds; a worker that takes longer is killed.

        Raises:
            CannotTellError: it took too long, died, or answered with an error.
            CancelledError: the request was cancelled.
        """
        with current_token().on_cancel(self._process.kill):
            return self._exchange(message, timeout)

    def _exchange(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.requests += 1
        line = msgspec.json.encode({**message, "id": self.requests}) + b"\n"
        try:
            self._write(line)
            if (work := _BESIDE.get()) is not None:
                work()
            answer = msgspec.json.decode(self._read_line(timeout), type=dict[str, Any])
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile, or not JSON
            killed = isinstance(error, OSError) and self._was_killed()
            self.close()
            written = self._stderr_tail()
            last = f": {written[-1]}" if written else ""
            if killed:
                last = ": it was killed; the machine's RAM, or the limit of this container or job, may have run out"
            failure = WorkerEndedError(f"the worker under {self._python} ended{last}")
            raise process_limit_error("\n".join(written)) or failure from None
        if answer.get("error"):
            text = str(answer["error"])
            raise process_limit_error(text) or CannotTellError(f"{text} (under {self._python})")
        return answer

    def _was_killed(self) -> bool:
        """Return True if the process, whose answer has ended, was ended by SIGKILL, and not by ``close``."""
        import subprocess

        with suppress(subprocess.TimeoutExpired):  # it closed its output and runs on
            return not self._closed and self._process.wait(_END_SECONDS) == -signal.SIGKILL
        return False

    def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the process and close its pipes; not while another thread waits for an answer."""
        self.close()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    def _write(self, data: bytes) -> None:
        pipe = self._process.stdin
        while pipe is not None and data:
            data = data[pipe.write(data) or 0 :]

    def _read_line(self, timeout: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 - stdout=PIPE
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.close()
                    raise CannotTellError(
                        f"the worker under {self._python} gave no answer within {timeout:g} s; method formula needs "
                        "no worker"
                    )
                data = os.read(pipe.fileno(), 1 << 16)
                if not data:
                    raise BrokenPipeError
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stderr_tail(self) -> list[str]:
        """Return the last lines of its stderr; the very last is usually the error that ended it."""
        try:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(size - _STDERR_TAIL_BYTES, 0))
            lines = self._stderr.read().decode(errors="replace").split("\n")
        except ValueError:
            return []
        return [line.strip() for line in lines if line.strip()]


@atexit.register
def _end_all() -> None:
    for process in list(_ALIVE):
        if process.poll() is None:
            process.kill()
