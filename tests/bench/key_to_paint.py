"""Measure the time from a key press until the bytes that show its effect arrive, with the real command in a terminal.

The keys of a step are pressed one after the other; each is timed until the screen shows what the step names. Times of
one run hold only for this machine at this moment: compare two programs within one call (``--program``).
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from in_terminal import COLUMNS, LINES, ProgramEndedError, Terminal
from monitors import VRAMTOP, aligned, detect_machine, log
from terminal_screen import TerminalScreen

OPEN_SECONDS, KEY_SECONDS = 0.150, 0.050
"""Limits of a key that opens the fit check, and of every other key."""
_GIVE_UP_SECONDS = 5.0
_QUIET_SECONDS = 0.35
"""Time between a key's effect and the next key: what follows from a key ends, as it does for a person who types."""
_READINGS_SECONDS = 3.0
"""Time at the start until all processes are read and drawn."""
_MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class Step:
    """Keys that are pressed one by one, and what shows their effect."""

    name: str
    keys: tuple[str, ...]
    shows: str = ""
    """Pattern of the screen's text that matches in another place or another way than before the key.

    ``{typed}`` in it is what was typed so far. Empty: another part of the screen is highlighted.
    """
    limit: float | None = KEY_SECONDS
    """Seconds that each key may take; None: it is not compared with a limit."""
    hides: str = ""
    """Pattern of what is on the screen before the key and no longer after it, in place of ``shows``."""
    redraws: bool = False
    """Any cell of the line that ``shows`` matches changes: completions may show what is typed before it is typed."""
    hidden: bool = False
    """The step leads back to a state; its times are not listed."""


DASHBOARD = (
    Step("down", ("\x1b[B", "\x1b[B")),
    Step("up", ("\x1b[A",)),
    Step("tab", ("\t",)),
    Step("shift+tab", ("\x1b[Z",)),
    Step("sort (s)", ("s",), r"\S+↓"),
    Step("filter (/)", ("/",), r"(?i)filter +esc"),
    Step("typing in the filter", tuple("pyt"), r"(?m)^{typed}$"),
    Step("filter closed (Esc)", ("\x1b",), hidden=True, shows="Filter s Sort"),
    Step("help (?)", ("?",), r"─ Help ─"),
    Step("help closed (Esc)", ("\x1b",), hides=r"─ Help ─"),
)
FIT_CHECK = (
    Step("fit check (f)", ("f",), r"Fit check", limit=OPEN_SECONDS),
    Step("typing the model", tuple(_MODEL), r"^ *model .*", redraws=True),
    Step("verdict after the model", (" ",), r"DOES NOT FIT|FITS", limit=None, hidden=True),
    Step("tab in the form", ("\t", "\t", "\t")),
    Step("shift+tab in the form", ("\x1b[Z", "\x1b[Z")),
    Step("fit check closed (Esc)", ("\x1b",), r"GPUs? · every"),
    Step("second fit check (f)", ("f",), r"as you left it|Fit check", limit=OPEN_SECONDS),
    Step("closed", ("\x1b",), hidden=True, shows=r"GPUs? · every"),
)
SCRIPTS: Mapping[str, tuple[Step, ...]] = {"dashboard": DASHBOARD, "fit check": FIT_CHECK}


@dataclass(frozen=True, slots=True)
class KeyTime:
    """Seconds from a key press to its effect."""

    seconds: float
    processor: float
    """Processor time of the program's main thread meanwhile."""


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """Seconds that the keys of one step took, in all runs."""

    machine: str
    program: str
    step: str
    limit: float | None
    seconds: tuple[float, ...]
    processor: tuple[float, ...] = ()
    """Processor time of the program's main thread meanwhile; other programs on the machine do not change it."""
    missed: int = 0
    """Keys whose effect was not seen."""

    @property
    def met(self) -> bool:
        """True if the median is within the limit."""
        return self.limit is None or (bool(self.seconds) and statistics.median(self.seconds) <= self.limit)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure on this machine, or under each wrapper command, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--under", action="append", default=[], help="wrapper command that provides a machine")
    parser.add_argument("--program", action="append", default=[], help="command to measure; repeatable, to compare")
    parser.add_argument("--runs", type=int, default=5, help="starts of the program")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    options = parser.parse_args(argv)
    if options.json:
        print(json.dumps([row_to_json(row) for row in measure_here(options.program, runs=options.runs)]))
        return 0
    rows = measure_under(options.under, options.program, runs=options.runs)
    print(table(rows))
    return 0


def measure_under(under: Sequence[str], programs: Sequence[str] = (), *, runs: int) -> list[KeyTimes]:
    """Measure under each wrapper command, which provides another machine's environment; none: on this machine."""
    rows: list[KeyTimes] = []
    options = [word for program in programs for word in ("--program", program)]
    for wrapper in under or [""]:
        own = [sys.executable, __file__, "--json", "--runs", f"{runs}", *options]
        done = subprocess.run([*shlex.split(wrapper), *own], stdout=subprocess.PIPE, check=True)
        rows += [
            KeyTimes(**{**row, "seconds": tuple(row["seconds"]), "processor": tuple(row["processor"])})
            for row in json.loads(done.stdout)
        ]
    return rows


def measure_here(programs: Sequence[str], *, runs: int) -> list[KeyTimes]:
    """Measure with the libnvidia-ml that the loader finds; the programs take turns, run by run."""
    machine = detect_machine()
    label = machine.label if machine else "no GPU"
    commands = {program: tuple(shlex.split(program)) for program in programs} or {"vramtop": VRAMTOP}
    found: dict[tuple[str, str], list[KeyTime | None]] = {}
    for run in range(runs):
        for program, command in commands.items():
            for script, steps in SCRIPTS.items():
                log(f"{label}: {program}, {script}, run {run + 1} of {runs} ...")
                for step, took in run_script(command, steps):
                    found.setdefault((program, step.name), []).append(took)
    limits = {step.name: step.limit for steps in SCRIPTS.values() for step in steps}
    return [
        KeyTimes(
            machine=label,
            program=program,
            step=step,
            limit=limits[step],
            seconds=tuple(each.seconds for each in times if each is not None),
            processor=tuple(each.processor for each in times if each is not None),
            missed=times.count(None),
        )
        for (program, step), times in found.items()
    ]


def run_script(command: Sequence[str], steps: Sequence[Step]) -> Iterator[tuple[Step, KeyTime | None]]:
    """Run the command in a terminal, press the keys, and yield the seconds of each; None: no effect was seen."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {name: f"{folder}/{name}" for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
        terminal = Terminal(command, environ)
        try:
            terminal.serve(until=_READINGS_SECONDS)
            watch = _Watch(terminal)
            for step in steps:
                typed = ""
                for key in step.keys:
                    typed += key
                    took = watch.press(
                        key,
                        (step.hides or step.shows).replace("{typed}", re.escape(typed)),
                        hides=bool(step.hides),
                        redraws=step.redraws,
                    )
                    if not step.hidden:
                        yield step, took
                    terminal.serve(until=terminal.age + _QUIET_SECONDS)
        except ProgramEndedError as error:
            log(f"the program ended: {error}")
        finally:
            terminal.stop()


class _Watch:
    """Follows the screen of a program and times its answers to keys."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._screen = TerminalScreen(COLUMNS, LINES)
        self._seen = 0
        """Chunks of output that the screen shows."""

    def press(self, key: str, pattern: str, *, hides: bool = False, redraws: bool = False) -> KeyTime | None:
        """Press a key and return the seconds until the screen shows the pattern, or another highlighted part.

        Args:
            key: as the terminal sends it.
            pattern: of the screen's text; empty: a cursor moves.
            hides: wait until the pattern is gone.
            redraws: wait until a cell of the line that the pattern matches has changed.
        """
        self._show_all()
        before = self._found(pattern, redraws=redraws)
        started, processor = self._terminal.age, self._terminal.main_thread_seconds()
        self._terminal.write(key.encode())
        while self._terminal.age - started < _GIVE_UP_SECONDS:
            self._terminal.serve_once(until=started + _GIVE_UP_SECONDS)
            for at, data in self._terminal.chunks[self._seen :]:
                self._seen += 1
                self._screen.feed(data)
                found = self._found(pattern, redraws=redraws)
                if found is None if hides else found not in (None, before):
                    return KeyTime(at - started, self._terminal.main_thread_seconds() - processor)
        return None

    def _found(self, pattern: str, *, redraws: bool) -> object:
        """Return the stretch of the screen that shows the effect; it is another one than before the key."""
        if not pattern:
            return self._screen.highlighted
        match = re.search(pattern, self._screen.text, re.MULTILINE)
        if redraws and match:
            return self._screen.line(self._screen.text[: match.start()].count("\n"))
        return match and (match.group(), match.start())

    def _show_all(self) -> None:
        for _, data in self._terminal.chunks[self._seen :]:
            self._screen.feed(data)
        self._seen = len(self._terminal.chunks)


def table(rows: Sequence[KeyTimes]) -> str:
    """Return the times of each step as an aligned table: minimum, median and maximum, median processor time."""
    lines: list[tuple[str, ...]] = [("machine", "program", "key", "ms min", "median", "max", "CPU ms", "limit", "met")]
    for row in rows:
        figures = [
            f"{1000 * figure(row.seconds):.0f}" if row.seconds else "-" for figure in (min, statistics.median, max)
        ]
        figures.append(f"{1000 * statistics.median(row.processor):.0f}" if row.processor else "-")
        limit = "-" if row.limit is None else f"{1000 * row.limit:.0f}"
        met = "-" if row.limit is None else "yes" if row.met else "NO"
        missed = f"{met} ({row.missed} not seen)" if row.missed else met
        lines.append((row.machine, row.program, row.step, *figures, limit, missed))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{aligned(lines)}\n\nload of the machine: {load} on {os.cpu_count()} cores"


def row_to_json(row: KeyTimes) -> dict[str, object]:
    """Return a row as JSON takes it."""
    return {name: getattr(row, name) for name in KeyTimes.__dataclass_fields__}


if __name__ == "__main__":
    raise SystemExit(main())
