"""Anomalies inside one job: helper processes with a CUDA context of their own, and ranks that share a GPU."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from vramtop.estimator.common.sizes import MIB, format_gib

from ..snapshot.snapshot import GpuProcess
from .anomaly import Anomaly, RuleContext, format_pids

MAX_CONTEXT_BYTES = 1024 * MIB
"""Size of a CUDA context with all kernels of torch: 990 MiB on an H100; 520 MiB were seen in each data loader worker
(ai2cm/ace#1396), 725 and 871 MiB of ranks with a context on GPU 0 (pytorch/pytorch#23138, #49481)."""
_MIN_CONTEXT_BYTES = 64 * MIB
"""Less is no CUDA context: NCCL leaves a few MiB on its peers' GPUs (pytorch/pytorch#64130)."""
_MIN_AGE_SECONDS = 120.0
"""A younger process may still be loading."""
_DATA_LOADER_WORKER = "pt_data_worker"
"""Process name that torch gives its data loader workers (torch/utils/data/_utils/worker.py)."""
_HELPER_COMMANDS = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "loky.backend.popen_loky",
    "_inductor/compile_worker",
)
"""Parts of the command lines of children that the pools of Python, joblib and torch.compile start."""


def find_helpers(context: RuleContext) -> list[Anomaly]:
    """Find data loader workers and other children of a program that hold a CUDA context of their own."""
    found: dict[tuple[int, int], list[GpuProcess]] = defaultdict(list)
    for gpu, process in context.snapshot.processes():
        owner = _owner(context, process)
        if owner is not None:
            found[gpu.index, owner.pid].append(process)
    return [_helper_anomaly(gpu, context.processes[owner], members) for (gpu, owner), members in found.items()]


def _owner(context: RuleContext, process: GpuProcess) -> GpuProcess | None:
    """Return the program on a GPU that the process is a helper of; None if it is none, or does work of its own."""
    by_name = process.name == _DATA_LOADER_WORKER
    by_line = any(line in (process.command or "") for line in _HELPER_COMMANDS)
    parent = None if process.parent is None else context.processes.get(process.parent)
    by_fork = parent is not None and process.command is not None and parent.command == process.command
    if process.used_bytes is None or not (by_name or by_line or by_fork):
        return None
    ancestors = (context.processes.get(pid) for pid in context.ancestors(process))
    owner = next((each for each in ancestors if each and each.name != _DATA_LOADER_WORKER), None)
    if owner is None or by_name:
        return owner
    small = _MIN_CONTEXT_BYTES <= process.used_bytes <= min(MAX_CONTEXT_BYTES, (owner.used_bytes or 0) // 2)
    if not small or context.age_seconds(process) < _MIN_AGE_SECONDS:
        return None
    own, parents = context.origin_of(process), context.origin_of(owner)
    # a rank that its parent started has another environment (Lightning)
    is_fork = own is not None and parents is not None and own.environment == parents.environment is not None
    return owner if by_line or is_fork else None


_HELPER_ADVICE = (
    "unless they use the GPU on purpose, keep CUDA out of their code (of a data loader: dataset, collate_fn, "
    "worker_init_fn) and, with spawn or forkserver, out of script code outside 'if __name__ == \"__main__\"'"
)


def _helper_anomaly(gpu_index: int, owner: GpuProcess, members: list[GpuProcess]) -> Anomaly:
    pids = tuple(sorted(member.pid for member in members))
    held = sum(member.used_bytes or 0 for member in members)
    loaders = all(member.name == _DATA_LOADER_WORKER for member in members)
    one = len(pids) == 1
    what = ("data loader worker" if one else "data loader workers") if loaders else ("helper" if one else "helpers")
    thing = "a CUDA context" if held <= len(pids) * MAX_CONTEXT_BYTES else "GPU memory"
    hold = f"holds {thing}" if one else f"hold {thing} each"
    return Anomaly(
        kind="helpers",
        gpu=gpu_index,
        pids=pids,
        about=(owner.pid,),
        held_bytes=held,
        sentence=f"{len(pids)} {what} of process {owner.pid} ({format_pids(pids)}) {hold}: {format_gib(held)} GiB",
        advice=_HELPER_ADVICE,
    )


def find_rank_conflicts(context: RuleContext, helper_pids: Collection[int]) -> Iterator[Anomaly]:
    """Find ranks of one job that share a GPU, or hold a CUDA context on another rank's GPU.

    Args:
        context: the snapshot with its processes.
        helper_pids: of helper processes, which have the environment of their rank.
    """
    for job in _multi_rank_jobs(context, helper_pids):
        by_gpu: dict[int, list[int]] = defaultdict(list)
        for pid in sorted(job, key=lambda pid: (job[pid], pid)):
            by_gpu[context.home_gpus[pid]].append(pid)
        yield from _shared_gpus(context, job, by_gpu)
        yield from _stray_contexts(context, job, by_gpu)


def _multi_rank_jobs(context: RuleContext, helper_pids: Collection[int]) -> list[dict[int, int]]:
    """Return the ranks of each multi-rank job, by pid. Ranks have one parent: their launcher, or rank 0 itself."""
    children: dict[int, list[GpuProcess]] = defaultdict(list)
    for process in context.processes.values():
        if process.parent is not None and process.parent > 1 and process.pid not in helper_pids:
            children[process.parent].append(process)
    jobs = []
    for parent, members in children.items():
        first = context.processes.get(parent)
        if len(members) + (first is not None) < 2:
            continue
        ranks: dict[int, int] = {}
        for process in members:
            if context.age_seconds(process) < _MIN_AGE_SECONDS or "mps" in process.kinds:
                continue
            origin = context.origin_of(process)
            if origin is not None and origin.rank is not None and not origin.on_mig:
                ranks[process.pid] = origin.rank
        if ranks and first is not None and 0 not in ranks.values():
            origin = context.origin_of(first)
            if origin is not None and origin.environment is not None and origin.rank is None:
                ranks[parent] = 0
        if len(set(ranks.values())) > 1:
            jobs.append(ranks)
    return jobs


_ONE_GPU_PER_RANK_ADVICE = (
    "call torch.cuda.set_device(local_rank) before any other CUDA call, load checkpoints with map_location, or give "
    "each rank its own CUDA_VISIBLE_DEVICES"
)


def _shared_gpus(context: RuleContext, job: dict[int, int], by_gpu: dict[int, list[int]]) -> Iterator[Anomaly]:
    for gpu_index, listed in by_gpu.items():
        pids = [pid for pid in listed if (context.processes[pid].used_bytes or 0) >= _MIN_CONTEXT_BYTES]
        ranks = sorted({job[pid] for pid in pids})
        if len(ranks) < 2:
            continue
        held = sum(context.processes[pid].used_bytes or 0 for pid in pids)
        yield Anomaly(
            kind="shared",
            gpu=gpu_index,
            pids=tuple(pids),
            held_bytes=held,
            sentence=f"{_format_ranks(ranks)} of one job share this GPU ({format_pids(pids)}) and hold "
            f"{format_gib(held)} GiB together",
            advice="NCCL does not support two ranks on one GPU, and they slow each other down: "
            f"{_ONE_GPU_PER_RANK_ADVICE}",
        )


def _stray_contexts(context: RuleContext, job: dict[int, int], by_gpu: dict[int, list[int]]) -> Iterator[Anomaly]:
    for gpu in context.snapshot.gpus:
        owners = by_gpu.get(gpu.index)
        strayed = [
            process
            for process in gpu.processes or ()
            if process.pid in job
            and context.home_gpus[process.pid] != gpu.index
            and _MIN_CONTEXT_BYTES <= (process.used_bytes or 0) <= MAX_CONTEXT_BYTES
        ]
        if not owners or not strayed:
            continue
        held = sum(process.used_bytes or 0 for process in strayed)
        pids = tuple(sorted(process.pid for process in strayed))
        who = _format_ranks(sorted(job[pid] for pid in pids))
        each = "a CUDA context" if len(pids) == 1 else "a CUDA context each"
        yield Anomaly(
            kind="strays",
            gpu=gpu.index,
            pids=pids,
            about=tuple(owners),
            held_bytes=held,
            sentence=f"{who} ({format_pids(pids)}), which run on other GPUs, hold{'s' * (len(pids) == 1)} {each} here: "
            f"{format_gib(held)} GiB of {_format_ranks(sorted(job[pid] for pid in owners))}'s GPU",
            advice=_ONE_GPU_PER_RANK_ADVICE,
        )


def _format_ranks(ranks: list[int]) -> str:
    """Return rank numbers in words: ``rank 1``, ``ranks 0 and 1``, ``ranks 1 to 7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(str(number) for number in ranks[:-1])} and {ranks[-1]}"
