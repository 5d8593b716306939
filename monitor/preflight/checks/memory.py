"""Checks of memory: the fit verdict, the host's RAM, and shared memory."""

import os
from pathlib import Path

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CancelledError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.estimator.job.settings import Parallel

from ...board.fit import check_fit
from ...host.available_ram import RANKS_OF_DESCRIBED_HOST, host_verdict
from ..check import CheckContext, CheckResult, fails, inconclusive, passes, skips, target_devices, warns

_MIN_SHARED_BYTES = GIB
"""NVIDIA's recommendation for containers for NCCL (``--shm-size=1g``); Docker's own default is 64 MiB."""
_METHOD_TEXTS = {
    "formula": "closed form",
    "exact": "closed form on the built model",
    "traced": "traced",
    "rehearsed": "rehearsed",
}


def check_fit_verdict(context: CheckContext) -> CheckResult:
    """The whole budget, compared with the available memory.

    Report the verdict of ``vramtop fit`` for the GPUs that the job will use.
    """
    if not context.machine.devices:
        needed = f"needs {format_gib(context.quick_budget().peak.device_bytes)} GiB on each GPU (closed form)"
        advice = "describe a machine with --gpu-type or --gpu-memory"
        return inconclusive(f"{needed}; there is no GPU to compare it with", advice)
    try:
        budget = context.deepest_budget()
        method = _METHOD_TEXTS[budget.method]
    except CancelledError:
        budget, method = context.quick_budget(), "closed form: deeper methods took too long"
    if context.ranks_here < context.job.parallel.world_size and not context.machine.is_described:
        job = msgspec.structs.replace(budget.job, parallel=Parallel(data_replicate=context.ranks_here))
        budget = replace(budget, job=job, stages=())  # each rank like the one with the highest peak
        method = f"{method}; on this machine alone"
    result = check_fit(budget, target_devices(context))
    found = f"{result.sentence} ({method})"
    if result.verdict == "fits":
        return passes(found)
    advice = _advice(budget, context)
    if result.verdict == "tight":
        return warns(found, advice)
    return fails(found, advice) if result.verdict == "does_not_fit" else inconclusive(found)


def check_host_memory(context: CheckContext) -> CheckResult:
    """The machine's RAM, while the job's processes load the model and while they train.

    Fail if the job exceeds the host's RAM: it is killed there, regardless of free GPU memory.
    """
    need, host = context.quick_budget().host, context.machine.host
    if host is None:
        return skips("the machine's memory is not known (--host-memory)")
    if need is None:
        return skips("the job's need is not known")
    ranks = min(context.ranks_here, context.job.parallel.processes)
    if context.machine.is_described and context.local_ranks is None:
        ranks = min(ranks, RANKS_OF_DESCRIBED_HOST)
    result = host_verdict(need, host, ranks=ranks)
    advice = "load less at once (fsdp_cpu_ram_efficient_loading, ZeRO 3), offload less, or free memory"
    if result.verdict == "fits":
        return passes(result.sentence)
    return warns(result.sentence, advice) if result.verdict == "tight" else fails(result.sentence, advice)


def _advice(budget: Budget, context: CheckContext) -> str:
    """Advise other GPUs of the machine, or a smaller job."""
    devices = context.machine.devices
    best = check_fit(budget, devices)
    if best.verdict == "fits" and devices[0].uuid is not None:
        has_mig = any(device.mig for device in devices)
        names = best.cuda_devices if has_mig else map(str, best.placement)  # an index would select a whole GPU
        flag = context.devices.by_flag
        chosen = f"CUDA_VISIBLE_DEVICES={','.join(names)}" if flag is None else f"GPU {','.join(names)}; change {flag}"
        return f"it fits on others: {chosen}"
    return "vramtop fit suggests how to make it smaller"


def check_shared_memory(context: CheckContext, folder: Path = Path("/dev/shm")) -> CheckResult:  # noqa: S108 - the folder that is examined
    """Shared memory, through which the ranks of a machine communicate.

    Fail if there is none; warn if there is little of it.
    """
    if context.job.parallel.world_size == 1:
        return skips("not needed: one GPU")
    if context.machine.is_described:
        return skips("the job is for another machine than this one")
    if context.environ.get("NCCL_SHM_DISABLE", "") == "1":
        return skips("NCCL_SHM_DISABLE=1: NCCL does not use it")
    advice = "make it larger; in a container --shm-size=1g, or --ipc=host"
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return fails(f"{folder} does not exist or cannot be written to", advice)
    disk = os.statvfs(folder)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    found = f"{folder}: {format_gib(free, digits=2)} GiB free of {format_gib(total, digits=2)}"
    if free < MIB:
        return fails(f"{found}: it is full", "delete files left by ended programs, or make it larger")
    return warns(found, advice) if free < _MIN_SHARED_BYTES else passes(found)
