"""What a program costs that runs in a terminal: it gets a pseudo-terminal of 120x40, keys, and answers.

What it writes is only kept while it runs, and looked at afterwards: looking on would take processor time from it.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLUMNS, LINES = 120, 40
_TICKS = os.sysconf("SC_CLK_TCK")
_SEQUENCE = re.compile(
    rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    rb"|\x1b[PX^_].*?\x1b\\"  # strings
    rb"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    rb"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_ANSWERS = (
    (b"\x1b[c", b"\x1b[?62;22c"),  # what are you
    (b"\x1b[6n", b"\x1b[1;1R"),  # where is the cursor
    (b"\x1b[?2026$p", b"\x1b[?2026;2$y"),  # do you take whole frames
)
_ARROWS = {False: (b"\x1b[B", b"\x1b[A"), True: (b"\x1bOB", b"\x1bOA")}
"""Down and up; after ``CSI ? 1 h`` a terminal says them otherwise."""
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took."""

    cpu_seconds_a_minute: float
    """User and system time of the program and of all that it has started, after the start."""
    bytes_a_second: float
    """Written to the terminal, after the start."""
    memory_bytes: int
    """The most resident memory of the program itself."""


class ProgramEndedError(Exception):
    """The program has ended by itself."""


def run_in_terminal(command: Sequence[str], *, seconds: float, warm: float, key_every: float | None = None) -> Cost:
    """Run a program, and end it.

    Args:
        command: started through the search path.
        seconds: for how long it runs.
        warm: seconds at the start that do not count for the rates.
        key_every: seconds between two keys, cursor down and up in turn; None: none is pressed.

    Raises:
        ProgramEndedError: it did not run for so long; its last lines are said.
    """
    terminal = _Terminal(command)
    try:
        terminal.attend(until=warm)
        cpu, begun, at = terminal.cpu_seconds(), time.monotonic(), len(terminal.chunks)
        due, keys = warm, 0
        while key_every and due < seconds:
            terminal.press_arrow(up=keys % 2 == 1)
            due, keys = due + key_every, keys + 1
            terminal.attend(until=min(due, seconds))
        terminal.attend(until=seconds)
        took, span = terminal.cpu_seconds() - cpu, time.monotonic() - begun
        return Cost(
            cpu_seconds_a_minute=took * 60 / span,
            bytes_a_second=sum(len(data) for _, data in terminal.chunks[at:]) / span,
            memory_bytes=terminal.memory_bytes(),
        )
    finally:
        terminal.end()


def first_frame(command: Sequence[str], wanted: Sequence[str], *, limit: float) -> float | None:
    """Seconds from the start to the output after which all wanted words had been seen.

    Args:
        command: started through the search path.
        wanted: regular expressions, the more important first: what is not seen within the limit is not waited for, as
            some programs leave names out where there is little room.
        limit: seconds.

    Returns:
        None where not even the first was seen.
    """
    terminal = _Terminal(command)
    try:
        while (seen := _first_frame(terminal.chunks, wanted)) is None and terminal.age < limit:
            terminal.attend(until=terminal.age + 0.2)
    except ProgramEndedError:
        return None
    finally:
        terminal.end()
    fewer = (_first_frame(terminal.chunks, wanted[:count]) for count in range(len(wanted) - 1, 0, -1))
    return seen if seen is not None else next((at for at in fewer if at is not None), None)


class _Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(self, command: Sequence[str]) -> None:
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("NO_COLOR", "PYTHONDONTWRITEBYTECODE"):  # installed packages are compiled: so may the checkout be
            environ.pop(name, None)
        self.chunks: list[tuple[float, bytes]] = []
        """What it wrote, and how many seconds after its start."""
        self._arrows_changed = False
        self._begun = time.monotonic()
        self._pid, self._master = pty.fork()
        if not self._pid:
            _become(command, environ)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    @property
    def age(self) -> float:
        return time.monotonic() - self._begun

    def attend(self, *, until: float) -> None:
        """Read and answer until the program is so old."""
        while (left := until - self.age) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._take(self._read())

    def press_arrow(self, *, up: bool) -> None:
        os.write(self._master, _ARROWS[self._arrows_changed][up])

    def cpu_seconds(self) -> float:
        """Of the program, of what it has started, and of what of that has ended."""
        return sum(_cpu_ticks(pid) for pid in _tree(self._pid)) / _TICKS

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def end(self) -> None:
        """Ask it to end, and end it."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            limit = time.monotonic() + _END_SECONDS
            _signal(self._pid, how)
            while time.monotonic() < limit:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    os.close(self._master)
                    return
                if select.select([self._master], [], [], 0.05)[0]:
                    _read(self._master)

    def _read(self) -> bytes:
        data = _read(self._master)
        if not data:
            said = b"".join(data for _, data in self.chunks)
            lines = _SEQUENCE.sub(b" ", said).decode(errors="replace").split("\n")
            raise ProgramEndedError(" ".join(" ".join(lines[-5:]).split())[-300:])
        return data

    def _take(self, data: bytes) -> None:
        self.chunks.append((self.age, data))
        if b"\x1b" not in data:
            return
        for question, answer in _ANSWERS:
            if question in data:
                os.write(self._master, answer)
        if modes := re.findall(rb"\x1b\[\?(?:\d+;)*1([hl])", data):
            self._arrows_changed = modes[-1] == b"h"


def _become(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """In the child: the program, or an end that says why not."""
    time.sleep(0.01)  # until the terminal has its size
    try:
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 - the very program that is to be measured
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _first_frame(chunks: Sequence[tuple[float, bytes]], wanted: Sequence[str]) -> float | None:
    missing = [re.compile(words) for words in wanted]
    seen = b""
    for at, data in chunks:
        seen += data
        text = _SEQUENCE.sub(b"", seen).decode(errors="replace")
        missing = [words for words in missing if not words.search(text)]
        if not missing:
            return at
    return None


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # nobody is at the other end any more
        return b""


def _signal(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return


def _tree(root: int) -> Iterator[int]:
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def _cpu_ticks(pid: int) -> int:
    """Fields 14 to 17 of ``stat`` in proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])
