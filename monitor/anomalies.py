"""Anomalies: processes that hold memory without working, leftovers of dead jobs, and jobs that hinder each other."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from vramtop.estimator.common.sizes import MIB, format_gib
from vramtop.estimator.common.trust import user_name

from .host.idleness import IdleTracker
from .host.plain_text import duration_text
from .host.process_directory import ENDED_NOTE, ZOMBIE_NOTE
from .host.process_origin import ProcessOrigin, read_origin
from .snapshot.snapshot import GpuProcess, GpuReading, Snapshot

# One anomaly on a GPU, and the context that the rules search for anomalies.


AnomalyKind = Literal["helpers", "shared", "strays", "forgotten", "ended", "unseen"]


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """An unusual use of GPU memory."""

    kind: AnomalyKind
    """`helpers`: data loader workers hold a CUDA context; `shared`: ranks share a GPU; `strays`: a rank uses another
    rank's GPU; `forgotten`: idle processes of your own; `ended`, `unseen`: memory of no visible process."""
    gpu: int
    """NVML index of the GPU."""
    pids: tuple[int, ...]
    """The processes; empty: memory of no visible process."""
    about: tuple[int, ...] = ()
    """Other processes that it concerns: the owner of helpers, the rank whose GPU it is."""
    held_bytes: int
    """Bytes that these processes hold on this GPU."""
    sentence: str
    """The anomaly in words."""
    advice: str
    """What to do about it."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that stays the same while the anomaly lasts."""
        return self.kind, self.gpu, self.about if self.kind in ("helpers", "strays") else self.pids

    def concerns(self, pids: Iterable[int]) -> bool:
        """Return True if it involves one of these processes."""
        return not {*self.pids, *self.about}.isdisjoint(pids)


class RuleContext(msgspec.Struct):
    """One snapshot with everything else that the rules know about its processes."""

    snapshot: Snapshot
    live: bool
    """The processes run on this machine now, so more can be read about them."""
    viewer: str | None
    """Name of the user for whom vramtop runs."""
    idle: IdleTracker
    origin_of: Callable[[GpuProcess], ProcessOrigin | None]
    home_gpus: dict[int, int]
    """By pid, the index of the GPU on which a process holds the most memory."""
    processes: dict[int, GpuProcess]
    """By pid, the process as listed on its home GPU."""

    def age_seconds(self, process: GpuProcess) -> float:
        """Return the process's age; 0 if it is unknown."""
        return 0.0 if process.start_time is None else max(0.0, self.snapshot.time - process.start_time)

    def ancestors(self, process: GpuProcess) -> tuple[int, ...]:
        """Return the pids of a process's parent, its parent's parent and so on, as far as they are known."""
        origin = self.origin_of(process)
        if origin is not None:
            return origin.ancestors
        found: list[int] = []
        parent = process.parent
        while parent is not None and parent not in found:
            found.append(parent)
            above = self.processes.get(parent)
            parent = above.parent if above else None
        return tuple(found)


def format_pids(pids: Sequence[int]) -> str:
    """Return the pids in words: ``process 4711``, ``processes 4711, 4712 and 5 more``."""
    shown = ", ".join(str(pid) for pid in pids[:3])
    rest = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f"process{'es' * (len(pids) > 1)} {shown}{rest}"


# Anomalies inside one job: helper processes with a CUDA context of their own, and ranks that share a GPU.


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
_HELPER_ADVICE = (
    "unless they use the GPU on purpose, keep CUDA out of their code (of a data loader: dataset, collate_fn, "
    "worker_init_fn) and, with spawn or forkserver, out of script code outside 'if __name__ == \"__main__\"'"
)
_ONE_GPU_PER_RANK_ADVICE = (
    "call torch.cuda.set_device(local_rank) before any other CUDA call, load checkpoints with map_location, or give "
    "each rank its own CUDA_VISIBLE_DEVICES"
)


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
    return owner if by_line or _is_fork(context, process, owner) else None


def _is_fork(context: RuleContext, process: GpuProcess, parent: GpuProcess) -> bool:
    """True if it has its parent's environment; a rank that its parent started has another one (Lightning)."""
    own, parents = context.origin_of(process), context.origin_of(parent)
    return own is not None and parents is not None and own.environment == parents.environment is not None


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


# Leftovers in GPU memory: forgotten processes, processes that have ended, memory of no visible process.


_MIN_IDLE_SECONDS = 1800.0
"""Torch's longest default timeout: a process that waits for another rank has given up by then."""
_MIN_HIDDEN_BYTES = 512 * MIB
"""Twice what GPUs with a display were seen to hold outside of processes (260 MiB); GPUs without one hold 20 MiB."""
_MIN_HELD_BYTES = 64 * MIB


def find_forgotten(context: RuleContext, helper_pids: Collection[int]) -> Iterator[Anomaly]:
    """Find idle processes of the viewer that are orphans, or beside which the viewer has started a later process.

    Args:
        context: the snapshot with its processes.
        helper_pids: of helper processes, which are reported separately.
    """
    if not context.live:
        return
    idle = {pid for pid, process in context.processes.items() if _is_idle(context, process)}
    working = [process for pid, process in context.processes.items() if pid not in idle]
    mine = [process for process in context.processes.values() if process.user == context.viewer]
    for process in mine:
        excluded = process.note is not None or (process.used_bytes or 0) < _MIN_HELD_BYTES
        if process.pid not in idle or process.pid in helper_pids or excluded or _uses_gpu(context, process):
            continue
        later = _later_process(context, process, mine)
        origin = context.origin_of(process)
        orphan = origin is not None and origin.orphan
        if (later or orphan) and not any(_are_related(context, process, other) for other in working):
            yield _forgotten_anomaly(context, process, later)


def _is_idle(context: RuleContext, process: GpuProcess) -> bool:
    now = context.snapshot.time
    idle = context.idle.idle_seconds(process, now) or 0.0
    return idle >= _MIN_IDLE_SECONDS or context.idle.hardly_ever_worked(process, now)


def _uses_gpu(context: RuleContext, process: GpuProcess) -> bool:
    """True if it is alone on its GPU, and the GPU is not idle."""
    gpu = next(gpu for gpu in context.snapshot.gpus if gpu.index == context.home_gpus[process.pid])
    return len(gpu.processes or ()) == 1 and gpu.utilisation_percent != 0


def _later_process(context: RuleContext, process: GpuProcess, mine: list[GpuProcess]) -> GpuProcess | None:
    """Return the viewer's latest process on the same GPU that started after this one and is unrelated to it."""
    home = context.home_gpus[process.pid]
    later = [
        other
        for other in mine
        if context.home_gpus[other.pid] == home
        and other.start_time is not None
        and process.start_time is not None
        and other.start_time > process.start_time
        and not _are_related(context, process, other)
    ]
    return max(later, key=lambda other: other.start_time or 0.0, default=None)


def _are_related(context: RuleContext, process: GpuProcess, other: GpuProcess) -> bool:
    """True if one started the other, or both have one parent; notebooks of one server are not related."""
    if process.pid in context.ancestors(other) or other.pid in context.ancestors(process):
        return True
    siblings = process.parent is not None and process.parent > 1 and process.parent == other.parent
    return siblings and not _is_notebook(process)


def _is_notebook(process: GpuProcess) -> bool:
    return "ipykernel" in (process.command or "")


def _forgotten_anomaly(context: RuleContext, process: GpuProcess, later: GpuProcess | None) -> Anomaly:
    now, held = context.snapshot.time, process.used_bytes or 0
    idle = context.idle.idle_seconds(process, now) or 0.0
    what = "Jupyter kernel" if _is_notebook(process) else "process"
    age = duration_text(context.age_seconds(process))
    does = (
        f"has been idle for {duration_text(idle)}"
        if idle >= _MIN_IDLE_SECONDS
        else f"has used {duration_text(process.cpu_seconds or 0.0)} of CPU time in total"
    )
    why = f"you have started {later.pid} on this GPU since" if later else "the program that started it has ended"
    kill = f"'kill {process.pid}' frees its memory"
    return Anomaly(
        kind="forgotten",
        gpu=context.home_gpus[process.pid],
        pids=(process.pid,),
        about=() if later is None else (later.pid,),
        held_bytes=held,
        sentence=f"your {what} {process.pid}, started {age} ago, holds {format_gib(held)} GiB and {does}; {why}",
        advice=f"if it is no longer needed, {'shutting it down in Jupyter or ' if _is_notebook(process) else ''}{kill}",
    )


def find_ended(context: RuleContext) -> Iterator[Anomaly]:
    """Find processes that have ended and whose memory is still held."""
    for gpu, process in context.snapshot.processes():
        note = process.note or ""
        if not process.used_bytes or not note.startswith((ENDED_NOTE, ZOMBIE_NOTE)):
            continue
        zombie = note.startswith(ZOMBIE_NOTE) and process.parent is not None
        why = (
            f"its parent {process.parent} has not reaped it: end the parent"
            if zombie
            else "one of its threads may hang in the driver, or another process shares the memory"
        )
        yield Anomaly(
            kind="ended",
            gpu=gpu.index,
            pids=(process.pid,),
            held_bytes=process.used_bytes,
            sentence=(f"process {process.pid} has ended, but {format_gib(process.used_bytes)} GiB are still held"),
            advice=why,
        )


def find_hidden_memory(context: RuleContext) -> Iterator[Anomaly]:
    """Find memory of no visible process, beyond the driver's own."""
    for gpu in context.snapshot.gpus:
        rest = gpu.unattributed_bytes
        if (
            rest is not None
            and rest >= _MIN_HIDDEN_BYTES
            and gpu.reserved_bytes is not None
            and not _is_host_memory(gpu)
        ):
            yield _hidden_memory(gpu, rest)


def _is_host_memory(gpu: GpuReading) -> bool:
    """Return True for a model that shares the host's memory, also where its driver answers as if it did not."""
    from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # rarely needed, and reads the catalogue

    model = match_nvml_name(gpu.name, None) if gpu.name else None
    return model is not None and model.unified


def _hidden_memory(gpu: GpuReading, rest: int) -> Anomaly:
    others = "a process that is hidden from here (another container)"
    if gpu.processes:
        others = f"{others}, or memory that the visible ones share with the host (cudaMallocManaged)"
    return Anomaly(
        kind="unseen",
        gpu=gpu.index,
        pids=(),
        held_bytes=rest,
        sentence=f"{format_gib(rest)} GiB do not belong to any visible process",
        advice=f"the owner may be {others}; if there is none, an ended process left this memory, and a GPU reset frees "
        "it",
    )


# Finds anomalies on the GPUs over time: the rules' findings that last long enough.


OriginReader = Callable[[int, float | None], ProcessOrigin | None]

SCAN_INTERVAL_SECONDS = 2.0
"""Anomalies last minutes; scanning every snapshot would only cost time."""
_MIN_DURATION_SECONDS = 10.0
"""Shorter anomalies are not reported: starting and ending processes look anomalous for a moment."""
_LINGER_SECONDS = 10.0
"""Time for which an anomaly that is no longer found is still reported, if its processes exist and its GPU answers."""


class AnomalyDetector:
    """Finds anomalies, snapshot by snapshot. Not thread-safe.

    Args:
        min_duration_seconds: shorter anomalies are not reported; 0 for a single snapshot.
        origin_of: reads a process's origin; called once per process, and never for recordings.
        viewer: user whose forgotten processes are reported; None: the one who runs vramtop.
    """

    def __init__(
        self,
        *,
        min_duration_seconds: float = _MIN_DURATION_SECONDS,
        origin_of: OriginReader = read_origin,
        viewer: str | None = None,
    ) -> None:
        self._min_duration_seconds = min_duration_seconds
        self._read_origin = origin_of
        self._viewer = viewer
        self._idle = IdleTracker()
        self._origins: dict[tuple[int, float | None, int | None], ProcessOrigin | None] = {}
        self._first_found: dict[tuple[object, ...], float] = {}
        self._last_found: dict[tuple[object, ...], tuple[float, Anomaly]] = {}
        self._scanned_at: float | None = None
        self._reported: tuple[Anomaly, ...] = ()

    def update(self, snapshot: Snapshot) -> tuple[Anomaly, ...]:
        """Return the present anomalies, by GPU.

        Args:
            snapshot: later than the one before; an earlier one (a recording that begins again) resets the detector.
        """
        now = snapshot.time
        if self._scanned_at is not None and 0 <= now - self._scanned_at < SCAN_INTERVAL_SECONDS:
            return self._reported
        if self._scanned_at is not None and now < self._scanned_at:
            self._idle, self._first_found, self._last_found = IdleTracker(), {}, {}
        self._scanned_at = now
        found = {anomaly.identity: anomaly for anomaly in self._find(snapshot)}
        self._last_found = self._lingering(snapshot) | {identity: (now, each) for identity, each in found.items()}
        self._first_found = {identity: self._first_found.get(identity, now) for identity in self._last_found}
        lasting = [
            anomaly
            for identity, (_, anomaly) in self._last_found.items()
            if now - self._first_found[identity] >= self._min_duration_seconds
        ]
        self._reported = tuple(sorted(lasting, key=lambda each: (each.gpu, -each.held_bytes, each.pids)))
        return self._reported

    def _lingering(self, snapshot: Snapshot) -> dict[tuple[object, ...], tuple[float, Anomaly]]:
        """Return the earlier anomalies that may still exist, even if they are not found in this snapshot."""
        present = {process.pid for _, process in snapshot.processes()}
        readable = {gpu.index for gpu in snapshot.gpus if gpu.used_bytes is not None or gpu.processes is not None}
        return {
            identity: (time, anomaly)
            for identity, (time, anomaly) in self._last_found.items()
            if snapshot.time - time <= _LINGER_SECONDS and anomaly.gpu in readable and present.issuperset(anomaly.pids)
        }

    def _find(self, snapshot: Snapshot) -> list[Anomaly]:
        context = self._rule_context(snapshot)
        self._idle.update(snapshot)
        helpers = find_helpers(context)
        helper_pids = {pid for anomaly in helpers for pid in anomaly.pids}
        found = [
            *helpers,
            *find_rank_conflicts(context, helper_pids),
            *find_forgotten(context, helper_pids),
            *find_ended(context),
            *find_hidden_memory(context),
        ]
        keys = {(process.pid, process.start_time, process.parent) for process in context.processes.values()}
        self._origins = {key: origin for key, origin in self._origins.items() if key in keys}
        return found

    def _rule_context(self, snapshot: Snapshot) -> RuleContext:
        processes: dict[int, GpuProcess] = {}
        home_gpus: dict[int, int] = {}
        for gpu, process in snapshot.processes():
            before = processes.get(process.pid)
            if before is None or (before.used_bytes or 0) < (process.used_bytes or 0):
                processes[process.pid], home_gpus[process.pid] = process, gpu.index
        live = snapshot.source.is_live
        if live and self._viewer is None:
            self._viewer = user_name(os.getuid())
        return RuleContext(
            snapshot=snapshot,
            live=live,
            viewer=self._viewer,
            idle=self._idle,
            origin_of=self._origin if live else lambda _: None,
            home_gpus=home_gpus,
            processes=processes,
        )

    def _origin(self, process: GpuProcess) -> ProcessOrigin | None:
        """Return a process's origin: read once, and again when its parent changes."""
        key = process.pid, process.start_time, process.parent
        if key not in self._origins:
            self._origins[key] = self._read_origin(process.pid, process.start_time)
        return self._origins[key]


# The JSON of an anomaly, key by key (``anomalies``); its schema is made from these types.
