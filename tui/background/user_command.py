"""Commands of the user's own that vramtop starts at an event: ``--on-fit`` and ``--on-alert``.

The command is run by a shell as they wrote it; the facts are in its environment alone, so that no name of a job or of a
user is ever part of a command line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
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


ALERT_SECONDS = 60.0
"""Longest time that a command for an alert may take."""


@dataclass(slots=True)
class UserCommand:
    """A shell command of the user's.

    Args:
        flag: the option that it was given with.
        command: the command.
        report: called with a sentence when it fails; called on any thread.
        seconds: longest time that it may take; None: as long as it likes.
    """

    flag: str
    command: str
    report: Callable[[str], None]
    seconds: float | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def start(self, facts: Mapping[str, str], *, thread: str) -> None:
        """Run it on a thread of its own, whatever else of it runs; it stays when vramtop ends."""
        try:
            TaskThread(thread).submit(lambda: self._run_and_report(facts))
        except ProcessLimitError as error:
            self.report(self._sentence(error.message))

    def run(self, facts: Mapping[str, str]) -> str | None:
        """Run it to its end; return why it failed, in one sentence."""
        environ = {name: text for name, text in os.environ.items() if name not in _NOT_PASSED_ON}
        environ |= {name: _as_variable(text) for name, text in facts.items()}
        silent = subprocess.DEVNULL
        with self._lock:
            if self._ended:
                return None
            try:
                process = subprocess.Popen(  # noqa: S602 - the user's own command, for a shell as they wrote it
                    self.command, shell=True, env=environ, stdin=silent, stdout=silent, stderr=silent,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                limit = process_limit_error(error)
                return self._sentence(limit.message if limit else f"it cannot be started: {error.strerror}")
            self._process = process
        try:
            code = process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
            return self._sentence(f"it was killed after {self.seconds:g} s")
        return self._sentence(f"it ended with exit code {code}") if code and not self._ended else None

    def end(self) -> None:
        """End the command that ``run`` runs, and start none any more."""
        with self._lock:
            self._ended, process = True, self._process
        if process is None or process.poll() is not None:
            return
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)

    def _run_and_report(self, facts: Mapping[str, str]) -> None:
        problem = self.run(facts)
        if problem is not None:
            self.report(problem)

    def _sentence(self, words: str) -> str:
        return f"{self.flag} {self.command}: {words}"


class CommandQueue:
    """Runs a user's command for one event after the other, off the thread of the caller; ended with vramtop.

    A command that fails is reported once, until it has succeeded again.
    """

    def __init__(self, command: UserCommand) -> None:
        self._command = command
        self._thread = TaskThread("user command", _MAX_WAITING)
        self._said = False

    def add(self, facts: Mapping[str, str]) -> None:
        """Run the command with these facts when it has been run for the events before."""
        flag = self._command.flag
        try:
            if not self._thread.submit(lambda: self._run(facts)):
                self._say(f"{flag}: {_MAX_WAITING} events are waiting for the command; further events are dropped")
        except ProcessLimitError as error:
            self._say(f"{flag}: {error.message}")

    def end(self) -> None:
        """End the command that runs, and run it for no event any more."""
        self._command.end()

    def _run(self, facts: Mapping[str, str]) -> None:
        problem = self._command.run(facts)
        if problem is None:
            self._said = False
        else:
            self._say(problem)

    def _say(self, sentence: str) -> None:
        if not self._said:
            self._said = True
            self._command.report(sentence)


_MAX_CHARACTERS = 2**14
"""A variable is cut to these: the kernel starts no program with one of 128 KiB."""


def _as_variable(text: str) -> str:
    """Return a fact as a variable may hold it: others may have named a job."""
    return text.replace("\0", " ").encode(errors="replace").decode()[:_MAX_CHARACTERS]


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
