"""The user's own command that vramtop starts at each alert: ``--on-alert``.

The command is run by a shell as they wrote it; the facts are in its environment alone, so that no name of a job or of a
user is ever part of a command line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from vramtop.estimator.common.process_limit import ProcessLimitError, process_limit_error

from .latest_only_task import TaskThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_WAITING = 50
"""Events that may wait for the command; a command that hangs would collect them without end."""
_END_SECONDS = 0.3
"""Time in which a command may end after SIGTERM before it is killed: quitting waits for it."""
_NOT_PASSED_ON = ("VRAMTOP_EXPORT_PASSWORD",)
"""Secrets of vramtop itself."""
_MAX_CHARACTERS = 2**14
"""A variable is cut to these: the kernel starts no program with one of 128 KiB."""


class AlertCommand:
    """Runs the command for one event after the other, off the thread of the caller; ended with vramtop.

    A command that fails is reported once, until it has succeeded again.

    Args:
        command: for a shell.
        report: called with a sentence when it fails; called on any thread.
        seconds: longest time that it may take.
    """

    def __init__(self, command: str, report: Callable[[str], None], *, seconds: float = 60.0) -> None:
        self._command, self._report, self._seconds = command, report, seconds
        self._thread = TaskThread("user command", _MAX_WAITING)
        self._said = False
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def add(self, facts: Mapping[str, str]) -> None:
        """Run the command with these facts when it has been run for the events before."""
        try:
            if not self._thread.submit(lambda: self._say(self.run(facts))):
                self._say(f"--on-alert: {_MAX_WAITING} events are waiting for the command; further events are dropped")
        except ProcessLimitError as error:
            self._say(f"--on-alert: {error.message}")

    def run(self, facts: Mapping[str, str]) -> str | None:
        """Run it to its end; return why it failed, in one sentence."""
        environ = {name: text for name, text in os.environ.items() if name not in _NOT_PASSED_ON}
        environ |= {  # others may have named a job
            name: text.replace("\0", " ").encode(errors="replace").decode()[:_MAX_CHARACTERS]
            for name, text in facts.items()
        }
        silent, about = subprocess.DEVNULL, f"--on-alert {self._command}"
        with self._lock:
            if self._ended:
                return None
            try:
                process = subprocess.Popen(  # noqa: S602 - the user's own command, for a shell as they wrote it
                    self._command, shell=True, env=environ, stdin=silent, stdout=silent, stderr=silent,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                limit = process_limit_error(error)
                return f"{about}: {limit.message if limit else f'it cannot be started: {error.strerror}'}"
            self._process = process
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
            return f"{about}: it was killed after {self._seconds:g} s"
        return f"{about}: it ended with exit code {code}" if code and not self._ended else None

    def end(self) -> None:
        """End the command that runs, and run it for no event any more."""
        with self._lock:
            self._ended, process = True, self._process
        if process is None or process.poll() is not None:
            return
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)

    def _say(self, problem: str | None) -> None:
        if problem is not None and not self._said:
            self._report(problem)
        self._said = problem is not None


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
