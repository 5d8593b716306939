"""A few hosts without Prometheus: ``vramtop stream`` on each of them over the system's ssh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import threading
import time
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.process_limit import process_limit_error, start_thread
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


# Hosts read over ssh: one thread with an event loop serves all connections, and begins those again that have ended.


BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waiting time before the next attempt; the last one repeats. A reading begins it anew."""
MAX_CONNECTING = 8
"""ssh processes that connect at once: a jump host refuses more than ten (MaxStartups of sshd_config(5))."""
PATIENCE_SECONDS = 1.0
"""Time that an ssh process gets to end by itself."""
_MAX_ERROR_BYTES = 4096
_SILENT_INTERVALS = 3
_LEAST_SILENCE_SECONDS = 5.0
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class Connection:
    """One host. Its reading is replaced as a whole, so that any thread may look at it.

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
    is_awaited: bool = True
    """It has neither been read nor failed yet, and may still do so in time."""
    _reading: HostReading = field(init=False)
    _heard_at: float = 0.0
    """Monotonic seconds of the last reading."""

    def __post_init__(self) -> None:
        self._reading = HostReading(host=self.host, state="connecting")

    @property
    def reading(self) -> HostReading:
        """The latest reading; silent if none has arrived for a while."""
        silence = self.clock() - self._heard_at
        is_late = silence > max(_LEAST_SILENCE_SECONDS, _SILENT_INTERVALS * self.command.interval)
        if self._reading.state == "live" and is_late:
            return replace(self._reading, state="silent", reason="connected, but no readings arrive")
        return self._reading

    async def follow(self, slots: asyncio.Semaphore) -> None:
        """Run ssh, again and again, until this is cancelled.

        Args:
            slots: limits how many hosts connect at once.

        Raises:
            InputError: there is no ssh here.
            ProcessLimitError: no process or thread can be started.
        """
        failures = 0
        while True:
            heard_at = self._heard_at
            reason = await self._run(slots)
            failures = 0 if self._heard_at != heard_at else failures + 1
            self._fail("unreachable", reason)
            await asyncio.sleep(BACKOFF_SECONDS[min(max(failures, 1), len(BACKOFF_SECONDS)) - 1])

    async def _run(self, slots: asyncio.Semaphore) -> str:
        """Run ssh once, take its readings, and return why it has ended."""
        await slots.acquire()
        with contextlib.ExitStack() as connecting:
            connecting.callback(slots.release)
            process = await self._start()
            output, errors = process.stdout, process.stderr
            assert output is not None and errors is not None  # noqa: S101, PT018 - they are pipes
            said, fault = asyncio.create_task(_tail(errors)), None
            try:
                await self._take_all(output, connecting)
            except StreamLineError as error:
                fault = error.message
            except ValueError:  # from the reader: a line without an end
                fault = str(limits.STREAM_LINE.too_large())
            finally:
                connecting.close()
                code = await asyncio.shield(_end(process, said))  # also if this is cancelled meanwhile
            return fault or self.command.failure(code, "" if said.cancelled() else said.result())

    async def _start(self) -> asyncio.subprocess.Process:
        """Start ssh in a session of its own, where it has no terminal to ask anything."""
        arguments, pipe = self.command.arguments(self.host), asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *arguments,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=limits.STREAM_LINE.bytes or 0,
                start_new_session=True,
            )
        except RuntimeError as error:  # before Python 3.12 a thread waits for each process
            raise process_limit_error(error) or error from None
        except OSError as error:
            raise InputError(f"{arguments[0]} cannot be started: {error.strerror}; install OpenSSH") from None

    async def _take_all(self, output: asyncio.StreamReader, connecting: contextlib.ExitStack) -> None:
        """Take all readings; the first one, or its lateness, ends the connecting."""
        try:
            line = await asyncio.wait_for(self._first_line(output), limits.STREAM_START.seconds)
        except asyncio.TimeoutError:
            self._fail("silent", str(limits.STREAM_START.too_long()))
            connecting.close()
            line = await self._first_line(output)
        connecting.close()
        while line:
            self._take(line)
            line = await output.readline()

    async def _first_line(self, output: asyncio.StreamReader) -> bytes:
        """Return the first line of a reading, or nothing at the end; a shell may have printed something before."""
        greeting = 0
        while (line := await output.readline()) and not line.startswith(b"{"):
            greeting += len(line)
            if greeting > (limits.STREAM_GREETING.bytes or 0):
                raise StreamLineError("sends output that is not from vramtop stream")
        return line

    def _take(self, line: bytes) -> None:
        if line.startswith(b"{"):
            reading = plain_reading(parse_stream_line(line))
            self._heard_at, self.is_awaited = self.clock(), False
            self._reading = replace(reading, host=self.host, state="live", reason=None, since=self.now())

    def _fail(self, state: HostState, reason: str) -> None:
        self._reading, self.is_awaited = replace(self._reading, state=state, reason=reason), False


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the last of what a stream has until its end."""
    last = b""
    while chunk := await stream.read(_MAX_ERROR_BYTES):
        last = (last + chunk)[-_MAX_ERROR_BYTES:]
    return last.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process, said: asyncio.Task[str]) -> int:
    """End a process and return its exit code: vramtop there ends when its input is closed.

    Args:
        process: ssh.
        said: reads what it writes to standard error; cancelled if that does not end with it.
    """
    if process.stdin is not None:
        process.stdin.close()
    for ask in (None, process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            if ask is not None:
                ask()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
            break
    await asyncio.wait([said], timeout=PATIENCE_SECONDS)
    said.cancel()
    code = await process.wait()
    # a child of it may hold its pipes open, which asyncio closes in no public way
    process._transport.close()  # type: ignore[attr-defined]
    return code


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
        self._failure: VramtopError | None = None
        self._loop, self._closing = asyncio.new_event_loop(), asyncio.Event()
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
        if self._failure is not None:
            raise self._failure
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
            waiting = any(each.is_awaited for each in self._connections)
            if (not waiting and until(fleet)) or self._clock() >= end:
                return fleet
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End all connections and the vramtop there."""
        if self._started and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        elif not self._started:
            self._loop.close()

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._follow_all())
        except VramtopError as error:
            self._failure = error
        finally:
            self._loop.close()

    async def _follow_all(self) -> None:
        """Follow all hosts until the source is closed, or cannot start ssh; then end all at once."""
        slots = asyncio.Semaphore(MAX_CONNECTING)
        tasks = [asyncio.create_task(connection.follow(slots)) for connection in self._connections]
        closing = asyncio.create_task(self._closing.wait())
        ended, _ = await asyncio.wait([closing, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (closing, *tasks):
            task.cancel()
        await asyncio.gather(closing, *tasks, return_exceptions=True)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        for task in ended - {closing}:
            task.result()  # raises what has ended it


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
