"""Hosts read over ssh: one thread serves all connections, and begins those again that have ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from vramtop.estimator.common import VramtopError, start_thread

from ..fleet import Fleet
from .connection import PATIENCE_SECONDS, Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ssh_command import SshCommand

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
