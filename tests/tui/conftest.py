"""Real programs on real pseudo-terminals."""

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

import pytest
from waiting import DEADLINE_SECONDS

_KERNEL_BUFFER_BYTES = 4095
"""What Linux keeps of a terminal's output that is not read."""
COMMAND = (sys.executable, "-m", "vramtop.tui.cli")


class OnTerminal:
    """A program in the foreground of its own pseudo-terminal and session, as under a shell.

    Args:
        words: the program and its arguments.
        size: columns and lines.
        environ: variables besides the usual ones; None: without this one.
    """

    def __init__(
        self, words: Sequence[str], *, size: tuple[int, int] = (120, 40), environ: dict[str, str | None] | None = None
    ) -> None:
        variables = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environ or {})}
        self.written = b""
        """Everything that was written to the terminal."""
        self.code: int | None = None
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child becomes the program
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            os.execvpe(words[0], list(words), {key: text for key, text in variables.items() if text is not None})  # noqa: S606

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self.terminal, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal; the kernel signals the program."""
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, condition: Callable[[], object], *, seconds: float = DEADLINE_SECONDS) -> None:
        """Read what it writes until the condition is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.written[-1500:]
            self.read()

    def seen(self, text: str, *, since: int = 0) -> None:
        """Wait until it has written this text."""
        self.until(lambda: text.encode() in self.written[since:])

    def read(self, seconds: float = 0.1) -> None:
        """Read what it writes within this time."""
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                self.written += os.read(self.terminal, 65536)
            except OSError:  # the program has ended
                time.sleep(seconds)

    def end(self, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until the program has ended; return its exit code, negative for a signal."""
        self.until(self.has_ended, seconds=seconds)
        self.read()
        assert self.code is not None
        return self.code

    def stopped(self) -> bool:
        """Return True if the program has been stopped since the last call."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        return bool(pid) and os.WIFSTOPPED(status)

    @property
    def echoes(self) -> bool:
        """True if the terminal is set up as for a shell: it echoes what is typed, and edits it by line."""
        flags = termios.tcgetattr(self.terminal)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def mode(self, number: int) -> bool | None:
        """Return how a DEC private mode was set last (1049 alternate screen, 25 cursor, 1000 mouse); None: never."""
        on, off = (self.written.rfind(f"\x1b[?{number}{letter}".encode()) for letter in "hl")
        return None if on == off else on > off

    def is_full(self) -> bool:
        """Return True if the kernel takes no more output: nothing was read, and the program has written on."""
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
        """Return True if the program has ended; its exit code is in ``code``."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., OnTerminal]]:
    """Return a function that starts a program, by default vramtop, on its own terminal."""
    started: list[OnTerminal] = []

    def start(*words: str, program: Sequence[str] = COMMAND, **how: object) -> OnTerminal:
        started.append(OnTerminal([*program, *words], **how))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()
