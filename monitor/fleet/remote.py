"""A few hosts without Prometheus: ``vramtop stream`` on each of them over the system's ssh."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import subprocess
import threading
import time
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError, VramtopError, start_thread
from vramtop.estimator.common.trust import find_program, why_not_found
from vramtop.estimator.common.version import DISTRIBUTION

from ..host.plain_text import sanitize_line
from ..snapshot.field_types import MAX_UNIX_SECONDS
from .fleet import Fleet, HostReading, StreamLineError, parse_stream_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .fleet import HostState

# Lists of hosts: names as ssh takes them, Slurm's lists such as ``node[01-16,20]``, and files with one per line.


MAX_HOSTS = 256
"""Each is an ssh process; of more, Prometheus is asked."""
_MAX_FILE_BYTES = 1 << 20
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_HOST = re.compile(r"(?:[A-Za-z0-9_.][\w.+-]*@)?[A-Za-z0-9_.:][\w.:%-]*", re.ASCII)
"""User and host. Neither begins with ``-``: ssh would take it for an option."""


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, each once, in order.

    Args:
        text: ``user@a,node[01-16,20]``.

    Raises:
        InputError: one of them is no host name, or there are too many.
    """
    hosts: dict[str, None] = {}
    for part in _COMMA_OUTSIDE_BRACKETS.split(text):
        for host in _expanded(part.strip()):
            hosts[host] = None
            if len(hosts) > MAX_HOSTS:
                raise InputError(f"{text[:80]}: more than {MAX_HOSTS} hosts; use vramtop --prometheus URL for as many")
    return tuple(hosts)


def read_hosts_file(path: Path) -> tuple[str, ...]:
    """Return the hosts of a file: one or a list per line; what follows ``#`` is a comment.

    Raises:
        InputError: it cannot be read, has no host, or one that is no host name.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"{path}: the list of hosts cannot be read: {reason}") from None
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].split():
            try:
                hosts.update(dict.fromkeys(parse_hosts(word)))
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error.message}") from None
    if not hosts:
        raise InputError(f"{path}: no hosts in the file; write one per line")
    if len(hosts) > MAX_HOSTS:
        raise InputError(f"{path}: more than {MAX_HOSTS} hosts; use vramtop --prometheus URL for as many")
    return tuple(hosts)


def _expanded(part: str) -> Iterator[str]:
    """Yield the hosts of ``rack[1-2]node[01-04]``."""
    pieces = _BRACKETS.split(part)  # text, brackets, text, brackets, text
    choices = [[piece] if at % 2 == 0 else _numbers(piece, part) for at, piece in enumerate(pieces)]
    for names in product(*choices):
        host = "".join(names)
        if not _HOST.fullmatch(host):
            example = "names such as node01, ann@node01 or node[01-16,20]"
            raise InputError(f"{part[:80]!r} is not a host: give {example}")
        yield host


def _numbers(text: str, part: str) -> list[str]:
    """Return the numbers of ``01-16,20``, with the leading zeros of the first of each range."""
    numbers: list[str] = []
    for each in text.split(","):
        found = _RANGE.fullmatch(each.strip())
        if found is None:
            raise InputError(
                f"{part[:80]!r} is not a list of hosts: {each[:20]!r} is not a number or range, as in node[01-04,07]"
            )
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) >= MAX_HOSTS:
            raise InputError(f"{part[:80]!r}: {each} is not a range of at most {MAX_HOSTS} hosts; write it like 01-16")
        width = len(first)
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return numbers


# Makes another host's reading safe to show: texts are plain lines, and numbers such as a machine can have.


_MAX_CHARACTERS = 2000
_MAX_INTEGER = 1 << 60


def plain_reading(reading: HostReading) -> HostReading:
    """Return a reading with plain texts.

    Raises:
        StreamLineError: a number is negative, or larger than any size or time.
    """
    return msgspec.convert(_plain(msgspec.to_builtins(reading)), HostReading)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS] if value.isascii() and value.isprintable() else sanitize_line(value) or ""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (int, float)) and not 0 <= value <= (
        MAX_UNIX_SECONDS if isinstance(value, float) else _MAX_INTEGER
    ):
        raise StreamLineError("sent an impossible figure; run vramtop doctor there to see what its driver reports")
    return value


# The connection to one host: its ssh process, its lines, and its latest reading with its state.


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
            self._set_state("silent", "connected, but no readings arrive")

    def _take_lines(self, lines: list[bytearray]) -> None:
        """Take the latest reading of these lines; before the first one a shell may have printed something."""
        readings = [line for line in lines if line.startswith(b"{")]
        if not self.has_read:
            self._greeting += sum(len(line) for line in lines) if not readings else 0
            if self._greeting > (limits.STREAM_GREETING.bytes or 0):
                self._refuse("sends output that is not from vramtop stream")
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


# Hosts read over ssh: one thread serves all connections, and begins those again that have ended.


MAX_CONNECTING = 8
"""ssh processes that connect at once: a jump host refuses more than ten (MaxStartups of sshd_config(5))."""
_TICK_SECONDS = 0.25


class RemoteFleet:
    """A source of fleets (``FleetSource``) over ssh.

    Args:
        hosts: as the user named them.
        command: how to run ``vramtop stream`` there.
        clock: monotonic seconds.
        now: Unix seconds.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        command: SshCommand,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._now = clock, now
        self._connections = [Connection(host, command, clock, now) for host in hosts]
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._failure: VramtopError | None = None
        self._thread = threading.Thread(target=self._serve, name="ssh", daemon=True)
        self._started = False

    def read(self) -> Fleet:
        """Return all hosts as they are known now; never waits for one.

        Raises:
            VramtopError: there is no ssh here.
        """
        if not self._started:
            self._started = True
            start_thread(self._thread)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            for connection in self._connections:
                connection.look_at_clock()
            return Fleet(self._now(), tuple(connection.reading for connection in self._connections))

    def wait(self, seconds: float, *, until: Callable[[Fleet], bool] = lambda _: True) -> Fleet:
        """Return all hosts once each has been read or could not be reached, or after this time.

        Args:
            seconds: the longest time.
            until: a condition that must be true besides.
        """
        end = self._clock() + seconds
        while True:
            fleet = self.read()
            with self._lock:
                waiting = any(each.is_connecting or not each.was_tried for each in self._connections)
            if (not waiting and until(fleet)) or self._clock() >= end:
                return fleet
            self._closing.wait(_TICK_SECONDS / 5)

    def close(self) -> None:
        """End all connections and the vramtop there."""
        self._closing.set()
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"x")
        if self._started:
            self._thread.join()
        for number in (self._wake_reader, self._wake_writer):
            with contextlib.suppress(OSError):
                os.close(number)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                with self._lock:
                    self._start_due()
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if key.data is not None:
                        self._read_pipe(*key.data)
        except VramtopError as error:
            with self._lock:
                self._failure = error
        finally:
            self._end_all()

    def _start_due(self) -> None:
        connecting = sum(each.is_connecting and not each.is_late for each in self._connections)
        for connection in self._connections:
            if connecting >= MAX_CONNECTING:
                return
            if connection.process is None and self._clock() >= connection.attempt_at:
                process = connection.start()
                connecting += 1
                for stream, name in ((process.stdout, "output"), (process.stderr, "errors")):
                    if stream is not None:
                        self._selector.register(stream, selectors.EVENT_READ, (connection, name))

    def _read_pipe(self, connection: Connection, stream: str) -> None:
        """Read one pipe that has something; at its end wait for its process, during which the fleet can be read."""
        with self._lock:
            goes_on = self._take(connection, stream)
        if not goes_on:
            code = connection.wait_for_end()
            with self._lock:
                connection.note_end(code)

    def _take(self, connection: Connection, stream: str) -> bool:
        """Take what a pipe has; False at the end of the output."""
        process = connection.process
        if process is None or process.stdout is None or process.stderr is None:
            return True  # it ended in this round
        if stream == "errors":
            if not connection.read_errors():
                self._selector.unregister(process.stderr)
        elif not connection.read_output():
            for each in (process.stdout, process.stderr):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(each)
            return False
        return True

    def _end_all(self) -> None:
        """Close the input of all at once, then wait for each."""
        with self._lock:
            running = [connection.process for connection in self._connections if connection.process is not None]
            for process in running:
                if process.stdin is not None:
                    with contextlib.suppress(OSError):
                        process.stdin.close()
            end = time.monotonic() + PATIENCE_SECONDS
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                if process.poll() is None:
                    process.terminate()
            for connection in self._connections:
                connection.stop()
        self._selector.close()


# The command line of ssh that runs ``vramtop stream`` on a host, and what its failures mean.
#
# ssh reads the user's own configuration: names, keys, agent, jump hosts and shared connections (ssh_config(5)).


Bootstrap = Literal["uvx"]
"""What runs vramtop on a host where it is not installed."""
SSH_VARIABLE = "VRAMTOP_SSH"
"""Environment variable with another command instead of ``ssh``, as words of a shell: ``ssh -F FILE``."""

_OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal, no forwarding of agent and display to where only figures come from
    *("-o", "BatchMode=yes"),  # never ask: a prompt would be written over the screen
    *("-o", "ClearAllForwardings=yes", "-o", "LogLevel=ERROR"),
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_PATHS = "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin; export PATH"
"""A shell that is no login shell has not read where pip, pipx and uv install programs."""
_NOT_FOUND = 127
_SSH_FAILED = 255


class SshCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How to run ``vramtop stream`` on hosts.

    Args:
        interval: seconds between readings.
        attaches: attach to training processes there.
        bootstrap: what runs vramtop where it is not installed; None: nothing.
        version: of this vramtop, which is the one that is bootstrapped; None: the latest.
        program: command in place of ssh; None: that of the environment.
    """

    interval: float
    attaches: bool = True
    bootstrap: Bootstrap | None = None
    version: str | None = None
    program: str | None = None

    def arguments(self, host: str) -> list[str]:
        """Return the command line for a host.

        Raises:
            InputError: the environment's command for ssh cannot be understood, or there is no ssh that may be started.
        """
        return [*_ssh_words(self.program), *_OPTIONS, "--", host, shlex.join(["sh", "-c", self._script()])]

    def _script(self) -> str:
        stream = ["stream", "--interval", f"{self.interval:g}", *([] if self.attaches else ["--no-attach"])]
        run = f"exec {shlex.join(['vramtop', *stream])}"
        if self.bootstrap is None:
            return f"{_PATHS}; {run}"
        package = f"{DISTRIBUTION}=={self.version}" if self.version else DISTRIBUTION
        fetch = f"exec {shlex.join([self.bootstrap, '--from', package, 'vramtop', *stream])}"
        return f"{_PATHS}; command -v vramtop >/dev/null || {fetch}; {run}"

    def failure(self, code: int, errors: str) -> str:
        """Return in one sentence why the command ended.

        Args:
            code: its exit code; negative: the signal that ended it.
            errors: the end of what it wrote to standard error.
        """
        lines = [line for each in errors.splitlines() if (line := sanitize_line(each))]
        last = lines[-1] if lines else ""
        if "Permission denied" in last:
            return f"{last}: vramtop asks for no password; use a key, an agent or a shared connection of ssh"
        if "Host key verification failed" in errors:
            return "its host key is unknown or has changed: run ssh once by hand to check"
        if code == _NOT_FOUND:
            return self._not_installed()
        if "vramtop" in errors and ("stream" in errors and ("invalid choice" in errors or "no such" in errors)):
            return "vramtop there is too old to have the command stream; update it there"
        if code == _SSH_FAILED:
            return last or "ssh could not connect and gave no reason"
        if code == 0:
            return "the connection was closed"
        return f"vramtop there ended with exit code {code}{f': {last}' if last else ''}"

    def _not_installed(self) -> str:
        if self.bootstrap is not None:
            return (
                f"neither vramtop nor {self.bootstrap} is installed there: install one of them (uv: docs.astral.sh/uv)"
            )
        return f"vramtop is not installed there: pip install {DISTRIBUTION}, or use --bootstrap uvx"


def _ssh_words(program: str | None) -> list[str]:
    try:
        words = shlex.split(os.environ.get(SSH_VARIABLE, "ssh") if program is None else program)
    except ValueError as error:
        raise InputError(f"{SSH_VARIABLE}, or hosts.ssh of your settings, is not a command line: {error}") from None
    name, *options = words or ["ssh"]
    found = find_program(name, os.environ.get("PATH"))
    if found is None:
        raise InputError(
            f"{why_not_found(name, os.environ.get('PATH'))}; install OpenSSH, or name the program in {SSH_VARIABLE}"
        )
    return [str(found), *options]
