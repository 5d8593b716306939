"""The GPU on which a run failed, for its estimate: named by the user, or one of this machine's with the same memory."""

import argparse

from vramtop.estimator.common import CannotTellError
from vramtop.estimator.job import Gpu, Job, find_gpu, match_nvml_name

from ...fitting import open_source, read_gpus

_SAME_SHARE = 0.01
"""Tolerance: torch prints two decimals, and driver versions count the memory that they reserve differently."""


def gpu_of_failure(options: argparse.Namespace, job: Job, memory_bytes: int | None) -> tuple[Gpu | None, bool]:
    """Return the type of the GPU, if it is known, and whether it is taken for one of this machine's.

    A log may come from anywhere, so that only a GPU of the same memory makes it one of this machine.

    Args:
        options: with ``--gpu-type``.
        job: which may name the GPU that it is planned for.
        memory_bytes: capacity of the GPU by the log or the snapshot; None: unknown.
    """
    if options.gpu_type:
        return find_gpu(options.gpu_type), False
    if job.target.gpu or memory_bytes is None:
        return None, False
    try:
        with open_source() as source:
            snapshot = read_gpus(source)
    except CannotTellError:
        return None, False
    for gpu in snapshot.gpus:
        totals = [size for size in (gpu.cuda_total_bytes, gpu.total_bytes) if size]  # with and without the reserve
        if gpu.name and any(abs(size - memory_bytes) <= _SAME_SHARE * size for size in totals):
            return match_nvml_name(gpu.name, gpu.total_bytes), True
    return None, False
