"""Benchmarks: the estimate command beside accelerate's estimator, the dashboard beside other monitors, keys to paint.

Run by ``make bench``; the exit code is 1 if a target is missed. No network is needed: the model configs are the
built-in ones, written to folders. Times are medians over runs of whole processes. Absolute times hold only for this
machine at this moment; compare the ratios within one run.

The monitors read the libnvidia-ml that the loader finds. ``--under 'COMMAND'`` starts the measurement through a wrapper
command; given several times, it puts several (simulated) machines into one table:

    make bench ARGS="--only monitors --under 'env LD_LIBRARY_PATH=/one' --under 'env LD_LIBRARY_PATH=/other'"
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import growth
import key_to_paint
import monitors

from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.model.find_config import resolve_model

SMALL_MODEL, LARGE_MODEL = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
ACCELERATE_PROGRAM = Path(__file__).with_name("accelerate_offline.py")
CLOSED_FORM_PROGRAM = Path(__file__).with_name("closed_form.py")
MIN_JOBS_PER_SECOND = 10_000
FSDP2_OPTIONS = ("--precision", "bf16-mixed", "--strategy", "fsdp2", "--data-shard", "8")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One line of the table of estimate benchmarks."""

    name: str
    result: str
    peer: str
    ratio: str
    target: str
    met: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected benchmarks, print their tables and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("estimates", "monitors", "growth", "keys"), help="run only these benchmarks")
    parser.add_argument(
        "--under", action="append", default=[], help="wrapper command to measure the monitors under; repeatable"
    )
    monitors.add_options(parser)
    options = parser.parse_args(argv)
    met = True
    if options.only in (None, "estimates"):
        with tempfile.TemporaryDirectory() as folder:
            rows = list(benchmark_estimates(Path(folder), options.runs))
        print(table(rows))
        met = all(row.met for row in rows)
    if options.only in (None, "growth"):
        sizes = list(growth.measure_sizes())
        print(growth.table(sizes))
        met &= growth.is_linear(sizes)
    if options.only in (None, "monitors"):
        measurements = monitors.measure_under(
            options.under, seconds=options.seconds, warm=options.warm, runs=options.runs
        )
        targets = monitors.all_targets(measurements)
        if measurements:
            print(monitors.table(measurements), monitors.targets_table(targets), sep="\n\n")
        met &= all(target.met for target in targets)
    if options.only in (None, "keys"):
        times = key_to_paint.measure_under(options.under, runs=options.runs)
        print(key_to_paint.table(times))
        met &= all(row.met for row in times)
    return 0 if met else 1


def benchmark_estimates(folder: Path, runs: int) -> Iterator[BenchmarkRow]:
    """Yield one row per target; progress goes to stderr.

    Args:
        folder: where the model configs and the cache are written.
        runs: number of runs of each fast command; slow ones run half as often.
    """
    small, large = (write_config(folder / name.rpartition("/")[2], name) for name in (SMALL_MODEL, LARGE_MODEL))
    few = max(1, runs // 2)
    median_seconds(estimate_command(small, "formula"), folder, 1)  # compiles the modules once
    log_progress("accelerate estimate-memory, 8B")
    accelerate = [sys.executable, str(ACCELERATE_PROGRAM), str(small), "--library_name", "transformers"]
    peer = median_seconds(accelerate, folder, few)
    log_progress("estimate --method formula, 8B")
    formula = median_seconds(estimate_command(small, "formula"), folder, runs)
    yield compared_row("estimate --method formula, 8B", formula, peer, peer / formula, 10, faster=True)
    log_progress("estimate --method traced, 8B on one GPU")
    traced = median_seconds(estimate_command(small, "traced"), folder, few, fresh=True)
    yield compared_row("estimate --method traced, 8B on one GPU", traced, peer, traced / peer, 2, faster=False)
    log_progress("estimate --method traced, 70B with FSDP2 over 8 GPUs")
    sharded_command = [*estimate_command(large, "traced"), *FSDP2_OPTIONS]
    sharded = median_seconds(sharded_command, folder, 1, fresh=True)
    yield limited_row("estimate --method traced, 70B, FSDP2 over 8 GPUs", sharded, 30)
    log_progress("the same estimate from the cache")
    cached = median_seconds(sharded_command, folder, runs)
    yield limited_row("the same estimate from the cache", cached, 0.3)
    if CLOSED_FORM_PROGRAM.is_file():
        log_progress("closed form, jobs per second")
        yield from closed_form_rows()


def estimate_command(model: Path, method: str) -> list[str]:
    """Return the command line of an estimate in a new process."""
    return [sys.executable, "-m", "vramtop.tui.cli", "estimate", str(model), "--method", method]


def median_seconds(command: Sequence[str], folder: Path, runs: int, *, fresh: bool = False) -> float:
    """Return the median elapsed time of whole processes.

    Args:
        command: the command to run.
        folder: parent of the cache folder.
        runs: number of runs.
        fresh: clear the cache before each run.

    Raises:
        subprocess.CalledProcessError: the command failed; its stderr is passed on.
    """
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode files, so the checkout gets them
    times = []
    for _ in range(runs):
        if fresh:
            clear_cache(folder / "cache")
        started = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        times.append(time.perf_counter() - started)
        if done.returncode:
            sys.stderr.buffer.write(done.stderr)
            raise subprocess.CalledProcessError(done.returncode, command)
    return statistics.median(times)


def closed_form_rows() -> Iterator[BenchmarkRow]:
    """Run ``closed_form.py`` and yield a row for each rate that it prints."""
    done = subprocess.run([sys.executable, str(CLOSED_FORM_PROGRAM)], capture_output=True, text=True, check=True)
    for name, rate in re.findall(r"^(.+): ([\d,]+) jobs/s", done.stdout, flags=re.MULTILINE):
        jobs = int(rate.replace(",", ""))
        yield BenchmarkRow(
            name=name,
            result=f"{jobs:,} jobs/s",
            peer="",
            ratio="",
            target=f"{MIN_JOBS_PER_SECOND:,} jobs/s",
            met=jobs >= MIN_JOBS_PER_SECOND,
        )


def compared_row(name: str, seconds: float, peer: float, ratio: float, target: float, *, faster: bool) -> BenchmarkRow:
    """Return a row whose target is a ratio to accelerate's time for the same config."""
    return BenchmarkRow(
        name=name,
        result=f"{seconds:.2f} s",
        peer=f"accelerate {peer:.2f} s",
        ratio=f"{ratio:.1f} x faster" if faster else f"{ratio:.2f} x as long",
        target=f"{target:g} x faster" if faster else f"at most {target:g} x",
        met=ratio >= target if faster else ratio <= target,
    )


def limited_row(name: str, seconds: float, limit: float) -> BenchmarkRow:
    """Return a row whose target is a maximum time in seconds."""
    return BenchmarkRow(
        name=name, result=f"{seconds:.2f} s", peer="", ratio="", target=f"{limit:g} s", met=seconds <= limit
    )


def write_config(folder: Path, name: str) -> Path:
    """Write a built-in model's config to a new folder that both estimators can read; return the folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(resolve_model(ModelSpec(id=name)).config)))
    return folder


def clear_cache(cache: Path) -> None:
    """Delete all cached results."""
    for file in cache.rglob("*.json"):
        file.unlink()


def table(rows: Sequence[BenchmarkRow]) -> str:
    """Return the rows as an aligned table."""
    lines = [("benchmark", "result", "peer", "ratio", "target", "met")]
    lines += [(r.name, r.result, r.peer, r.ratio, r.target, "yes" if r.met else "NO") for r in rows]
    return monitors.aligned(lines)


def log_progress(text: str) -> None:
    """Print the current step to stderr."""
    sys.stderr.write(f"{text} ...\n")


if __name__ == "__main__":
    raise SystemExit(main())
