"""The connection to one host: its ssh process, its lines, and its latest reading with its state."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common import InputError, limits

from ..host_reading import HostReading
from ..stream_line import StreamLineError, parse_stream_line
from .plain_reading import plain_reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..host_reading import HostState
    from .ssh_command import SshCommand

BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waiting time before the next attempt; the last one repeats. A reading begins it anew."""
_CHUNK_BYTES = 1 << 16
_MAX_ERROR_BYTES = 4096
_SILENT_INTERVALS = 3
_LEAST_SILENCE_SECONDS = 5.0
PATIENCE_SECONDS = 1.0
"""Time that an ssh process gets to end by itself."""


@dataclass(slots=True)
class Connection:
    """One host. All methods but ``wait_for_end`` are called under the lock of the fleet.

    Args:
        host: as the user named it.
        command: how to run ``vramtop stream`` there.
        clock: monotonic seconds.
        now: Unix seconds.
    """

    host: str
    command: SshCommand
    clock: Callable[[], float]
    now: Callable[[], float]
    process: subprocess.Popen[bytes] | None = None
    attempt_at: float = 0.0
    """Monotonic seconds of the next attempt, while there is no process."""
    was_tried: bool = False
    """A process was started at least once."""
    has_read: bool = False
    """This process has sent a reading."""
    reading: HostReading = field(init=False)
    _failures: int = 0
    _started_at: float = 0.0
    """Monotonic seconds of the process's start."""
    _heard_at: float | None = None
    """Monotonic seconds of the last reading."""
    _buffer: bytearray = field(default_factory=bytearray)
    _errors: bytearray = field(default_factory=bytearray)
    _greeting: int = 0
    _fault: str | None = None
    """What was wrong with a line of this process."""

    def __post_init__(self) -> None:
        self.reading = HostReading(host=self.host, state="connecting")

    @property
    def is_connecting(self) -> bool:
        """True while ssh runs and nothing has been read yet."""
        return self.process is not None and not self.has_read

    @property
    def is_late(self) -> bool:
        """True if the first reading should have arrived: no other host waits for it any more."""
        return self.is_connecting and self.clock() - self._started_at > (limits.STREAM_START.seconds or 0)

    def start(self) -> subprocess.Popen[bytes]:
        """Start ssh in a session of its own, where it has no terminal to ask anything, and return its process.

        Raises:
            InputError: there is no ssh here.
        """
        arguments = self.command.arguments(self.host)
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise InputError(f"{arguments[0]} cannot be started: {error.strerror}; install OpenSSH") from None
        self.process, self.was_tried, self.has_read = process, True, False
        self._fault, self._greeting, self._started_at = None, 0, self.clock()
        self._buffer.clear()
        self._errors.clear()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
        return process

    def read_output(self) -> bool:
        """Read what has arrived; False at the end of the output, and when it cannot be understood."""
        chunk = _read(self._pipe("stdout"))
        if not chunk:
            return chunk is None
        self._buffer += chunk
        if b"\n" in chunk:
            *lines, self._buffer = self._buffer.split(b"\n")
            self._take_lines(lines)
        if len(self._buffer) > (limits.STREAM_LINE.bytes or 0):
            self._refuse(str(limits.STREAM_LINE.too_large()))
        return self._fault is None

    def read_errors(self) -> bool:
        """Read what has arrived on standard error; False at its end."""
        chunk = _read(self._pipe("stderr"))
        if chunk:
            self._errors = (self._errors + chunk)[-_MAX_ERROR_BYTES:]
        return chunk is None or bool(chunk)

    def _may_have_errors(self) -> bool:
        """Read more of standard error; False if there is nothing now."""
        chunk = _read(self._pipe("stderr"))
        self._errors = (self._errors + (chunk or b""))[-_MAX_ERROR_BYTES:]
        return bool(chunk)

    def wait_for_end(self) -> int:
        """Return the exit code of a process that has closed its output; one that goes on is ended.

        That may take twice ``PATIENCE_SECONDS``, so the thread that reads the pipes calls it without the lock.
        """
        if self.process is None:
            return 0
        while self._may_have_errors():
            pass
        return _end(self.process)

    def note_end(self, code: int) -> None:
        """Take note of the process's exit code, and say why there are no readings."""
        self.process = None
        errors = self._errors.decode(errors="replace")
        if not self.has_read:
            self._failures += 1
        wait = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS)) - 1] if self._failures else BACKOFF_SECONDS[0]
        self.attempt_at = self.clock() + wait
        self._set_state("unreachable", self._fault or self.command.failure(code, errors))

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            _end(process)

    def look_at_clock(self) -> None:
        """Say so if no reading has arrived for a while."""
        if self.is_late:
            self._set_state("silent", str(limits.STREAM_START.too_long()))
        if self._heard_at is None or self.reading.state != "live":
            return
        silence = self.clock() - self._heard_at
        if silence > max(_LEAST_SILENCE_SECONDS, _SILENT_INTERVALS * self.command.interval):
            self._set_state("silent", "connected, but no reading arrives")

    def _take_lines(self, lines: list[bytearray]) -> None:
        """Take the latest reading of these lines; before the first one a shell may have printed something."""
        readings = [line for line in lines if line.startswith(b"{")]
        if not self.has_read:
            self._greeting += sum(len(line) for line in lines) if not readings else 0
            if self._greeting > (limits.STREAM_GREETING.bytes or 0):
                self._refuse("sends something else than the lines of vramtop stream")
        if not readings or self._fault is not None:
            return
        try:
            reading = plain_reading(parse_stream_line(bytes(readings[-1])))
        except StreamLineError as error:
            self._refuse(error.message)
            return
        self.has_read, self._failures, self._heard_at = True, 0, self.clock()
        changes = {"host": self.host, "state": "live", "reason": None, "since": self.now()}
        self.reading = msgspec.structs.replace(reading, **changes)

    def _refuse(self, reason: str) -> None:
        """End a process that sends what cannot be read."""
        self._fault = reason
        self._failures = len(BACKOFF_SECONDS)
        if self.process is not None:
            self.process.terminate()

    def _set_state(self, state: HostState, reason: str) -> None:
        self.reading = msgspec.structs.replace(self.reading, state=state, reason=reason)

    def _pipe(self, name: str) -> int:
        stream = getattr(self.process, name)
        return int(stream.fileno())


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process and return its exit code: vramtop there ends when its input is closed."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        return process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read(number: int) -> bytes | None:
    """Return what can be read now; None: nothing yet; empty: the end."""
    try:
        return os.read(number, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
