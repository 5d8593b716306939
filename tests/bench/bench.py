"""How fast the command is, beside accelerate's own estimator, and what the dashboard costs, beside other monitors.

Run by ``make bench``; exit code 1 where a target is missed. No network: the models' configurations are written to
folders from the built-in ones. Whole processes, medians of several runs. The figures are those of this machine at this
moment; ratios within one run count.

The monitors are measured against the libnvidia-ml that the loader finds. ``--under 'COMMAND'`` measures them under a
command that runs another one, so that several machines come in one table:

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
import monitors

from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.model.find_config import resolve_model

SMALL, LARGE = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
ACCELERATE = Path(__file__).with_name("accelerate_offline.py")
CLOSED_FORM = Path(__file__).with_name("closed_form.py")
JOBS_A_SECOND = 10_000
SHARDED = ("--precision", "bf16-mixed", "--strategy", "fsdp2", "--data-shard", "8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of the table."""

    name: str
    figure: str
    peer: str
    ratio: str
    target: str
    met: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("estimates", "monitors", "growth"), help="leave the other parts out")
    parser.add_argument("--under", action="append", default=[], help="a command that runs another one; repeatable")
    monitors.add_options(parser)
    options = parser.parse_args(argv)
    met = True
    if options.only in (None, "estimates"):
        with tempfile.TemporaryDirectory() as folder:
            rows = list(measure(Path(folder), options.runs))
        print(table(rows))
        met = all(row.met for row in rows)
    if options.only in (None, "growth"):
        steps = list(growth.steps())
        print(growth.table(steps))
        met &= growth.is_linear(steps)
    if options.only in (None, "monitors"):
        figures = monitors.measure_under(options.under, seconds=options.seconds, warm=options.warm, runs=options.runs)
        targets = monitors.all_targets(figures)
        if figures:
            print(monitors.table(figures), monitors.targets_table(targets), sep="\n\n")
        met &= all(target.met for target in targets)
    return 0 if met else 1


def measure(folder: Path, runs: int) -> Iterator[Measured]:
    """Each target in turn; what is slow says on stderr that it runs."""
    small, large = (write_config(folder / name.rpartition("/")[2], name) for name in (SMALL, LARGE))
    few = max(1, runs // 2)
    seconds(vramtop(small, "formula"), folder, 1)  # compiles the modules once
    say("accelerate estimate-memory, 8B")
    peer = seconds([sys.executable, str(ACCELERATE), str(small), "--library_name", "transformers"], folder, few)
    say("estimate --method formula, 8B")
    formula = seconds(vramtop(small, "formula"), folder, runs)
    yield against("estimate --method formula, 8B", formula, peer, peer / formula, 10, faster=True)
    say("estimate --method traced, 8B on one GPU")
    traced = seconds(vramtop(small, "traced"), folder, few, fresh=True)
    yield against("estimate --method traced, 8B on one GPU", traced, peer, traced / peer, 2, faster=False)
    say("estimate --method traced, 70B under 8-way FSDP2")
    sharded = seconds([*vramtop(large, "traced"), *SHARDED], folder, 1, fresh=True)
    yield within("estimate --method traced, 70B, FSDP2 over 8", sharded, 30)
    say("the same again")
    again = seconds([*vramtop(large, "traced"), *SHARDED], folder, runs)
    yield within("the same again, from the cache", again, 0.3)
    if CLOSED_FORM.is_file():
        say("closed form, jobs a second")
        yield from closed_form()


def vramtop(model: Path, method: str) -> list[str]:
    """The command as it is installed, started as a program."""
    return [sys.executable, "-m", "vramtop.tui.cli", "estimate", str(model), "--method", method]


def seconds(command: Sequence[str], folder: Path, runs: int, *, fresh: bool = False) -> float:
    """The median time of whole processes.

    Args:
        command: what is run.
        folder: where its cache lies.
        runs: how often.
        fresh: the cache is emptied before each run.

    Raises:
        subprocess.CalledProcessError: it failed; its standard error is shown.
    """
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled, so the checkout may be too
    times = []
    for _ in range(runs):
        if fresh:
            empty(folder / "cache")
        begun = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        times.append(time.perf_counter() - begun)
        if done.returncode:
            sys.stderr.buffer.write(done.stderr)
            raise subprocess.CalledProcessError(done.returncode, command)
    return statistics.median(times)


def closed_form() -> Iterator[Measured]:
    """What the closed form's own program prints: a line of jobs a second for each kind of job."""
    done = subprocess.run([sys.executable, str(CLOSED_FORM)], capture_output=True, text=True, check=True)
    for name, rate in re.findall(r"^(.+): ([\d,]+) jobs/s", done.stdout, flags=re.MULTILINE):
        jobs = int(rate.replace(",", ""))
        yield Measured(
            name=name,
            figure=f"{jobs:,} jobs/s",
            peer="",
            ratio="",
            target=f"{JOBS_A_SECOND:,} jobs/s",
            met=jobs >= JOBS_A_SECOND,
        )


def against(name: str, figure: float, peer: float, ratio: float, target: float, *, faster: bool) -> Measured:
    """A time beside accelerate's for the same config."""
    return Measured(
        name=name,
        figure=f"{figure:.2f} s",
        peer=f"accelerate {peer:.2f} s",
        ratio=f"{ratio:.1f} x faster" if faster else f"{ratio:.2f} x as long",
        target=f"{target:g} x faster" if faster else f"at most {target:g} x",
        met=ratio >= target if faster else ratio <= target,
    )


def within(name: str, figure: float, target: float) -> Measured:
    """A time with a limit of its own."""
    return Measured(
        name=name, figure=f"{figure:.2f} s", peer="", ratio="", target=f"{target:g} s", met=figure <= target
    )


def write_config(folder: Path, name: str) -> Path:
    """A built-in model's configuration as a folder that any tool reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(resolve_model(ModelSpec(id=name)).config)))
    return folder


def empty(cache: Path) -> None:
    """Forget earlier answers."""
    for file in cache.rglob("*.json"):
        file.unlink()


def table(rows: Sequence[Measured]) -> str:
    """Aligned columns."""
    lines = [("what", "takes", "peer", "ratio", "target", "met")]
    lines += [(r.name, r.figure, r.peer, r.ratio, r.target, "yes" if r.met else "NO") for r in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say(words: str) -> None:
    """What is being measured."""
    sys.stderr.write(f"{words} ...\n")


if __name__ == "__main__":
    raise SystemExit(main())
