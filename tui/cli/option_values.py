"""Values of the options for machine and method, which ``estimate``, ``fit`` and ``preflight`` share."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.job.gpu_catalogue import find_gpu

if TYPE_CHECKING:
    import argparse

    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.snapshot.snapshot import Snapshot


def described_gpu(options: argparse.Namespace, job: Job) -> tuple[Gpu | None, int | None]:
    """Return the GPU of another machine that options or job name, and its total bytes; Nones mean this machine."""
    name = options.gpu_type or (job.target.gpu if not options.gpu_memory and not options.gpu else None)
    gpu = find_gpu(name) if name else None
    return gpu, parse_size(options.gpu_memory) if options.gpu_memory else gpu.total_bytes if gpu else None


def described_host(options: argparse.Namespace) -> int | None:
    """Return the bytes of RAM that ``--host-memory`` names; None if it does not."""
    return parse_size(options.host_memory) if options.host_memory else None


def gpu_indices(text: str, snapshot: Snapshot) -> list[int]:
    """Parse the value of ``--gpu``.

    Raises:
        InputError: it is not a list of indices, or this machine has no such GPU.
    """
    from vramtop.monitor.host.plain_text import gpu_list

    present = [gpu.index for gpu in snapshot.gpus]
    try:
        indices = [int(part) for part in text.split(",")]
    except ValueError:
        hint = ""
        with suppress(InputError):
            hint = f"; vramtop fit --gpu-type {find_gpu(text).name} judges that card"
        raise InputError(f"--gpu {text}: give GPU indices of this machine, such as 0 or 0,1{hint}") from None
    absent = [index for index in indices if index not in present]
    if absent:
        raise InputError(f"--gpu {text}: there is no GPU {absent[0]} here, only {gpu_list(present)}")
    return indices
