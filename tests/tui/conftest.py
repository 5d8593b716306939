"""Fixtures of the terminal UI's tests: real programs on pseudo-terminals."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet
from waiting import DEADLINE_SECONDS

from vramtop.tui.app.app import VramtopApp

_KERNEL_BUFFER_BYTES = 4095
"""Unread terminal output that Linux buffers before writes block."""
COMMAND = (sys.executable, "-m", "vramtop.tui.cli")


class TerminalProgram:
    """A program on its own pseudo-terminal, in a new session and in the foreground, as under a shell.

    Args:
        words: the program and its arguments.
        size: columns and lines.
        environ: environment variables to add; None as a value removes one.
    """

    def __init__(
        self, words: Sequence[str], *, size: tuple[int, int] = (120, 40), environ: dict[str, str | None] | None = None
    ) -> None:
        variables = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environ or {})}
        self.written = b""
        """All output of the program so far."""
        self.code: int | None = None
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child becomes the program
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            os.execvpe(words[0], list(words), {key: text for key, text in variables.items() if text is not None})  # noqa: S606

    def type(self, keys: str) -> None:
        """Send key presses to the program."""
        os.write(self.terminal, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Change the size of the terminal; the kernel notifies the program with SIGWINCH."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, condition: Callable[[], object], *, seconds: float = DEADLINE_SECONDS) -> None:
        """Read output until the condition is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.written[-1500:]
            self.read()

    def wait_for(self, text: str, *, since: int = 0) -> None:
        """Read output until it contains this text, from byte ``since`` on."""
        self.until(lambda: text.encode() in self.written[since:])

    def read(self, seconds: float = 0.1) -> None:
        """Read the available output; wait at most this long for it."""
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                self.written += os.read(self.terminal, 65536)
            except OSError:  # the program has exited, or is about to
                time.sleep(0.01)

    def end(self, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until the program has exited; return its exit code, negative for a signal."""
        self.until(self.has_ended, seconds=seconds)
        before = -1
        while len(self.written) != before:  # one read takes 4 KiB at most
            before = len(self.written)
            self.read()
        assert self.code is not None
        return self.code

    def stopped(self) -> bool:
        """Return True if the program has been stopped since the last call."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        return bool(pid) and os.WIFSTOPPED(status)

    @property
    def echoes(self) -> bool:
        """True if the terminal is in the mode that a shell expects: canonical input with echo."""
        flags = termios.tcgetattr(self.terminal)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def mode(self, number: int) -> bool | None:
        """Return the last state set for a DEC private mode (1049 alternate screen, 25 cursor, 1000 mouse), or None."""
        on, off = (self.written.rfind(f"\x1b[?{number}{letter}".encode()) for letter in "hl")
        return None if on == off else on > off

    def is_full(self) -> bool:
        """Return True if the terminal's buffer is full of unread output, so that further writes block."""
        (unread,) = struct.unpack("i", fcntl.ioctl(self.terminal, termios.FIONREAD, bytes(4)))
        return unread >= _KERNEL_BUFFER_BYTES

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self.terminal)
        self.terminal = -1

    def close(self) -> None:
        """Kill the program and close the terminal."""
        if self.code is None and not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.terminal >= 0:
            os.close(self.terminal)

    def has_ended(self) -> bool:
        """Return True if the program has exited; its exit code is in ``code``."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None


@pytest.fixture
def on_terminal(request: pytest.FixtureRequest) -> Callable[..., TerminalProgram]:
    """Start a program on its own terminal; by default vramtop with these arguments."""

    def start(*words: str, program: Sequence[str] = COMMAND, **options: object) -> TerminalProgram:
        started = TerminalProgram([*program, *words], **options)  # type: ignore[arg-type]
        request.addfinalizer(started.close)
        return started

    return start


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[VramtopApp]:
    """The dashboards that commands of the test open; they are not shown."""
    apps: list[VramtopApp] = []
    monkeypatch.setattr(VramtopApp, "run", lambda self, **_: apps.append(self))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("vramtop.tui.cli.commands.dashboard.is_served", lambda: True)  # the streams are captured
    return apps


@pytest.fixture(scope="session", autouse=True)
def _styles_parsed_once() -> Iterator[None]:
    """Let all apps of a test run share the parsed styles of their widgets: each start of an app parses them anew."""
    parse, kept = Stylesheet._parse_rules, {}

    def parsed(sheet: Stylesheet, css: str, **options: Any) -> Any:
        key = (css, frozenset(sheet._variables.items()), *options.items())
        if key not in kept:
            kept[key] = parse(sheet, css, **options)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parsed)
        yield
