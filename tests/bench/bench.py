"""What the dashboard, nvitop and nvtop cost on this machine's GPUs, and estimates beside accelerate's (``make bench``).

The monitors read the libnvidia-ml that the loader finds. Times hold only for this machine at this moment: compare them
within one run. Programs that are not installed are left out.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from in_terminal import run_in_terminal, time_to_first_frame

from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.model.find_config import resolve_model

VRAMTOP = (sys.executable, "-m", "vramtop.tui.cli")
FSDP2 = ("--precision", "bf16-mixed", "--strategy", "fsdp2", "--data-shard", "8")
ACCELERATE = (sys.executable, str(Path(__file__).with_name("accelerate_offline.py")))
"""``accelerate estimate-memory``: it builds the model and adds its parameters up, no more."""
ESTIMATES = {
    "formula, 8B": ("meta-llama/Llama-3.1-8B", "--method", "formula"),
    "traced, 8B": ("meta-llama/Llama-3.1-8B", "--method", "traced"),
    "traced, 70B under 8-way FSDP2": ("meta-llama/Llama-3.1-70B", "--method", "traced", *FSDP2),
}
_PEERS = {"nvitop": (("--interval", "1"), ("-1",)), "nvtop": (("--delay", "10"), ())}
"""The options with which each refreshes once a second, and with which it prints once; empty: it cannot."""
_GPU_FIGURE = r"\d ?(%|MiB|GiB|Gi)"
"""Pattern of a GPU's utilisation or memory in the output of any of the programs."""


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("monitors", "estimates"), help="run only these")
    parser.add_argument("--seconds", type=float, default=30, help="each dashboard runs so long idle, and with keys")
    parser.add_argument("--warm", type=float, default=6, help="seconds at their start that do not count")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command of which the median is printed")
    options = parser.parse_args()
    if (
        options.only != "estimates"
        and subprocess.run((*VRAMTOP, "--once"), capture_output=True, check=False).returncode
    ):
        print("vramtop sees no GPU: the monitors are not measured")
    elif options.only != "estimates":
        _print_monitors(options)
    if options.only != "monitors":
        _print_table(("estimate", "CPU s", "elapsed s", "beside accelerate"), list(estimate_rows(options.runs)))


def _print_monitors(options: argparse.Namespace) -> None:
    rows, columns = [], ["program"]
    for name, (live, once) in installed_monitors().items():
        figures = measure_monitor(live, once, seconds=options.seconds, warm=options.warm, runs=options.runs)
        rows.append((name, *("-" if each is None else f"{each:,.2f}" for each in figures.values())))
        columns[1:] = figures
    _print_table(columns, rows)


def installed_monitors() -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Return of each program the command that refreshes once a second and the one that prints once."""
    search = os.pathsep.join((str(Path(sys.prefix, "peers", "bin")), os.environ.get("PATH", os.defpath)))
    found: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "vramtop": ((*VRAMTOP, "--interval", "1"), (*VRAMTOP, "--once"))
    }
    for name, (live, once) in _PEERS.items():
        path = shutil.which(name, path=search)
        if path is not None:
            found[name] = ((path, *live), (path, *once) if once else ())
    return found


def measure_monitor(
    live: Sequence[str], once: Sequence[str], *, seconds: float, warm: float, runs: int
) -> dict[str, float | None]:
    """Measure one monitor: the commands are those of ``installed_monitors``, the times those of the options."""
    frames = [time_to_first_frame(live, _GPU_FIGURE, limit=3) for _ in range(runs)]
    idle = run_in_terminal(live, seconds=seconds, warm=warm)
    keys = run_in_terminal(live, seconds=seconds, warm=warm, key_interval=1)
    return {
        "first_frame_seconds": None if None in frames else statistics.median(filter(None, frames)),
        "cpu_seconds_per_minute": idle.cpu_seconds_per_minute,
        "cpu_seconds_per_minute_with_keys": keys.cpu_seconds_per_minute,
        "bytes_per_second": idle.bytes_per_second,
        "memory_bytes": idle.memory_bytes,
        "once_seconds": statistics.median(_elapsed(once, runs)) if once else None,
    }


def estimate_rows(runs: int) -> Iterator[tuple[str, ...]]:
    """Yield the median times of each estimate in new processes, none of which finds another's result.

    The programs take turns, so that the load of the machine is the same for all.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "Llama-3.1-8B")
        model.mkdir()
        config = resolve_model(ModelSpec(id="meta-llama/Llama-3.1-8B")).config
        (model / "config.json").write_text(json.dumps(dict(config)))
        commands = {"accelerate estimate-memory, 8B": (*ACCELERATE, str(model), "--library_name", "transformers")}
        commands |= {name: (*VRAMTOP, "estimate", *words) for name, words in ESTIMATES.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for run in range(runs):
            for name, command in commands.items():
                cache = Path(folder, f"{run}", name)
                times[name].append(_used_and_elapsed(command, {"XDG_CACHE_HOME": str(cache)}))
    peer = statistics.median(elapsed for _, elapsed in next(iter(times.values())))
    for name, each in times.items():
        used, elapsed = (statistics.median(one) for one in zip(*each, strict=True))
        yield name, f"{used:.2f}", f"{elapsed:.2f}", f"{elapsed / peer:.2f} x"


def _used_and_elapsed(command: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float]:
    """Return the processor time of a program with all that it starts, and the time until it ends, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    elapsed = next(_elapsed(command, 1, variables))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def _elapsed(command: Sequence[str], runs: int, variables: Mapping[str, str] | None = None) -> Iterator[float]:
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", **(variables or {})}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode files
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
        yield time.perf_counter() - started


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
    print()


if __name__ == "__main__":
    main()
