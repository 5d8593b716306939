"""Measure the dashboard, nvitop, nvtop and gpustat with the libnvidia-ml that the loader finds; print one table.

Absolute times hold only for this machine at this moment; compare the ratios within one run. Times to the first frame
and one-shot times are medians. Programs that are not installed are reported on stderr and left out.
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

from exporter_cost import run_scraped
from in_terminal import ProgramEndedError, ResourceUsage, run_in_terminal, time_to_first_frame

VRAMTOP = (sys.executable, "-m", "vramtop.tui.cli")
EXPORTER = "vramtop export"
MAX_FIRST_FRAME_SECONDS = 0.32
MIN_GPUS_FOR_CPU_TARGET, MIN_GPUS_FOR_STRICT_CPU_TARGETS = 8, 16
"""With fewer GPUs there is no target for processor time, or only the weaker one."""
_GPU_FIGURE = r"\d ?(%|MiB|GiB|Gi)"
"""Pattern of a GPU's utilisation or memory in the output of any of the programs."""
_FIRST_FRAME_TIMEOUT_SECONDS = 3.0
_HEADER = ("machine", "program", "CPU s/min", "with keys", "memory MiB", "bytes/s", "first frame s", "one-shot s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs and GPU processes that the programs display during the measurement."""

    gpus: int
    processes: int
    name: str
    """Word from the first GPU's name that every program shows."""

    @property
    def label(self) -> str:
        """Text for the table."""
        return f"{self.gpus} x {self.name}, {self.processes} processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A monitor to measure and its command lines."""

    name: str
    live: tuple[str, ...] = ()
    """Command that refreshes every second; empty: only the one-shot command is measured."""
    once: tuple[str, ...] = ()
    """Command that prints once and exits; empty: the program has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One line of the table: a program on a machine. None for a figure that was not measured."""

    machine: Machine
    program: str
    idle: ResourceUsage | None = None
    """Without key presses."""
    keys: ResourceUsage | None = None
    """With one key press per second."""
    first_frame_seconds: float | None = None
    once_seconds: float | None = None
    """Elapsed time of the one-shot command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure of vramtop and the maximum it may have."""

    description: str
    figure: float
    limit: float

    @property
    def met(self) -> bool:
        """True if the figure is within the limit."""
        return self.figure <= self.limit


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all programs on this machine and print JSON, which ``measure_under`` reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    options = parser.parse_args(argv)
    print(json.dumps([asdict(row) for row in measure_here(options.seconds, options.warm, options.runs)]))
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the duration and the number of runs."""
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="seconds that each dashboard runs, once idle and once with keys"
    )
    parser.add_argument(
        "--warm", type=float, default=6.0, help="seconds of warm-up in each of these, excluded from the rates"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each fast command; slow ones run half as often")


def measure_under(under: Sequence[str], *, seconds: float, warm: float, runs: int) -> list[Measurement]:
    """Measure all programs under each wrapper command.

    Args:
        under: wrapper commands, each of which provides another machine's environment; empty: this machine.
        seconds: duration of each dashboard run; there are two, idle and with keys.
        warm: seconds of warm-up, excluded from the rates.
        runs: runs of each one-shot command and of each start up to the first frame.
    """
    rows: list[Measurement] = []
    own = [sys.executable, __file__, "--seconds", f"{seconds}", "--warm", f"{warm}", "--runs", f"{runs}"]
    for wrapper in under or [""]:
        done = subprocess.run([*wrapper.split(), *own], stdout=subprocess.PIPE, check=True)
        rows += [_measurement(row) for row in json.loads(done.stdout)]
    return rows


def measure_here(seconds: float, warm: float, runs: int) -> list[Measurement]:
    """Measure all installed programs with the libnvidia-ml that the loader finds."""
    machine = detect_machine()
    if machine is None:
        log("no NVIDIA GPU on this machine: the monitors are not measured")
        return []
    measured = [measure_program(machine, program, seconds, warm, runs) for program in installed_programs()]
    return [*measured, measure_exporter(machine, seconds, warm)]


def installed_programs() -> Iterator[Program]:
    """Yield vramtop and every installed peer; report the missing ones."""
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
            log(f"{name} is not installed; left out")
        else:
            yield Program(name=name, live=(path, *live) if live else (), once=(path, *once) if once else ())


def detect_machine() -> Machine | None:
    """Return the GPUs and processes that vramtop sees through NVML; None if there is no NVIDIA GPU."""
    done = subprocess.run([*VRAMTOP, "--once", "--json"], capture_output=True, text=True, check=False)
    try:
        snapshot = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None
    gpus = snapshot["gpus"]
    if snapshot["source"]["kind"] != "nvml" or not gpus:
        return None
    words = re.findall(r"[A-Za-z]*\d\w*", gpus[0]["name"] or "")
    count = sum(len(gpu["processes"] or ()) for gpu in gpus)
    return Machine(gpus=len(gpus), processes=count, name=words[0] if words else "GPU")


def measure_program(machine: Machine, program: Program, seconds: float, warm: float, runs: int) -> Measurement:
    """Measure one program on one machine."""
    log(f"{machine.label}: {program.name}")
    patterns = (_GPU_FIGURE, re.escape(machine.name))
    idle = keys = first = None
    if program.live:
        frames = [
            time_to_first_frame(program.live, patterns, limit=_FIRST_FRAME_TIMEOUT_SECONDS) for _ in range(runs + 1)
        ][1:]
        first = None if None in frames else statistics.median(frame for frame in frames if frame is not None)
        try:
            idle = run_in_terminal(program.live, seconds=seconds, warm=warm)
            keys = run_in_terminal(program.live, seconds=seconds, warm=warm, key_interval=1.0)
        except ProgramEndedError as error:
            log(f"{program.name} exited early: {error}")
    once = one_shot_seconds(program.once, runs) if program.once else None
    return Measurement(
        machine=machine, program=program.name, idle=idle, keys=keys, first_frame_seconds=first, once_seconds=once
    )


def measure_exporter(machine: Machine, seconds: float, warm: float) -> Measurement:
    """Measure ``vramtop export`` on one machine, scraped each second; its bytes are those that it serves."""
    log(f"{machine.label}: {EXPORTER}")
    usage = None
    try:
        usage = run_scraped((*VRAMTOP, "export", "--listen", "0", "--interval", "1"), seconds=seconds, warm=warm)
    except ProgramEndedError as error:
        log(f"{EXPORTER} exited early: {error}")
    return Measurement(machine=machine, program=EXPORTER, idle=usage)


def one_shot_seconds(command: Sequence[str], runs: int) -> float | None:
    """Return the median elapsed time of a command that prints once and exits; None if it fails."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        times.append(time.perf_counter() - started)
        if done.returncode:
            log(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace')[-300:]}")
            return None
    return statistics.median(times[1:])  # the first run may have compiled modules


def all_targets(rows: Sequence[Measurement]) -> list[Target]:
    """Return the targets on every machine."""
    return [target for row in rows if row.program == "vramtop" for target in targets(row, rows)]


def targets(row: Measurement, rows: Sequence[Measurement]) -> Iterator[Target]:
    """Yield the targets of vramtop on one machine; those relative to nvitop only if nvitop was measured."""
    on = row.machine.label
    exporter = next((each for each in rows if each.machine == row.machine and each.program == EXPORTER), None)
    if exporter is not None and exporter.idle is not None and row.idle is not None:
        yield Target(
            description=f"CPU s/min of the exporter, scraped each second: at most the dashboard's ({on})",
            figure=exporter.idle.cpu_seconds_per_minute,
            limit=row.idle.cpu_seconds_per_minute,
        )
    if row.first_frame_seconds is not None:
        yield Target(
            description=f"first frame, seconds ({on})", figure=row.first_frame_seconds, limit=MAX_FIRST_FRAME_SECONDS
        )
    peer = next((other for other in rows if other.machine == row.machine and other.program == "nvitop"), None)
    if peer is None:
        return
    if row.once_seconds is not None and peer.once_seconds is not None:
        yield Target(
            description=f"--once, seconds: at most that of nvitop -1 ({on})",
            figure=row.once_seconds,
            limit=peer.once_seconds,
        )
    if row.machine.gpus < MIN_GPUS_FOR_CPU_TARGET or not (row.idle and row.keys and peer.idle and peer.keys):
        return
    strict = row.machine.gpus >= MIN_GPUS_FOR_STRICT_CPU_TARGETS
    share, limit_text = (0.5, "half of nvitop's") if strict else (1.0, "nvitop's")
    limit = share * peer.idle.cpu_seconds_per_minute
    yield Target(
        description=f"CPU s/min: at most {limit_text} ({on})", figure=row.idle.cpu_seconds_per_minute, limit=limit
    )
    if strict:
        limit = peer.keys.cpu_seconds_per_minute / 5
        description = f"CPU s/min with a key per second: at most a fifth of nvitop's ({on})"
        yield Target(description=description, figure=row.keys.cpu_seconds_per_minute, limit=limit)


def table(rows: Sequence[Measurement]) -> str:
    """Return the measurements as an aligned table; a dash stands for a figure that was not measured."""
    lines = [list(_HEADER)]
    for row in rows:
        lines.append([
            row.machine.label,
            row.program,
            _figure(row.idle and row.idle.cpu_seconds_per_minute, ".2f"),
            _figure(row.keys and row.keys.cpu_seconds_per_minute, ".2f"),
            _figure(row.idle and row.idle.memory_bytes / 2**20, ".0f"),
            _figure(row.idle and row.idle.bytes_per_second, ",.0f"),
            _figure(row.first_frame_seconds, ".2f"),
            _figure(row.once_seconds, ".2f"),
        ])  # fmt: skip
    return aligned(lines)


def targets_table(rows: Sequence[Target]) -> str:
    """Return the targets as an aligned table."""
    lines = [["target", "vramtop", "limit", "met"]]
    lines += [[t.description, f"{t.figure:.2f}", f"{t.limit:.2f}", "yes" if t.met else "NO"] for t in rows]
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return the lines with columns as wide as their widest cell."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def log(message: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{message}\n")


def _measurement(row: dict[str, Any]) -> Measurement:
    usages = {name: None if row[name] is None else ResourceUsage(**row[name]) for name in ("idle", "keys")}
    return Measurement(**(row | usages | {"machine": Machine(**row["machine"])}))


def _figure(figure: float | None, digits: str) -> str:
    return "-" if figure is None else f"{figure:{digits}}"


if __name__ == "__main__":
    raise SystemExit(main())
