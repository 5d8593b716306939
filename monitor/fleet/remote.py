"""A few hosts without Prometheus: ``vramtop stream`` on each of them over the system's ssh."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.process_limit import process_limit_error, start_thread

from .fleet import Fleet, HostReading, HostState
from .ssh_command import SshCommand
from .stream_line import StreamLineError, parse_stream_line, plain_reading

BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waiting time before the next attempt; the last one repeats. A reading begins it anew."""
MAX_CONNECTING = 8
"""ssh processes that connect at once: a jump host refuses more than ten (MaxStartups of sshd_config(5))."""
PATIENCE_SECONDS = 1.0
"""Time that an ssh process gets to end by itself."""
_MAX_ERROR_BYTES = 4096
_SILENT_INTERVALS = 3
_LEAST_SILENCE_SECONDS = 5.0
_CLOSING_SECONDS = 20.0
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
        """End all connections, and vramtop at their other ends; an ssh that hangs is left behind after a while."""
        if self._started and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_CLOSING_SECONDS)
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
