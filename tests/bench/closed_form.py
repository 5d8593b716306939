"""Throughput of searches by the closed form, with the model's architecture and inventory already computed.

For each kind of job on GPUs of 140 GiB:

- candidates estimated with the least that the allocator may reserve, as a search first estimates each of them;
- the search for the largest micro-batch and sequence length (``find_largest``): values that it decides on, most of them
  since memory grows with both, and how many of them it estimates and replays for that;
- suggestions (``suggest``): candidates judged one by one, the replays included of those that may fit or are returned;
- the cost of one estimate with its two steps replayed, as one that is shown.

Run as ``python tests/bench/closed_form.py``. Rates use processor time and the best of several rounds, so other load on
the machine matters little; nothing is remembered from one round to the next.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.advice.bounded_search import BoundedSearch
from vramtop.estimator.advice.largest_fitting import _BATCH_SIZES, _lengths, find_largest
from vramtop.estimator.advice.suggestions import suggest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.reserved_memory import how_reserved_memory_is_found, with_reserved_memory
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import QuickEstimator, quick_estimator
from vramtop.estimator.formula.reserved import replayed
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes

ROUNDS = 5
GPU_BYTES = 140 * GIB
MAX_POSITIONS = 131072
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
    "one GPU": {"training": {"precision": "bf16"}},
    "fsdp2 over 8": {"parallel": {"strategy": "fsdp2", "data_shard": 8}},
    "qlora": {"lora": {"targets": "all-linear", "quantization": "nf4"}},
}
TOO_LARGE = {"training.micro_batch": 16, "training.sequence_length": 8192}
"""Changes with which no kind of job fits, so that there is something to suggest."""


@dataclass
class Counted:
    """An estimator that counts the estimates of the least that is reserved."""

    quick: QuickEstimator
    bounds: int = 0

    def __call__(self, job: Job) -> Budget:
        """Return the quick estimate."""
        if how_reserved_memory_is_found() == "least":
            self.bounds += 1
        return self.quick(job)


def job_of(tables: dict[str, Any]) -> Job:
    """Return the job of a kind, which fits."""
    training = {"micro_batch": 1, "sequence_length": 1024, **tables.get("training", {})}
    return job_from_mapping({"model": {"config": CONFIG}, **tables, "training": training}, where="bench")


def sweep_jobs(tables: dict[str, Any]) -> list[Job]:
    """Return a sweep over micro-batch, sequence length and checkpointing, with these job-file tables added."""
    job = job_of(tables)
    return [
        with_changes(
            job,
            {
                "training.micro_batch": batch,
                "training.sequence_length": length,
                "training.activation_checkpointing": checkpointing,
            },
        )
        for batch in range(1, 17)
        for length in (1024, 2048, 4096, 8192)
        for checkpointing in ("none", "full")
    ]


def judge(budget: Budget) -> Verdict:
    """Return the verdict for one GPU, or as many as the job has."""
    if budget.peak.high_bytes <= GPU_BYTES:
        return "fits"
    return "tight" if budget.peak.device_bytes <= GPU_BYTES else "does_not_fit"


@contextmanager
def counted_replays() -> Iterator[list[object]]:
    """Forget all replays, and list those that are made in the block."""
    replayed._known.clear()
    made: list[object] = []
    before = replayed._replayed_slack
    replayed._replayed_slack = lambda *given: made.append(given) or before(*given)  # type: ignore[func-returns-value]
    try:
        yield made
    finally:
        replayed._replayed_slack = before


def best_seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of several rounds, each without what earlier ones have remembered."""
    seconds = []
    for _ in range(ROUNDS):
        replayed._known.clear()
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def bounds_per_second(tables: dict[str, Any]) -> float:
    """Return the rate of the first estimates of a search."""
    jobs, quick = sweep_jobs(tables), quick_estimator(job_of(tables))
    with with_reserved_memory("least"):
        return len(jobs) / best_seconds(lambda: [quick(job) for job in jobs])


def estimate_seconds(tables: dict[str, Any]) -> float:
    """Return the time of one estimate with its steps replayed, as one that is shown."""
    jobs, quick = sweep_jobs(tables)[::8], quick_estimator(job_of(tables))
    return best_seconds(lambda: [quick(job) for job in jobs]) / len(jobs)


def largest(tables: dict[str, Any]) -> str:
    """Return the rate of the search for the largest micro-batch and sequence length, in words."""
    job = job_of(tables)

    def search(estimate: Callable[[Job], Budget]) -> object:
        return find_largest(job, BoundedSearch(estimate, judge), max_positions=MAX_POSITIONS)

    seconds = best_seconds(lambda: search(quick_estimator(job)))
    decided, counted = len(_BATCH_SIZES) + len(_lengths(MAX_POSITIONS)), Counted(quick_estimator(job))
    with counted_replays() as made:
        search(counted)
    work = f"{counted.bounds} estimated, {len(made)} replayed"
    return f"{decided / seconds:,.0f} jobs/s, {decided:,} in {1e3 * seconds:.0f} ms: {work}"


def suggestions(tables: dict[str, Any]) -> str:
    """Return the rate of a search for suggestions, in words."""
    job = with_changes(job_of(tables), TOO_LARGE)

    def search(estimate: Callable[[Job], Budget]) -> object:
        return suggest(job, estimate(job), estimate, judge, gpus=8)

    seconds = best_seconds(lambda: search(quick_estimator(job)))
    counted = Counted(quick_estimator(job))
    with counted_replays() as made:
        search(counted)
    rate, tried = counted.bounds / seconds, counted.bounds
    return f"{rate:,.0f} candidates/s, {tried} in {1e3 * seconds:.0f} ms: {len(made)} replayed"


def main() -> None:
    """Print the rates of each kind of job."""
    for kind, tables in JOB_TABLES.items():
        rate = bounds_per_second(tables)
        print(f"candidates by their least, 8B, {kind}: {rate:,.0f} jobs/s, {1e6 / rate:.0f} us each")
        print(f"largest batch and length, 8B, {kind}: {largest(tables)}")
        print(f"suggestions, 8B, {kind}: {suggestions(tables)}")
        print(f"one estimate with its steps replayed, 8B, {kind}: {1e3 * estimate_seconds(tables):.0f} ms")


if __name__ == "__main__":
    main()
