"""Measure a terminal program in a pseudo-terminal of 120x40: processor time, output, memory, time to the first frame.

The pseudo-terminal answers the queries that programs send to a terminal and presses keys. Output is stored while the
program runs and parsed afterwards, since parsing would compete with the program for processor time.
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
_ESCAPE_SEQUENCE = re.compile(
    rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    rb"|\x1b[PX^_].*?\x1b\\"  # DCS, SOS, PM, APC strings
    rb"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    rb"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_QUERY_ANSWERS = (
    (b"\x1b[c", b"\x1b[?62;22c"),  # primary device attributes
    (b"\x1b[6n", b"\x1b[1;1R"),  # cursor position report
    (b"\x1b[?2026$p", b"\x1b[?2026;2$y"),  # is synchronized output supported
)
_ARROW_KEYS = {False: (b"\x1b[B", b"\x1b[A"), True: (b"\x1bOB", b"\x1bOA")}
"""Cursor down and up in normal mode (False) and in application mode (True, after ``CSI ? 1 h``)."""
_STOP_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Resources that one run of a program used."""

    cpu_seconds_per_minute: float
    """User and system time of the program and its descendants, after the warm-up."""
    bytes_per_second: float
    """Output to the terminal, after the warm-up."""
    memory_bytes: int
    """Peak resident set of the program itself, without its descendants."""


class ProgramEndedError(Exception):
    """The program exited before it was stopped."""


def run_in_terminal(
    command: Sequence[str], *, seconds: float, warm: float, key_interval: float | None = None
) -> ResourceUsage:
    """Run a program for a fixed time, stop it and return its resource usage.

    Args:
        command: program, found in PATH, and its arguments.
        seconds: duration of the run.
        warm: seconds of warm-up at the start, excluded from the rates.
        key_interval: seconds between key presses, cursor down and up in turn; None: no keys.

    Raises:
        ProgramEndedError: the program exited early; the message holds its last lines of output.
    """
    terminal = Terminal(command)
    try:
        terminal.serve(until=warm)
        cpu, started, first = terminal.cpu_seconds(), time.monotonic(), len(terminal.chunks)
        due, keys = warm, 0
        while key_interval and due < seconds:
            terminal.press_arrow(up=keys % 2 == 1)
            due, keys = due + key_interval, keys + 1
            terminal.serve(until=min(due, seconds))
        terminal.serve(until=seconds)
        used, elapsed = terminal.cpu_seconds() - cpu, time.monotonic() - started
        return ResourceUsage(
            cpu_seconds_per_minute=used * 60 / elapsed,
            bytes_per_second=sum(len(data) for _, data in terminal.chunks[first:]) / elapsed,
            memory_bytes=terminal.memory_bytes(),
        )
    finally:
        terminal.stop()


def time_to_first_frame(command: Sequence[str], pattern: str, *, limit: float) -> float | None:
    """Return the seconds from the start of a program until its output matches a pattern; None: not within the limit."""
    terminal = Terminal(command)
    try:
        while terminal.age < limit:
            terminal.serve(until=terminal.age + 0.02)
            if re.search(pattern, terminal.text):
                return terminal.chunks[-1][0]
    except ProgramEndedError:
        return None
    finally:
        terminal.stop()
    return None


class Terminal:
    """A pseudo-terminal with a program running in it.

    Args:
        command: program, found in PATH, and its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("NO_COLOR", "PYTHONDONTWRITEBYTECODE"):  # an installed package has bytecode files
            environ.pop(name, None)
        self.chunks: list[tuple[float, bytes]] = []
        """Output of the program, each with the seconds since its start."""
        self._application_cursor_keys = False
        self._started = time.monotonic()
        self._pid, self._master = pty.fork()
        if not self._pid:
            _exec(command, environ)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    @property
    def age(self) -> float:
        """Seconds since the start of the program."""
        return time.monotonic() - self._started

    @property
    def text(self) -> str:
        """What the program has written, without escape sequences."""
        output = b"".join(data for _, data in self.chunks)
        return _ESCAPE_SEQUENCE.sub(b"", output).decode(errors="replace")

    def serve(self, *, until: float) -> None:
        """Read output and answer queries until the program has run for ``until`` seconds."""
        while (left := until - self.age) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._store(self._read())

    def press_arrow(self, *, up: bool) -> None:
        """Press cursor up or down, encoded for the current cursor-key mode."""
        os.write(self._master, _ARROW_KEYS[self._application_cursor_keys][up])

    def cpu_seconds(self) -> float:
        """Return the processor time of the program and its descendants, including those that have exited."""
        return sum(_cpu_ticks(pid) for pid in _process_tree(self._pid)) / _TICKS

    def memory_bytes(self) -> int:
        """Return the peak resident set of the program; 0 if the kernel does not report it."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def stop(self) -> None:
        """Terminate the program, then kill it if it does not exit in time; close the terminal."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            limit = time.monotonic() + _STOP_TIMEOUT_SECONDS
            _send_signal(self._pid, signal_number)
            while time.monotonic() < limit:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    os.close(self._master)
                    return
                if select.select([self._master], [], [], 0.05)[0]:
                    _read(self._master)

    def _read(self) -> bytes:
        data = _read(self._master)
        if not data:
            raise ProgramEndedError(self.text[-300:])
        return data

    def _store(self, data: bytes) -> None:
        self.chunks.append((self.age, data))
        if b"\x1b" not in data:
            return
        for query, answer in _QUERY_ANSWERS:
            if query in data:
                os.write(self._master, answer)
        if modes := re.findall(rb"\x1b\[\?(?:\d+;)*1([hl])", data):
            self._application_cursor_keys = modes[-1] == b"h"


def _exec(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace the child process with the program; print the reason and exit with 127 if that fails."""
    time.sleep(0.01)  # the parent sets the size of the terminal first
    try:
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 - the program to measure
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # EIO: the program has closed its end
        return b""


def _send_signal(pid: int, signal_number: signal.Signals) -> None:
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return


def _process_tree(root: int) -> Iterator[int]:
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _process_tree(int(child))


def _cpu_ticks(pid: int) -> int:
    """Return user and system time of a process and its reaped children: fields 14 to 17 of proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])
