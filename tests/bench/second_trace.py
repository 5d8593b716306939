"""Median time of traces of further settings of a model, by the worker that traced the first.

The settings are another micro-batch, sequence length, optimizer, and checkpointing.

    python tests/bench/second_trace.py FOLDER [fsdp2]
"""

import statistics
import sys
import time

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.trace.worker_pool import keep_idle_workers

FSDP2 = {"strategy": "fsdp2", "data_shard": 8}
CHANGES = (
    {},
    {"micro_batch": 2},
    {"sequence_length": 1024},
    {"optimizer": "sgd"},
    {"activation_checkpointing": "full"},
)


def main() -> None:
    """Trace all settings and print the median time of all but the first."""
    keep_idle_workers()
    times = []
    for changes in CHANGES:
        tables = {"model": {"id": sys.argv[1]}, "training": changes, "parallel": FSDP2 if sys.argv[2:] else {}}
        job = job_from_mapping(tables, where="bench")
        started = time.perf_counter()
        estimate(job, method="traced", python=sys.executable)
        times.append(time.perf_counter() - started)
    print(f"{statistics.median(times[1:]):.2f}")


if __name__ == "__main__":
    main()
