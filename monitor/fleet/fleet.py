"""The fleet: readings of many hosts at one moment, their sums, and the runs that span them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
from msgspec import Struct

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.secrets import displayed

from ..board.divergence import DIVERGING
from ..board.fit import unusable_reason
from ..host.kinds import kind_label
from ..host.plain_text import displayed_line
from ..snapshot.snapshot import ASLEEP, NOT_LISTED, MigDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from ..board.board import Board, GpuRow, PendingRow, ProcessRow
    from ..snapshot.snapshot import DeviceIndex, GpuReading, ProcessKey

# A run over several hosts: its ranks, the rank with the highest peak, its spread, stragglers and divergence.


_STATUS_ORDER = (
    "out_of_memory",
    "over",
    "growing",
    "under",
    "unknown",
    "incomplete",
    "loading",
    "warming_up",
    "on_budget",
)
"""Worst first."""
_EARLY = ("loading", "warming_up")
_STEPS_APART = 2
"""Ranks that train together are at the same step or the next one."""


class FleetRank(msgspec.Struct, frozen=True):
    """One process of a run on one GPU of one host."""

    host: HostReading
    gpu: FleetGpu
    process: FleetProcess

    @property
    def is_live(self) -> bool:
        """True if its figures are of now."""
        return self.host.is_live and not self.gpu.is_stale

    @property
    def rank(self) -> int | None:
        """Rank over all hosts."""
        return None if self.process.facts is None else self.process.facts.rank

    @property
    def peak_bytes(self) -> int | None:
        """The most that it was seen to hold; what it holds if its peak is unknown."""
        known = [size for size in (self.process.peak_bytes, self.process.used_bytes) if size is not None]
        return max(known, default=None)

    @property
    def label(self) -> str:
        """Where it is: ``rank 9 on node02, GPU 1``."""
        number = (
            f"rank {self.rank}" if self.rank is not None else f"pid {self.process.pid}" if self.process.pid else "it"
        )
        return f"{number} on {self.host.host}, GPU {self.process.device or self.gpu.shown_label}"


@dataclass(frozen=True)
class FleetRun:
    """One run: the processes that train one job together, on one host or several."""

    key: tuple[Hashable, ...]
    """Key of the run, equal in every fleet."""
    ranks: tuple[FleetRank, ...]
    """By rank, as far as the ranks are known. A rank on several GPUs is listed once per GPU."""

    @cached_property
    def job(self) -> str | None:
        """Label of its job; None: unknown."""
        return next((rank.process.job for rank in self.ranks if rank.process.job), None)

    @cached_property
    def user(self) -> str | None:
        """Its user; None: unknown."""
        return next((rank.process.user for rank in self.ranks if rank.process.user), None)

    @cached_property
    def hosts(self) -> tuple[HostReading, ...]:
        """Its hosts, each once."""
        return tuple({rank.host.host: rank.host for rank in self.ranks}.values())

    @cached_property
    def live_ranks(self) -> tuple[FleetRank, ...]:
        """The ranks whose figures are of now; all figures below are of these."""
        return tuple(rank for rank in self.ranks if rank.is_live)

    @cached_property
    def world_size(self) -> int | None:
        """Ranks over all hosts, as the ranks say; None: they do not."""
        known = [rank.process.facts.world_size for rank in self.ranks if rank.process.facts]
        return max((size for size in known if size is not None), default=None)

    @cached_property
    def rank_count(self) -> int:
        """Ranks that were found, whether their figures are of now or not."""
        return len({(rank.host.host, *_identity(rank)) for rank in self.ranks})

    @property
    def unseen_ranks(self) -> int:
        """Ranks that no host of the fleet shows, by the world size."""
        return max(0, (self.world_size or 0) - self.rank_count)

    @cached_property
    def highest(self) -> FleetRank | None:
        """The rank with the highest peak; None if no figure is known."""
        known = [rank for rank in self.live_ranks if rank.peak_bytes is not None]
        return max(known, key=lambda rank: rank.peak_bytes or 0, default=None)

    @cached_property
    def used_bytes(self) -> int | None:
        """Memory of the live ranks of known size together; None: no size is known."""
        sizes = [rank.process.used_bytes for rank in self.live_ranks if rank.process.used_bytes is not None]
        return sum(sizes) if sizes else None

    @cached_property
    def is_partial(self) -> bool:
        """True if ``used_bytes`` is a lower bound: a rank is silent, unseen, or of unknown size."""
        silent = len(self.live_ranks) < len(self.ranks)
        return silent or self.unseen_ranks > 0 or any(rank.process.used_bytes is None for rank in self.live_ranks)

    @cached_property
    def spread_bytes(self) -> int | None:
        """Difference between the highest and the lowest live rank; None for one rank or an unknown size."""
        sizes = [rank.process.used_bytes for rank in self.live_ranks]
        known = [size for size in sizes if size is not None]
        return max(known) - min(known) if len(known) == len(sizes) > 1 else None

    @cached_property
    def budget_bytes(self) -> int | None:
        """Predicted memory of all ranks of its world size in the steady state; None: no rank has a budget.

        Ranks that no host shows, or that have no budget of their own, count as the largest budget that is known.
        """
        known = [rank.process.budget_bytes for rank in self.ranks if rank.process.budget_bytes is not None]
        if not known:
            return None
        return sum(known) + max(known) * max(0, (self.world_size or len(self.ranks)) - len(known))

    @cached_property
    def status(self) -> str | None:
        """Worst status of its live ranks; None: none is compared with a budget."""
        found = {rank.process.status for rank in self.live_ranks if rank.process.status}
        worst = next((status for status in _STATUS_ORDER if status in found), None)
        return worst or next(iter(sorted(found)), None)

    @cached_property
    def diverging(self) -> tuple[FleetRank, ...]:
        """The live ranks whose status needs attention, worst first."""
        found = [rank for rank in self.live_ranks if rank.process.diverges]
        return tuple(sorted(found, key=lambda rank: _STATUS_ORDER.index(rank.process.status or "unknown")))

    @cached_property
    def stragglers(self) -> tuple[FleetRank, ...]:
        """Live ranks that are behind the others: by their steps, or still loading while most are past that.

        Hosts are read at different times, so a rank may be behind by as many steps as fit into the difference.
        """
        behind = {id(rank) for rank in self._behind_by_steps()}
        early = [rank for rank in self.live_ranks if rank.process.status in _EARLY]
        judged = [rank for rank in self.live_ranks if rank.process.status is not None]
        if 0 < len(early) * 2 < len(judged):
            behind |= {id(rank) for rank in early}
        return tuple(rank for rank in self.live_ranks if id(rank) in behind)

    def _behind_by_steps(self) -> list[FleetRank]:
        counted = [rank for rank in self.live_ranks if rank.process.steps is not None and rank.process.steps_at]
        seconds = [rank.process.step_seconds for rank in counted if rank.process.step_seconds]
        if len(counted) < 2 or not seconds:
            return []
        one_step = median(seconds)
        front = max(counted, key=lambda rank: rank.process.steps or 0).process
        return [rank for rank in counted if _steps_behind(rank.process, front, one_step) > _STEPS_APART]


def _identity(rank: FleetRank) -> tuple[object, ...]:
    """Return what tells a rank from the others on its host: its process, or its GPU where that is not known."""
    process = rank.process
    return (rank.gpu.index,) if process.pid is None else (process.pid, process.start_time, rank.rank)


def _steps_behind(process: FleetProcess, front: FleetProcess, one_step: float) -> float:
    """Return by how many steps a rank is behind, less those that fit into the time between the two readings."""
    later = (front.steps_at or 0.0) - (process.steps_at or 0.0)
    return (front.steps or 0) - (process.steps or 0) - abs(later) / one_step


# Joins a rank 0 that calls its own host ``localhost`` with the ranks elsewhere that name that host.
#
# Kubeflow's pytorch-operator sets MASTER_ADDR so (``setClusterSpec`` in ``pkg/controller.v1/pytorch/pod.go``):
# ``localhost`` in the pod of the master, the name of its service in the others, of which nobody here knows the host.


if TYPE_CHECKING:
    RunKey = tuple[Hashable, ...]
    """Key of a run: the kind of the fact that names it, and the fact."""

_LOOPBACK = ("localhost", "0.0.0.0", "::1", "::", "[::1]", "[::]")  # noqa: S104 - compared, not listened on


def is_loopback(address: str) -> bool:
    """Return True if an address means the host itself."""
    return address in _LOOPBACK or address.startswith("127.")


def join_local_masters(members: dict[RunKey, list[FleetRank]]) -> None:
    """Move the ranks of a local master to the run that they complete, if it is the only one that they can belong to.

    It has the same port, world size, job and user, other ranks, and no rank 0.

    Args:
        members: ranks by key; changed in place.
    """
    found = {key: list(_completed_by(key, ranks, members)) for key, ranks in members.items() if _is_local(key, ranks)}
    chosen = {key: runs[0] for key, runs in found.items() if len(runs) == 1}
    for key, run in chosen.items():
        if list(chosen.values()).count(run) == 1:
            members[run] += members.pop(key)


def _is_local(key: RunKey, ranks: Sequence[FleetRank]) -> bool:
    """Return True for a rank 0 that waits on its own host for ranks that are not there."""
    numbers = _numbers(ranks)
    if key[0] != "master" or 0 not in numbers or not isinstance(key[-1], int) or len(numbers) >= key[-1]:
        return False
    masters = [rank.process.facts.master for rank in ranks if rank.process.facts]
    return all(master and is_loopback(master.rpartition(":")[0].lower()) for master in masters)


def _completed_by(key: RunKey, ranks: Sequence[FleetRank], members: dict[RunKey, list[FleetRank]]) -> Iterator[RunKey]:
    numbers, names = _numbers(ranks), _names(ranks)
    for other, theirs in members.items():
        if other[0] == "master" and other != key and other[-1] == key[-1] and _port(other) == _port(key):
            missing = _numbers(theirs)
            if 0 not in missing and not numbers & missing and _names(theirs) == names:
                yield other


def _numbers(ranks: Sequence[FleetRank]) -> set[int]:
    return {rank.rank for rank in ranks if rank.rank is not None}


def _names(ranks: Sequence[FleetRank]) -> set[tuple[str | None, str | None]]:
    return {(rank.process.job, rank.process.user) for rank in ranks}


def _port(key: RunKey) -> str:
    return str(key[1]).rpartition(":")[2]


# Groups processes into runs: ranks of one run on several hosts are one run.
#
# Facts of the environment decide, the most telling first: the address and port at which ranks meet, the rendezvous id
# of torchrun, the group of pods, the Ray job, the Slurm job. Processes with no such fact are runs of their own host.


def group_ranks(hosts: Iterable[HostReading]) -> tuple[FleetRun, ...]:
    """Return the runs on these hosts, in the order in which their first ranks are listed.

    A process is in a run if its job is known, or if its environment says which run it is a rank of.
    """
    members: dict[RunKey, list[FleetRank]] = {}
    for host in hosts:
        for key, rank in _ranks_of(host):
            members.setdefault(key, []).append(rank)
    join_local_masters(members)
    runs = (run for key, ranks in members.items() for run in _without_clashes(key, ranks))
    return tuple(FleetRun(key, tuple(sorted(ranks, key=_order))) for key, ranks in runs)


def _ranks_of(host: HostReading) -> Iterator[tuple[RunKey, FleetRank]]:
    """Yield the processes of a host that are in a run; one rank's environment speaks for all of its run on the host."""
    found = [
        FleetRank(host, gpu, process)
        for gpu in host.gpus
        for process in gpu.processes or ()
        if process.job is not None or process.facts is not None
    ]
    spanning: dict[int, RunKey] = {}
    for rank in found:
        facts = rank.process.facts
        if rank.process.run is not None and facts and (key := _spanning_key(host.host, facts)):
            spanning.setdefault(rank.process.run, key)
    for rank in found:
        yield _run_key(host.host, rank.process, spanning), rank


def _run_key(host: str, process: FleetProcess, spanning: Mapping[int, RunKey]) -> RunKey:
    """Return the key of the run of a process: equal for all its ranks, whichever host they are on."""
    if process.run is not None and process.run in spanning:
        return spanning[process.run]
    key = None if process.facts is None else _spanning_key(host, process.facts)
    if key is not None:
        return key
    if process.run is not None:
        return ("run", host, process.run)
    if process.pid is not None:
        return ("process", host, process.pid, process.start_time)
    return ("job", host, process.job, process.user)


def _spanning_key(host: str, facts: RankFacts) -> RunKey | None:
    """Return the key of a run that may have ranks on other hosts; None: its environment names none."""
    identity = None if facts.world_size == 1 else _identity_group_ranks(host, facts)
    return None if identity is None else (*identity, facts.world_size)


def _identity_group_ranks(host: str, facts: RankFacts) -> RunKey | None:
    """Return the most telling fact about a run; None: there is none."""
    if facts.master:
        return ("master", _normal_address(facts.master, host))
    if facts.rendezvous:
        return ("rendezvous", facts.rendezvous)
    if facts.pod_group:
        return ("pod group", facts.pod_group)
    if facts.ray_job:
        return ("ray", facts.ray_job)
    if facts.slurm_job:
        return ("slurm", facts.slurm_job.partition(".")[0])
    return None


def _normal_address(master: str, host: str) -> str:
    """Return an address as all hosts of a run would name it: the short name in small letters; loopback is this host."""
    address, _, port = master.rpartition(":")
    address = address.lower().rstrip(".")
    if is_loopback(address):
        address = host.lower().rpartition("@")[2]
    if not address.replace(".", "").isdigit() and ":" not in address:
        address = address.partition(".")[0]
    return f"{address}:{port}"


def _without_clashes(key: RunKey, ranks: Sequence[FleetRank]) -> Iterable[tuple[RunKey, Sequence[FleetRank]]]:
    """Return the ranks of one key; if one rank is on two hosts, those of each Slurm step, or else of each host."""
    if not _clash(ranks):
        return [(key, ranks)]
    steps = _grouped(ranks, lambda rank: rank.process.facts.slurm_job if rank.process.facts else None)
    if len(steps) > 1 and not any(_clash(each) for each in steps.values()):
        return [((*key, step), each) for step, each in steps.items()]
    return [((*key, host), each) for host, each in _grouped(ranks, lambda rank: rank.host.host).items()]


def _clash(ranks: Sequence[FleetRank]) -> bool:
    """Return True if one rank is on two hosts now; a run may have been restarted elsewhere when a host went silent."""
    hosts_of: dict[int, str] = {}
    known = (rank for rank in ranks if rank.rank is not None and rank.is_live)
    return any(hosts_of.setdefault(rank.rank or 0, rank.host.host) != rank.host.host for rank in known)


def _grouped(ranks: Sequence[FleetRank], by: Callable[[FleetRank], Hashable]) -> dict[Hashable, list[FleetRank]]:
    groups: dict[Hashable, list[FleetRank]] = {}
    for rank in ranks:
        groups.setdefault(by(rank), []).append(rank)
    return groups


def _order(rank: FleetRank) -> tuple[bool, int, str, int]:
    return (rank.rank is None, rank.rank or 0, rank.host.host, rank.gpu.index)


# Reading of one host: its GPUs and processes as the board of that host shows them. Immutable; sizes are bytes.
#
# These records are also the lines that ``vramtop stream`` writes, so their fields are part of its schema. A figure
# that is unknown is None. The records hold plain values only and are not tracked by the garbage collector: a thousand
# hosts are read every few seconds.


HostState = Literal["live", "connecting", "silent", "unreachable"]
"""``live``: its figures are of now. ``connecting``: it has not been asked for the first time. ``silent``: it has said
nothing for a while. ``unreachable``: it cannot be asked.

Figures of a host that is not live are from an earlier time: they are shown with their age, or not at all."""


class RankFacts(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the environment of a process says of the run that it is a rank of; None: it says nothing."""

    rank: int | None = None
    """Rank over all hosts: ``RANK``, and its like of Open MPI, PMI and Slurm steps."""
    local_rank: int | None = None
    """Rank on its host: ``LOCAL_RANK``, likewise."""
    world_size: int | None = None
    """Ranks of the run over all hosts: ``WORLD_SIZE``, likewise."""
    rendezvous: str | None = None
    """Run id of torchrun (``TORCHELASTIC_RUN_ID``), or namespace of PMIx."""
    master: str | None = None
    """``MASTER_ADDR:MASTER_PORT``."""
    slurm_job: str | None = None
    """Slurm job and step, such as ``4711.0``."""
    pod_group: str | None = None
    """Group of pods that were started together: ``VRAMTOP_POD_GROUP``, which a manifest may set to the label that names
    the group; else ``LWS_LEADER_ADDRESS``, the leader of a LeaderWorkerSet's group."""
    ray_job: str | None = None
    """Address of the Ray cluster, and ``RAY_JOB_ID``."""


class FleetProcess(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One process on one GPU beside the budget of its job."""

    pid: int | None = None
    """Its process id; None: the source knows its job only."""
    start_time: float | None = None
    """Unix seconds by the clock of its host."""
    used_bytes: int | None = None
    """Bytes that the process holds, as NVML counts them."""
    peak_bytes: int | None = None
    """The most that it was seen to hold."""
    user: str | None = None
    """Its user."""
    command: str | None = None
    """First 200 characters of its command line, without secrets and control characters."""
    kind: str | None = None
    """What it is, in a word or two, such as ``vLLM``; None: unknown."""
    job: str | None = None
    """Label of its job; None: unknown."""
    budget_bytes: int | None = None
    """Memory of this rank in the steady state, as its budget predicts it."""
    low_bytes: int | None = None
    """Lower bound of the budget's peak."""
    high_bytes: int | None = None
    """Upper bound of the budget's peak."""
    status: str | None = None
    """Comparison with its budget: ``loading``, ``warming_up``, ``on_budget``, ``over``, ``under``, ``growing``,
    ``incomplete``, ``ended``, ``out_of_memory``, ``unknown``; None: it has no budget."""
    sentence: str | None = None
    """The status in words; None: it has no budget."""
    full_seconds: float | None = None
    """Time until it has filled its GPU, if it goes on growing as it does; None: it does not grow, or unknown."""
    note: str | None = None
    """Why it has no budget, in a word or two, or what is unusual about the process; None: nothing."""
    missing: tuple[str, ...] = ()
    """Job keys that its budget guesses."""
    steps: int | None = None
    """Training steps completed, as its probe says; None: it runs without one."""
    step_seconds: float | None = None
    """Duration of its last step."""
    steps_at: float | None = None
    """Unix seconds at which ``steps`` was true."""
    device: str | None = None
    """Label of the MIG device that it runs in; None: the whole GPU."""
    run: int | None = None
    """Pid of the first rank of its run on its host; None: its run is unknown."""
    facts: RankFacts | None = None
    """Its place in a run; None: its environment is hidden, or names none."""

    @property
    def diverges(self) -> bool:
        """True if its status needs attention."""
        return self.status in DIVERGING


class FleetGpu(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One GPU, or one of its MIG devices."""

    index: int
    """NVML index."""
    label: str | None = None
    """Its label: ``0:3`` for a MIG device; None: its index is."""
    uuid: str | None = None
    """UUID."""
    name: str | None = None
    """Name of the card."""
    total_bytes: int | None = None
    """Its memory."""
    used_bytes: int | None = None
    """Used memory."""
    reserved_bytes: int | None = None
    """Reserved by driver and firmware, unavailable to jobs."""
    free_bytes: int | None = None
    """What a new job can have."""
    committed_bytes: int | None = None
    """Free bytes that running jobs will yet allocate, or that are reserved; None: unknown."""
    unattributed_bytes: int | None = None
    """Used memory that belongs to no process; None: unknown."""
    utilisation_percent: int | None = None
    """Share of time in which a program ran on it."""
    is_stale: bool = False
    """The driver hangs: the figures are from an earlier reading."""
    is_asleep: bool = False
    """It saves power, and is not queried, which would wake it."""
    fault: str | None = None
    """Why its memory or its processes are unknown, in one sentence; None: they are known."""
    is_lost: bool = False
    """Nothing of it can be read: it has fallen off the bus, or must be reset."""
    closed: str | None = None
    """Why no program can be started on it, whatever is free: its compute mode, MIG mode without a device, it is lost;
    None: programs can be started."""
    processes: tuple[FleetProcess, ...] | None = None
    """Processes on it, largest first; None: could not be read."""
    devices: tuple[FleetGpu, ...] = ()
    """Its MIG devices, without their processes, which are listed with the GPU."""

    @property
    def shown_label(self) -> str:
        """Label on screens."""
        return self.label or str(self.index)


class FleetPending(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A pending job of a host."""

    job: str
    """Label of the job."""
    verdict: str
    """Whether it fits: ``fits``, ``tight``, ``does_not_fit``, ``unknown``."""
    device_bytes: int | None = None
    """Predicted peak on one device."""
    sentence: str | None = None
    """The verdict in words."""


class HostTotals(Struct, frozen=True, gc=False, kw_only=True):
    """Sums over the GPUs of one host, or of many."""

    gpus: int = 0
    """GPUs with known figures of now."""
    unknown_gpus: int = 0
    """GPUs without: their memory is unknown or stale."""
    total_bytes: int = 0
    used_bytes: int = 0
    free_bytes: int = 0
    committed_bytes: int = 0
    unattributed_bytes: int = 0
    unattributed_unknown: int = 0
    """GPUs whose unattributed memory is unknown: the sum is a lower bound."""
    processes: int = 0
    diverging: int = 0
    """Processes whose status needs attention."""


class HostReading(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One host at one moment. Whoever merges hosts says whether it is live: a host cannot know that of itself."""

    host: str
    """Name under which the user knows it."""
    time: float | None = None
    """Unix seconds of the reading by the clock of the host; None: it was never read."""
    gpus: tuple[FleetGpu, ...] = ()
    """Its GPUs."""
    pending: tuple[FleetPending, ...] = ()
    """Its pending jobs."""
    anomalies: tuple[str, ...] = ()
    """Sentences about what should not be on its GPUs."""
    faults: tuple[str, ...] = ()
    """Sentences about what cannot be read."""
    unlisted: tuple[str, ...] = ()
    """Faults about GPUs that the driver no longer lists."""
    driver_version: str | None = None
    """Version of the host's driver."""
    vramtop_version: str | None = None
    """Version of vramtop on the host."""
    interval: float | None = None
    """Seconds between two of its readings."""
    state: HostState = "live"
    """Whether its figures are of now: whoever merges hosts says so, a host cannot know it of itself."""
    since: float | None = None
    """Unix seconds, by the clock of this machine, of its last sign of life; None: there was none."""
    reason: str | None = None
    """Why it is not live, in one sentence; None: it is, or nobody knows."""

    @property
    def is_live(self) -> bool:
        """True if the figures are of now."""
        return self.state == "live"

    @cached_property
    def totals(self) -> HostTotals:
        """Sums over its GPUs as of ``time``; GPUs whose driver hangs count as unknown."""
        known = [gpu for gpu in self.gpus if gpu.total_bytes is not None and gpu.free_bytes is not None]
        fresh = [gpu for gpu in known if not gpu.is_stale]
        rows = [row for gpu in self.gpus if not gpu.is_stale for row in gpu.processes or ()]
        return HostTotals(
            gpus=len(fresh),
            unknown_gpus=len(self.gpus) - len(fresh),
            total_bytes=sum(gpu.total_bytes or 0 for gpu in fresh),
            used_bytes=sum(gpu.used_bytes or 0 for gpu in fresh),
            free_bytes=sum(gpu.free_bytes or 0 for gpu in fresh),
            committed_bytes=sum(gpu.committed_bytes or 0 for gpu in fresh),
            unattributed_bytes=sum(gpu.unattributed_bytes or 0 for gpu in fresh),
            unattributed_unknown=sum(gpu.unattributed_bytes is None for gpu in fresh),
            processes=len(rows),
            diverging=sum(row.diverges for row in rows),
        )


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a fleet; memory is that of live hosts only."""

    hosts: int
    silent_hosts: int
    """Hosts that are silent or unreachable; nothing of theirs is in the other figures."""
    connecting_hosts: int
    """Hosts that have not been asked for the first time; likewise."""
    gpus: HostTotals
    """Sums over the GPUs of live hosts."""
    runs: int
    """Runs with a rank on a live host."""
    diverging_runs: int
    """Runs of which a rank on a live host needs attention."""


@dataclass(frozen=True)
class Fleet:
    """Many hosts at one moment. Sums and runs are worked out when they are first asked for."""

    time: float
    """Unix seconds by the clock of this machine."""
    hosts: tuple[HostReading, ...]
    """In the order of the source. A host that has not changed is the same object as in the fleet before."""
    notice: str | None = None
    """What is wrong with the source as a whole, in one sentence; None: nothing."""

    @cached_property
    def runs(self) -> tuple[FleetRun, ...]:
        """The runs on all hosts, each once, however many hosts it spans."""
        return group_ranks(self.hosts)

    @cached_property
    def totals(self) -> FleetTotals:
        """Sums over the live hosts."""
        live = [host.totals for host in self.hosts if host.is_live]
        runs = [run for run in self.runs if run.live_ranks]
        return FleetTotals(
            hosts=len(self.hosts),
            silent_hosts=sum(host.state in ("silent", "unreachable") for host in self.hosts),
            connecting_hosts=sum(host.state == "connecting" for host in self.hosts),
            gpus=HostTotals(
                **{name: sum(getattr(each, name) for each in live) for name in HostTotals.__struct_fields__}
            ),
            runs=len(runs),
            diverging_runs=sum(bool(run.diverging) for run in runs),
        )

    def age_seconds(self, host: HostReading) -> float | None:
        """Return the time since the last sign of life of a host; None: there was none."""
        return None if host.since is None else max(0.0, self.time - host.since)


class FleetSource(Protocol):
    """A source of fleets. Both methods are called on the same thread, which may wait for them."""

    def read(self) -> Fleet:
        """Return all hosts as they are known now; a host that does not answer is in it with its state.

        Raises:
            VramtopError: the source as a whole has failed; it may be read again.
        """

    def close(self) -> None:
        """Release all resources and end what was started."""


# Makes the reading of this host from its board.


_MEMORY_FIELDS = (None, "total_bytes", "used_bytes", "free_bytes", "processes")
"""A fault of one of these, or of the whole device, is passed on; many GPUs do not report their utilisation."""
_MAX_COMMAND_CHARACTERS = 200
"""Limit of a command line, which a table over many hosts never shows whole."""


def reading_of_board(
    board: Board,
    *,
    host: str,
    facts_of: Callable[[ProcessKey], RankFacts | None] = lambda _: None,
    interval: float | None = None,
    version: str | None = None,
) -> HostReading:
    """Return the reading of the host that a board is of: what is displayed on it, in plain values.

    Args:
        board: the board.
        host: name of the host.
        facts_of: returns what the environment of a process says of its run.
        interval: seconds between two boards.
        version: of this vramtop.
    """
    source = board.snapshot.source
    runs = {key: run.pids[0][0] for run in board.runs for key in run.pids}
    return HostReading(
        host=host,
        time=board.snapshot.time,
        gpus=tuple(_gpu(board, row, runs, facts_of) for row in board.gpus if board.displays_gpu(row.reading)),
        pending=tuple(_pending(row) for row in board.pending),
        anomalies=tuple(f"GPU {anomaly.gpu_index}: {displayed(anomaly.sentence)}" for anomaly in board.anomalies),
        faults=tuple(fault.message for fault in board.snapshot.faults),
        unlisted=tuple(fault.message for fault in board.snapshot.faults if fault.code == NOT_LISTED),
        driver_version=source.driver_version,
        vramtop_version=version,
        interval=interval,
    )


def _gpu(
    board: Board,
    row: GpuRow,
    runs: Mapping[ProcessKey, int],
    facts_of: Callable[[ProcessKey], RankFacts | None],
) -> FleetGpu:
    processes = None
    if row.reading.processes is not None:
        processes = tuple(_process(each, runs, facts_of) for each in row.rows if board.displays(each))
    devices = tuple(_figures(board, device, None, ()) for device in row.devices)
    return _figures(board, row, processes, devices)


def _figures(
    board: Board, row: GpuRow, processes: tuple[FleetProcess, ...] | None, devices: tuple[FleetGpu, ...]
) -> FleetGpu:
    reading = row.reading
    return FleetGpu(
        index=reading.index,
        label=reading.label if isinstance(reading, MigDevice) else None,
        uuid=reading.uuid,
        name=reading.name,
        total_bytes=reading.total_bytes,
        used_bytes=reading.used_bytes,
        reserved_bytes=reading.reserved_bytes,
        free_bytes=reading.free_bytes,
        committed_bytes=_committed(board, reading, devices),
        unattributed_bytes=row.unattributed_bytes if reading.attributed_bytes is not None else None,
        utilisation_percent=reading.utilisation_percent,
        is_stale=reading.is_stale,
        is_asleep=any(fault.field is None and fault.code == ASLEEP for fault in reading.faults),
        fault=next((fault.message for fault in reading.faults if fault.field in _MEMORY_FIELDS), None),
        is_lost=reading.loss is not None and not reading.is_stale,
        closed=None if isinstance(reading, MigDevice) else unusable_reason(reading),
        processes=processes,
        devices=devices,
    )


def _committed(board: Board, reading: GpuReading, devices: tuple[FleetGpu, ...]) -> int:
    """Return what jobs will yet allocate on a device; on a GPU in MIG mode, on all of its devices."""
    if isinstance(reading, MigDevice):
        index: DeviceIndex = (reading.index, reading.device.gpu_instance)
        return 0 if reading.shares_memory_of else board.committed.get(index, 0)
    return board.committed.get(reading.index, 0) + sum(device.committed_bytes or 0 for device in devices)


def _process(
    row: ProcessRow,
    runs: Mapping[ProcessKey, int],
    facts_of: Callable[[ProcessKey], RankFacts | None],
) -> FleetProcess:
    process, comparison, budget, counters = row.process, row.comparison, row.budget, row.process.counters
    peak = comparison.peak_usage if comparison else None
    return FleetProcess(
        pid=process.pid,
        start_time=process.start_time,
        used_bytes=process.used_bytes,
        peak_bytes=peak.size_bytes if peak else process.peak_bytes,
        user=process.user,
        command=displayed_line(process.command or process.name, _MAX_COMMAND_CHARACTERS) or None,
        kind=kind_label(row.kind, row.program_name) or None,
        job=displayed(row.job.label) if row.job else None,
        budget_bytes=budget.steady_device_bytes if budget else None,
        low_bytes=budget.peak.low_bytes if budget else None,
        high_bytes=budget.peak.high_bytes if budget else None,
        status=comparison.status if comparison else None,
        sentence=displayed(comparison.sentence) if comparison else None,
        full_seconds=row.full_seconds,
        note=process.note or row.no_budget_reason or (displayed(row.problem) if row.problem else None),
        missing=row.missing,
        steps=counters.steps if counters else None,
        step_seconds=counters.step_seconds if counters else None,
        steps_at=counters.time if counters and counters.steps is not None else None,
        device=row.gpu.label if isinstance(row.gpu, MigDevice) else None,
        run=runs.get(process.key),
        facts=facts_of(process.key),
    )


def _pending(row: PendingRow) -> FleetPending:
    sentence = row.fit.sentence if row.fit else row.problem
    return FleetPending(
        job=displayed(row.job.label),
        verdict=row.fit.verdict if row.fit else "unknown",
        device_bytes=row.budget.peak.device_bytes if row.budget else None,
        sentence=displayed(sentence) if sentence else None,
    )


# One line of ``vramtop stream``: the reading of a host as JSON, with the version of its schema in front.


SCHEMA = 1
"""Raised when a field changes its meaning; new fields do not raise it, as they are left out or ignored."""
_HEAD = b'{"schema":%d,'


class StreamLineError(CannotTellError):
    """A line that is not a reading, or of a schema that is too different."""

    title = "The host cannot be read"


class _Head(msgspec.Struct, frozen=True):
    schema: int
    vramtop_version: str | None = None


def stream_line(reading: HostReading) -> bytes:
    """Return the line of a reading, with its end."""
    return _HEAD % SCHEMA + msgspec.json.encode(reading)[1:] + b"\n"


def parse_stream_line(line: bytes) -> HostReading:
    """Return the reading of a line of this schema, the one before or the one after it.

    Raises:
        StreamLineError: it is none.
    """
    if not line.startswith(_HEAD % SCHEMA):
        _require_near_schema(line)
    try:
        reading = decode_json(line, HostReading)
    except LimitError as error:
        raise StreamLineError(
            f"sent a line that is not from vramtop stream ({error}); update vramtop on both hosts"
        ) from None
    return reading


def _require_near_schema(line: bytes) -> None:
    try:
        head = decode_json(line, _Head)
    except LimitError:
        raise StreamLineError(
            "sent output that is not from vramtop stream; run ssh there by hand and see what it prints"
        ) from None
    if abs(head.schema - SCHEMA) > 1:
        version = f" {head.vramtop_version[:40]}" if head.vramtop_version else ""
        which = "here" if head.schema > SCHEMA else "there"
        raise StreamLineError(
            f"vramtop{version} there speaks schema {head.schema:d}, this one {SCHEMA}; update vramtop {which}"
        )
