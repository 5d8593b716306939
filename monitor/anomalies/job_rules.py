"""Odd things inside one job: helpers with a CUDA context of their own, and ranks that meet on a GPU."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from vramtop.estimator.common.sizes import MIB, format_gib

from ..snapshot.snapshot import GpuProcess
from .anomaly import Anomaly, RuleContext, format_pids

MAX_CONTEXT_BYTES = 1024 * MIB
"""No more than a CUDA context with all kernels of torch: 990 MiB on an H100; 520 MiB each were seen in data loader
workers (ai2cm/ace#1396), 725 and 871 MiB of ranks that strayed to GPU 0 (pytorch/pytorch#23138, #49481)."""
_MIN_CONTEXT_BYTES = 64 * MIB
"""Less is no context: NCCL leaves a few MiB on its peers' GPUs (pytorch/pytorch#64130)."""
_MIN_AGE_SECONDS = 120.0
"""A younger process may only have begun to load what it will hold."""
_DATA_WORKER = "pt_data_worker"
"""What torch names its data loader's workers (torch/utils/data/_utils/worker.py)."""
_HELPER_LINES = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "loky.backend.popen_loky",
    "_inductor/compile_worker",
)
"""What is in the command lines of children that Python's, joblib's and torch.compile's pools start."""
_KEEP_OUT = (
    "unless they work on the GPU on purpose, keep CUDA out of what they run (of a data loader: dataset, collate_fn, "
    "worker_init_fn) and, with spawn or forkserver, out of what the script does outside of "
    "'if __name__ == \"__main__\"'"
)
_OWN_GPU = (
    "call torch.cuda.set_device(local_rank) before anything else touches CUDA, load checkpoints with map_location, "
    "or give each rank a CUDA_VISIBLE_DEVICES of its own"
)


def find_helpers(context: RuleContext) -> list[Anomaly]:
    """Data loader workers and other children of a program that hold a CUDA context beside it."""
    found: dict[tuple[int, int], list[GpuProcess]] = defaultdict(list)
    for gpu, process in context.snapshot.processes():
        owner = _owner(context, process)
        if owner is not None:
            found[gpu.index, owner.pid].append(process)
    return [_helpers(gpu, context.processes[owner], members) for (gpu, owner), members in found.items()]


def _owner(context: RuleContext, process: GpuProcess) -> GpuProcess | None:
    """The program on a GPU whose helper the process is; None: it is none, or it does work of its own."""
    by_name = process.name == _DATA_WORKER
    by_line = any(line in (process.command or "") for line in _HELPER_LINES)
    parent = None if process.parent is None else context.processes.get(process.parent)
    by_fork = parent is not None and process.command is not None and parent.command == process.command
    if process.used_bytes is None or not (by_name or by_line or by_fork):
        return None
    above = (context.processes.get(pid) for pid in context.ancestors(process))
    owner = next((each for each in above if each and each.name != _DATA_WORKER), None)
    if owner is None or by_name:
        return owner
    small = _MIN_CONTEXT_BYTES <= process.used_bytes <= min(MAX_CONTEXT_BYTES, (owner.used_bytes or 0) // 2)
    if not small or context.age_seconds(process) < _MIN_AGE_SECONDS:
        return None
    return owner if by_line or _is_fork(context, process, owner) else None


def _is_fork(context: RuleContext, process: GpuProcess, parent: GpuProcess) -> bool:
    """It began with its parent's environment; a rank that its parent started has another one (Lightning)."""
    mine, theirs = context.origin_of(process), context.origin_of(parent)
    return mine is not None and theirs is not None and mine.environment == theirs.environment is not None


def _helpers(gpu_index: int, owner: GpuProcess, members: list[GpuProcess]) -> Anomaly:
    pids = tuple(sorted(member.pid for member in members))
    held = sum(member.used_bytes or 0 for member in members)
    loaders = all(member.name == _DATA_WORKER for member in members)
    one = len(pids) == 1
    what = ("data loader worker" if one else "data loader workers") if loaders else ("helper" if one else "helpers")
    thing = "a CUDA context" if held <= len(pids) * MAX_CONTEXT_BYTES else "GPU memory"
    hold = f"holds {thing}" if one else f"hold {thing} each"
    return Anomaly(
        kind="helpers",
        gpu_index=gpu_index,
        pids=pids,
        about=(owner.pid,),
        held_bytes=held,
        sentence=f"{len(pids)} {what} of process {owner.pid} ({format_pids(pids)}) {hold}: {format_gib(held)} GiB",
        advice=_KEEP_OUT,
    )


def find_rank_conflicts(context: RuleContext, helping: Collection[int]) -> Iterator[Anomaly]:
    """Ranks of one job that share a GPU, or leave a context on another rank's GPU.

    Args:
        context: what is seen.
        helping: pids of helpers, which repeat their rank's environment.
    """
    for job in _jobs(context, helping):
        by_home: dict[int, list[int]] = defaultdict(list)
        for pid in sorted(job, key=lambda pid: (job[pid], pid)):
            by_home[context.homes[pid]].append(pid)
        yield from _shared(context, job, by_home)
        yield from _strays(context, job, by_home)


def _jobs(context: RuleContext, helping: Collection[int]) -> list[dict[int, int]]:
    """The jobs of several ranks: each one's rank, by pid. One parent has started them: their launcher, or rank 0."""
    children: dict[int, list[GpuProcess]] = defaultdict(list)
    for process in context.processes.values():
        if process.parent is not None and process.parent > 1 and process.pid not in helping:
            children[process.parent].append(process)
    jobs = []
    for parent, members in children.items():
        first = context.processes.get(parent)
        if len(members) + (first is not None) < 2:
            continue
        numbers: dict[int, int] = {}
        for process in members:
            if context.age_seconds(process) < _MIN_AGE_SECONDS or "mps" in process.kinds:
                continue
            origin = context.origin_of(process)
            if origin is not None and origin.rank is not None and not origin.on_mig:
                numbers[process.pid] = origin.rank
        if numbers and first is not None and 0 not in numbers.values():
            origin = context.origin_of(first)
            if origin is not None and origin.environment is not None and origin.rank is None:
                numbers[parent] = 0
        if len(set(numbers.values())) > 1:
            jobs.append(numbers)
    return jobs


def _shared(context: RuleContext, job: dict[int, int], by_home: dict[int, list[int]]) -> Iterator[Anomaly]:
    for gpu_index, listed in by_home.items():
        pids = [
            pid for pid in listed if (context.processes[pid].used_bytes or 0) >= _MIN_CONTEXT_BYTES
        ]  # known to be there
        numbers = sorted({job[pid] for pid in pids})
        if len(numbers) < 2:
            continue
        held = sum(context.processes[pid].used_bytes or 0 for pid in pids)
        yield Anomaly(
            kind="shared",
            gpu_index=gpu_index,
            pids=tuple(pids),
            held_bytes=held,
            sentence=f"{_rank_words(numbers)} of one job sit on this one GPU ({format_pids(pids)}) and hold "
            f"{format_gib(held)} GiB together",
            advice=f"NCCL refuses two ranks on one GPU, and each slows the other: {_OWN_GPU}",
        )


def _strays(context: RuleContext, job: dict[int, int], by_home: dict[int, list[int]]) -> Iterator[Anomaly]:
    for gpu in context.snapshot.gpus:
        owners = by_home.get(gpu.index)
        strayed = [
            process
            for process in gpu.processes or ()
            if process.pid in job
            and context.homes[process.pid] != gpu.index
            and _MIN_CONTEXT_BYTES <= (process.used_bytes or 0) <= MAX_CONTEXT_BYTES
        ]
        if not owners or not strayed:
            continue
        held = sum(process.used_bytes or 0 for process in strayed)
        pids = tuple(sorted(process.pid for process in strayed))
        who = _rank_words(sorted(job[pid] for pid in pids))
        each = "a CUDA context" if len(pids) == 1 else "a CUDA context each"
        yield Anomaly(
            kind="strays",
            gpu_index=gpu.index,
            pids=pids,
            about=tuple(owners),
            held_bytes=held,
            sentence=f"{who} ({format_pids(pids)}), at home on other GPUs, hold{'s' * (len(pids) == 1)} {each} here: "
            f"{format_gib(held)} GiB of {_rank_words(sorted(job[pid] for pid in owners))}'s GPU",
            advice=_OWN_GPU,
        )


def _rank_words(numbers: list[int]) -> str:
    """``rank 1``, ``find_rank_conflicts 0 and 1``, ``find_rank_conflicts 1 to 7``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"
