"""Benchmarks: the estimate command beside accelerate's estimator, large snapshots, other monitors, keys to paint.

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
from typing import Any

import growth
import key_to_paint
import monitors
import snapshots

from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.model.find_config import resolve_model

SMALL_MODEL, LARGE_MODEL = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
LARGEST_LLAMA = {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
}
"""What Llama 3.1 405B has otherwise than the 70B."""
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
"""Its config.json on the Hugging Face Hub."""
ACCELERATE_PROGRAM = Path(__file__).with_name("accelerate_offline.py")
CLOSED_FORM_PROGRAM = Path(__file__).with_name("closed_form.py")
SECOND_TRACE_PROGRAM = Path(__file__).with_name("second_trace.py")
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
    parser.add_argument(
        "--only", choices=("estimates", "snapshots", "monitors", "growth", "keys"), help="run only these benchmarks"
    )
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
    if options.only in (None, "snapshots"):
        with tempfile.TemporaryDirectory() as folder:
            rows = list(snapshot_rows(Path(folder)))
        print(table(rows))
        met &= all(row.met for row in rows)
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
    small, large, largest, experts = write_configs(folder)
    few = max(1, runs // 2)
    median_seconds(estimate_command(small, "formula"), folder, 1)  # compiles the modules once
    traced = {
        "accelerate estimate-memory, 8B": [
            sys.executable,
            str(ACCELERATE_PROGRAM),
            str(small),
            "--library_name",
            "transformers",
        ],
        "estimate --method traced, 8B on one GPU": estimate_command(small, "traced"),
        "estimate --method traced, 70B, FSDP2 over 8 GPUs": [*estimate_command(large, "traced"), *FSDP2_OPTIONS],
        "estimate --method traced, 405B, FSDP2 over 8 GPUs": [*estimate_command(largest, "traced"), *FSDP2_OPTIONS],
        "estimate --method traced, DeepSeek-V3 on one GPU": estimate_command(experts, "traced"),
    }
    seconds = alternating_medians(traced, folder, few)
    peer, own = list(seconds.values())[:2]
    log_progress("estimate --method formula, 8B")
    formula = median_seconds(estimate_command(small, "formula"), folder, runs)
    yield compared_row("estimate --method formula, 8B", formula, peer, peer / formula, 10, faster=True)
    for number, (name, limit) in enumerate(zip(list(traced)[1:], (1.2, 1.3, 1.3, 2.0), strict=True)):
        other, beside = ("accelerate", peer) if number == 0 else ("8B traced", own)
        time_, ratio = seconds[name], seconds[name] / beside
        yield compared_row(name, time_, beside, ratio, limit, faster=False, other=other)
    log_progress("traces of further settings by a warm worker")
    yield from second_trace_rows(folder, {"8B on one GPU": small, "70B, FSDP2 over 8 GPUs": large})
    sharded_command = traced["estimate --method traced, 70B, FSDP2 over 8 GPUs"]
    median_seconds(sharded_command, folder, 1)
    log_progress("the same estimate from the cache")
    cached = median_seconds(sharded_command, folder, runs)
    yield limited_row("the same estimate from the cache", cached, 0.3)
    if CLOSED_FORM_PROGRAM.is_file():
        log_progress("closed form, jobs per second")
        yield from closed_form_rows()


def write_configs(folder: Path) -> tuple[Path, Path, Path, Path]:
    """Write the configs of the models to trace; return their folders."""
    small, large = (
        write_config(folder / name.rpartition("/")[2], built_in_config(name)) for name in (SMALL_MODEL, LARGE_MODEL)
    )
    largest = write_config(folder / "Llama-3.1-405B", built_in_config(LARGE_MODEL) | LARGEST_LLAMA)
    return small, large, largest, write_config(folder / "DeepSeek-V3", DEEPSEEK_V3)


def alternating_medians(commands: dict[str, list[str]], folder: Path, runs: int) -> dict[str, float]:
    """Return the median time of each command; they take turns, so that the load of the machine is the same for all."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            log_progress(name)
            times[name].append(median_seconds(command, folder, 1, fresh=True))
    return {name: statistics.median(each) for name, each in times.items()}


def second_trace_rows(folder: Path, models: dict[str, Path]) -> Iterator[BenchmarkRow]:
    """Yield the time of a trace of another setting of the same model, by the worker that traced the first."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    for name, model in models.items():
        clear_cache(folder / "cache")
        command = [sys.executable, str(SECOND_TRACE_PROGRAM), str(model), *(["fsdp2"] if "FSDP2" in name else [])]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        yield limited_row(f"another setting, warm worker, {name}", float(done.stdout), 1)


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
    """Run ``closed_form.py`` and yield a row for each figure that it prints: rates of jobs have a target."""
    done = subprocess.run([sys.executable, str(CLOSED_FORM_PROGRAM)], capture_output=True, text=True, check=True)
    for name, figure, unit in re.findall(r"^(.+): ([\d,]+) (jobs/s|candidates/s|ms)", done.stdout, flags=re.MULTILINE):
        limited = unit == "jobs/s"
        yield BenchmarkRow(
            name=name,
            result=f"{figure} {unit}",
            peer="",
            ratio="",
            target=f"{MIN_JOBS_PER_SECOND:,} jobs/s" if limited else "",
            met=not limited or int(figure.replace(",", "")) >= MIN_JOBS_PER_SECOND,
        )


def snapshot_rows(folder: Path) -> Iterator[BenchmarkRow]:
    """Yield the time and the memory that each large snapshot takes to explain."""
    log_progress("explain, a million blocks and a million events")
    for read in snapshots.measure_snapshots(folder):
        yield limited_row(read.name, read.seconds, read.max_seconds)
        yield BenchmarkRow(
            name=f"{read.name}, peak memory",
            result=f"{read.peak_bytes / 1e6:.0f} MB",
            peer="",
            ratio="",
            target=f"{read.max_bytes / 1e6:.0f} MB",
            met=read.peak_bytes <= read.max_bytes,
        )


def compared_row(
    name: str, seconds: float, peer: float, ratio: float, target: float, *, faster: bool, other: str = "accelerate"
) -> BenchmarkRow:
    """Return a row whose target is a ratio to the time of another command."""
    return BenchmarkRow(
        name=name,
        result=f"{seconds:.2f} s",
        peer=f"{other} {peer:.2f} s",
        ratio=f"{ratio:.1f} x faster" if faster else f"{ratio:.2f} x as long",
        target=f"{target:g} x faster" if faster else f"at most {target:g} x",
        met=ratio >= target if faster else ratio <= target,
    )


def limited_row(name: str, seconds: float, limit: float) -> BenchmarkRow:
    """Return a row whose target is a maximum time in seconds."""
    return BenchmarkRow(
        name=name, result=f"{seconds:.2f} s", peer="", ratio="", target=f"{limit:g} s", met=seconds <= limit
    )


def built_in_config(name: str) -> dict[str, Any]:
    """Return a built-in model's config."""
    return dict(resolve_model(ModelSpec(id=name)).config)


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Write a config to a new folder that both estimators can read; return the folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
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
