"""Has a training run out of memory, and prints where vramtop says it did, beside where it was predicted to."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pynvml
from programs import VRAMTOP, Machine, errors_as, exit_code, last_line, machine, print_figures, started

_LIMIT_MIB = 1024
"""Memory of the training on the CPU."""
_TIMEOUT_SECONDS = 240.0
_JOB = """[model]
id = "{model}"

[training]
framework = "transformers"
precision = "bf16-mixed"
micro_batch = {batch}
sequence_length = {length}
"""


def main() -> int:
    """Run out of memory, and have it explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="there is no GPU: a tiny model, and CPU RAM that runs out")
    with machine(cpu=parser.parse_args().cpu) as here, errors_as("crash"):
        memory = _LIMIT_MIB * 2**20 if here.cpu else gpu_bytes()
        batch = 20_000 if here.cpu else 4 * memory // 2**30  # each sequence takes 1 GiB on the GPU
        job, log, snapshots = (here.folder / name for name in ("job.toml", "crash.log", "snapshots"))
        job.write_text(_JOB.format(model=here.model, batch=batch, length=here.length))
        snapshots.mkdir()
        with errors_as("crash"):
            crash(here, batch, memory, log, snapshots)
        explain(here, "explain log", log, "--job", str(job))
        for path in sorted(snapshots.iterdir()):
            explain(here, "explain snapshot", path)
        with errors_as("predicted"):
            answer = here.vramtop("estimate", str(job), "--json", "--method", "formula")
            peak, phases = answer.found.get("peak", {}), answer.found.get("phases", ())
            too_large = (phase["name"] for phase in phases if phase["allocated_bytes"] > memory)
            facts = {"peak_phase": peak.get("phase"), "peak_bytes": peak.get("device_bytes"), "memory_bytes": memory}
            print_figures("predicted", **answer.figures, phase=next(too_large, None), **facts)
    return exit_code()


def gpu_bytes() -> int:
    """Return the memory of the first GPU."""
    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
    finally:
        pynvml.nvmlShutdown()


def crash(here: Machine, batch: int, memory: int, log: Path, snapshots: Path) -> None:
    """Train with a batch that is too large; its output goes to the log."""
    limit = ("--memory_limit_mib", str(_LIMIT_MIB)) if here.cpu else ()
    command = [*VRAMTOP, "run", "--snapshot-on-oom", str(snapshots), "--"]
    command += here.training_command(*limit, steps=10, batch=batch, length=here.length)
    begun = time.monotonic()
    with log.open("wb") as output, started(command, output) as process:
        try:
            code: int | None = process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
    written = [path.stat().st_size for path in snapshots.iterdir()]
    print_figures(
        "crash",
        seconds=time.monotonic() - begun,
        exit_code=code,
        sentence=last_line(log),
        micro_batch=batch,
        memory_bytes=memory,
        snapshots=len(written),
        snapshot_bytes=sum(written) if written else None,
    )


def explain(here: Machine, name: str, file: Path, *words: str) -> None:
    """Print what vramtop says about the log or a snapshot."""
    with errors_as(name):
        answer = here.vramtop("explain", str(file), "--json", *words)
        failure, place = answer.found.get("failure") or {}, answer.found.get("place") or {}
        memory, snapshot = failure.get("memory") or {}, answer.found.get("snapshot") or {}
        print_figures(
            name,
            **answer.figures,
            **{key: failure.get(key) for key in ("kind", "phase", "place")},
            **{key: memory.get(key) for key in ("tried_bytes", "allocated_bytes", "free_bytes", "total_bytes")},
            held_bytes=place.get("held_bytes"),
            predicted_phase_bytes=place.get("predicted_bytes"),
            share_of_step=place.get("share"),
            **{f"{component}_bytes": size for component, size in snapshot.get("components", {}).items()},
            finding=next(iter(answer.found.get("findings", ())), None),
        )


if __name__ == "__main__":
    sys.exit(main())
