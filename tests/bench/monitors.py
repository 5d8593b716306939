"""The dashboard beside nvitop, nvtop and gpustat, against whatever libnvidia-ml the loader finds: one run, one table.

Times are those of this machine at this moment; what counts are the ratios within one run. First frames and one-shot
times are medians; a peer that is not installed is said to be missing.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from in_terminal import Cost, ProgramEndedError, first_frame, run_in_terminal

VRAMTOP = (sys.executable, "-m", "vramtop.tui.cli")
FIRST_FRAME_SECONDS = 0.32
FEW, MANY = 8, 16
"""GPUs from which the targets for processor time count."""
_FIGURES = r"\d ?(%|MiB|GiB|Gi)"
"""A figure of a GPU, as any of them writes it."""
_FRAME_LIMIT = 3.0
_HEAD = ("machine", "program", "CPU s/min", "with keys", "memory MiB", "bytes/s", "first frame s", "one-shot s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is measured against."""

    gpus: int
    processes: int
    name: str
    """Of the first GPU, a word that every program shows."""

    @property
    def label(self) -> str:
        """For the table."""
        return f"{self.gpus} x {self.name}, {self.processes} processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A monitor."""

    name: str
    live: tuple[str, ...] = ()
    """Its command with a refresh every second; empty: it is measured in one shot only."""
    once: tuple[str, ...] = ()
    """Its command for one look; empty: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One line of the table."""

    machine: Machine
    program: str
    idle: Cost | None = None
    keys: Cost | None = None
    first_frame: float | None = None
    once: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that was to be reached."""

    what: str
    ours: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether it was."""
        return self.ours <= self.limit


def main(argv: Sequence[str] | None = None) -> int:
    """Measure here and print it as JSON, for the program that puts several machines in one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    options = parser.parse_args(argv)
    print(json.dumps([asdict(row) for row in measure_here(options.seconds, options.warm, options.runs)]))
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How long, and how often."""
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each dashboard runs, twice")
    parser.add_argument("--warm", type=float, default=6.0, help="how much of that does not count")
    parser.add_argument("--runs", type=int, default=5, help="runs of each quick command; slow ones run half as often")


def measure_under(under: Sequence[str], *, seconds: float, warm: float, runs: int) -> list[Figures]:
    """All programs on all machines.

    Args:
        under: commands that run another one, each in the surroundings of another machine; empty: this one.
        seconds: how long each dashboard runs, twice.
        warm: how much of that does not count.
        runs: of each one-shot command and of each first frame.
    """
    rows: list[Figures] = []
    own = [sys.executable, __file__, "--seconds", f"{seconds}", "--warm", f"{warm}", "--runs", f"{runs}"]
    for words in under or [""]:
        done = subprocess.run([*words.split(), *own], stdout=subprocess.PIPE, check=True)
        rows += [_figures(said) for said in json.loads(done.stdout)]
    return rows


def measure_here(seconds: float, warm: float, runs: int) -> list[Figures]:
    """All programs against the library that the loader finds."""
    machine = look()
    if machine is None:
        say("no NVIDIA GPU here: the monitors are not measured")
        return []
    return [measure(machine, program, seconds, warm, runs) for program in installed()]


def installed() -> Iterator[Program]:
    """This one, and those peers that are here; the others are said to be missing."""
    yield Program(name="vramtop", live=(*VRAMTOP, "--interval", "1"), once=(*VRAMTOP, "--once"))
    peers = Path(sys.prefix) / "peers" / "bin"
    search = os.pathsep.join((str(peers), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    options = {
        "nvitop": (("--interval", "1"), ("-1",)),
        "nvtop": (("--delay", "10"), ()),
        "gpustat": ((), ("--no-color",)),
    }
    for name, (live, once) in options.items():
        path = shutil.which(name, path=search)
        if path is None:
            say(f"{name} is not installed: it is not in the table")
        else:
            yield Program(name=name, live=(path, *live) if live else (), once=(path, *once) if once else ())


def look() -> Machine | None:
    """What machine this is; None where there is no NVIDIA GPU."""
    done = subprocess.run([*VRAMTOP, "--once", "--json"], capture_output=True, text=True, check=False)
    try:
        said = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None
    gpus = said["gpus"]
    if said["source"]["kind"] != "nvml" or not gpus:
        return None
    words = re.findall(r"[A-Za-z]*\d\w*", gpus[0]["name"] or "")
    count = sum(len(gpu["processes"] or ()) for gpu in gpus)
    return Machine(gpus=len(gpus), processes=count, name=words[0] if words else "GPU")


def measure(machine: Machine, program: Program, seconds: float, warm: float, runs: int) -> Figures:
    """One program against one machine."""
    say(f"{machine.label}: {program.name}")
    wanted = (_FIGURES, re.escape(machine.name))
    idle = keys = first = None
    if program.live:
        frames = [first_frame(program.live, wanted, limit=_FRAME_LIMIT) for _ in range(runs + 1)][1:]
        first = None if None in frames else statistics.median(frame for frame in frames if frame is not None)
        try:
            idle = run_in_terminal(program.live, seconds=seconds, warm=warm)
            keys = run_in_terminal(program.live, seconds=seconds, warm=warm, key_every=1.0)
        except ProgramEndedError as error:
            say(f"{program.name} ended by itself: {error}")
    once = once_seconds(program.once, runs) if program.once else None
    return Figures(machine=machine, program=program.name, idle=idle, keys=keys, first_frame=first, once=once)


def once_seconds(command: Sequence[str], runs: int) -> float | None:
    """The median time of whole processes whose output goes nowhere; None where it fails."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(runs + 1):
        begun = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        times.append(time.perf_counter() - begun)
        if done.returncode:
            say(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace')[-300:]}")
            return None
    return statistics.median(times[1:])  # the first one may have had to compile its modules


def all_targets(rows: Sequence[Figures]) -> list[Target]:
    """Those of every machine."""
    return [target for row in rows if row.program == "vramtop" for target in targets(row, rows)]


def targets(row: Figures, rows: Sequence[Figures]) -> Iterator[Target]:
    """What the dashboard was to reach on one machine; those beside nvitop where that is here."""
    on = row.machine.label
    if row.first_frame is not None:
        yield Target(what=f"first frame, seconds ({on})", ours=row.first_frame, limit=FIRST_FRAME_SECONDS)
    peer = next((other for other in rows if other.machine == row.machine and other.program == "nvitop"), None)
    if peer is None:
        return
    if row.once is not None and peer.once is not None:
        yield Target(what=f"--once, seconds, beside nvitop -1 ({on})", ours=row.once, limit=peer.once)
    if row.machine.gpus < FEW or not (row.idle and row.keys and peer.idle and peer.keys):
        return
    many = row.machine.gpus >= MANY
    share, words = (0.5, "half of nvitop's") if many else (1.0, "nvitop's")
    limit = share * peer.idle.cpu_seconds_a_minute
    yield Target(what=f"CPU s/min: at most {words} ({on})", ours=row.idle.cpu_seconds_a_minute, limit=limit)
    if many:
        limit = peer.keys.cpu_seconds_a_minute / 5
        what = f"CPU s/min with a key a second: at most a fifth of nvitop's ({on})"
        yield Target(what=what, ours=row.keys.cpu_seconds_a_minute, limit=limit)


def table(rows: Sequence[Figures]) -> str:
    """Aligned columns; a dash for what was not measured."""
    lines = [list(_HEAD)]
    for row in rows:
        lines.append([
            row.machine.label,
            row.program,
            _figure(row.idle and row.idle.cpu_seconds_a_minute, ".2f"),
            _figure(row.keys and row.keys.cpu_seconds_a_minute, ".2f"),
            _figure(row.idle and row.idle.memory_bytes / 2**20, ".0f"),
            _figure(row.idle and row.idle.bytes_a_second, ",.0f"),
            _figure(row.first_frame, ".2f"),
            _figure(row.once, ".2f"),
        ])  # fmt: skip
    return aligned(lines)


def targets_table(found: Sequence[Target]) -> str:
    """Each target, and whether it is met."""
    lines = [["target", "vramtop", "limit", "met"]]
    lines += [[t.what, f"{t.ours:.2f}", f"{t.limit:.2f}", "yes" if t.met else "NO"] for t in found]
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say(words: str) -> None:
    """What is being measured, and what cannot be."""
    sys.stderr.write(f"{words}\n")


def _figures(said: dict[str, Any]) -> Figures:
    costs = {name: None if said[name] is None else Cost(**said[name]) for name in ("idle", "keys")}
    return Figures(**(said | costs | {"machine": Machine(**said["machine"])}))


def _figure(figure: float | None, digits: str) -> str:
    return "-" if figure is None else f"{figure:{digits}}"


if __name__ == "__main__":
    raise SystemExit(main())
