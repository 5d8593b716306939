"""Throughput of the closed form in jobs per second, with the model's architecture and inventory already computed.

Searches estimate thousands of jobs roughly, and replay the steps of those that they report
(``with_reserved_memory``): both rates are printed.

Run as ``python tests/bench/closed_form.py``. Rates use processor time and the best of several rounds, so other load on
the machine matters little. The jobs differ in the settings that a sweep varies: micro-batch, sequence length and
activation checkpointing.
"""

import time
from itertools import combinations
from typing import Any

from vramtop.estimator.advice.change_table import candidate_changes
from vramtop.estimator.common.reserved_memory import with_reserved_memory
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import job_from_mapping, with_changes
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture

ROUNDS = 5
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
JOB_TABLES: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "fsdp2 over 8": {"parallel": {"strategy": "fsdp2", "data_shard": 8}},
    "qlora": {"lora": {"targets": "all-linear", "quantization": "nf4"}},
}


def sweep_jobs(tables: dict[str, Any]) -> list[Job]:
    """Return a sweep over micro-batch, sequence length and checkpointing, with these job-file tables added."""
    trainings = (
        {"micro_batch": batch, "sequence_length": length, "activation_checkpointing": checkpointing}
        for batch in range(1, 17)
        for length in (1024, 2048, 4096, 8192)
        for checkpointing in ("none", "full")
    )
    return [job_from_mapping({"model": {"config": CONFIG}, "training": t, **tables}, where="bench") for t in trainings]


def jobs_per_second(tables: dict[str, Any]) -> float:
    """Return the rate of a search's estimates for an 8B model on one core."""
    arch = read_architecture(CONFIG)
    inventory, jobs = count_parameters(arch), sweep_jobs(tables)
    seconds = []
    with with_reserved_memory("least"):
        for _ in range(ROUNDS):
            started = time.process_time()
            for job in jobs:
                closed_form(job, arch, inventory, words=False)
            seconds.append(time.process_time() - started)
    return len(jobs) / min(seconds)


def replays_per_second(tables: dict[str, Any]) -> float:
    """Return the rate of estimates that are reported, each of another job."""
    arch = read_architecture(CONFIG)
    inventory, jobs = count_parameters(arch), sweep_jobs(tables)[::4]
    started = time.process_time()
    for job in jobs:
        closed_form(job, arch, inventory)
    return len(jobs) / (time.process_time() - started)


def candidates_per_second() -> float:
    """Return the rate at which a search for fitting settings of an 8B model evaluates pairs of changes."""
    job = job_from_mapping({"model": {"config": CONFIG}, "training": {"micro_batch": 8}}, where="bench")
    quick = quick_estimator(job)
    changes = candidate_changes(job, gpus=8)
    pairs = [{**a.changes, **b.changes} for a, b in combinations(changes, 2) if a.kind != b.kind]
    seconds = []
    with with_reserved_memory("least"):
        for _ in range(ROUNDS):
            started = time.process_time()
            for pair in pairs:
                quick(with_changes(job, pair))
            seconds.append(time.process_time() - started)
    return len(pairs) / min(seconds)


def main() -> None:
    """Print the rate of each kind of job, then that of the search."""
    for kind, tables in JOB_TABLES.items():
        rate = jobs_per_second(tables)
        replayed = replays_per_second(tables)
        print(
            f"closed form, 8B, {kind}: {rate:,.0f} jobs/s, {1e6 / rate:.0f} us per job;"
            f" with its steps replayed {1e3 / replayed:.0f} ms"
        )
    print(f"search, 8B, pairs of changes: {candidates_per_second():,.0f} candidates/s")


if __name__ == "__main__":
    main()
