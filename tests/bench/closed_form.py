"""How many jobs a second the closed form answers, once the model's shape and inventory are known.

Run as ``python tests/bench/closed_form.py``. Processor time, the best of several rounds: what else runs on the machine
counts little. Candidates differ in what a sweep varies: batch, length and checkpointing.
"""

import time
from itertools import combinations
from typing import Any

from vramtop.estimator.advice.change_table import candidate_changes
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
KINDS: dict[str, dict[str, Any]] = {
    "one card": {},
    "fsdp2 over 8": {"parallel": {"strategy": "fsdp2", "data_shard": 8}},
    "qlora": {"lora": {"targets": "all-linear", "quantization": "nf4"}},
}


def candidates(tables: dict[str, Any]) -> list[Job]:
    """A sweep over batch, length and checkpointing."""
    varied = (
        {"micro_batch": batch, "sequence_length": length, "activation_checkpointing": checkpointing}
        for batch in range(1, 17)
        for length in (1024, 2048, 4096, 8192)
        for checkpointing in ("none", "full")
    )
    return [job_from_mapping({"model": {"config": CONFIG}, "training": t, **tables}, where="bench") for t in varied]


def jobs_per_second(tables: dict[str, Any]) -> float:
    """Of an 8B model, on one core."""
    arch = read_architecture(CONFIG)
    inventory, jobs = count_parameters(arch), candidates(tables)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for job in jobs:
            closed_form(job, arch, inventory)
        seconds.append(time.process_time() - begun)
    return len(jobs) / min(seconds)


def candidates_per_second() -> float:
    """Of a search for what makes an 8B model fit: pairs of changes, made into jobs, with what they take of the host."""
    job = job_from_mapping({"model": {"config": CONFIG}, "training": {"micro_batch": 8}}, where="bench")
    quick = quick_estimator(job)
    changes = candidate_changes(job, gpus=8)
    pairs = [{**a.changes, **b.changes} for a, b in combinations(changes, 2) if a.kind != b.kind]
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for pair in pairs:
            quick(with_changes(job, pair))
        seconds.append(time.process_time() - begun)
    return len(pairs) / min(seconds)


def main() -> None:
    """Print a line for each kind of job, and one for a search."""
    for kind, tables in KINDS.items():
        rate = jobs_per_second(tables)
        print(f"closed form, 8B, {kind}: {rate:,.0f} jobs/s, {1e6 / rate:.0f} us a job")
    print(f"search, 8B, pairs of changes: {candidates_per_second():,.0f} candidates/s")


if __name__ == "__main__":
    main()
