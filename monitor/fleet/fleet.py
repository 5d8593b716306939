"""The fleet: readings of many hosts at one moment, and their sums. Immutable; sizes are bytes.

The reading of a host has its GPUs and processes as the board of that host shows them, and is also the line that
``vramtop stream`` writes, so its fields are part of the schema. A figure that is unknown is None. The records hold
plain values only and are not tracked by the garbage collector: a thousand hosts are read every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from msgspec import Struct

from ..board.comparison import DIVERGING

HostState = Literal["live", "connecting", "silent", "unreachable"]
"""``live``: its figures are of now. ``connecting``: it has not been asked for the first time. ``silent``: it has said
nothing for a while. ``unreachable``: it cannot be asked.

Figures of a host that is not live are from an earlier time: they are shown with their age, or not at all."""


class RankFacts(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the environment of a process says of the run that it is a rank of; None: it says nothing."""

    rank: int | None = None
    """Rank over all hosts: ``RANK``, and its like of Open MPI, PMI and Slurm steps."""
    world_size: int | None = None
    """Ranks of the run over all hosts: ``WORLD_SIZE``, likewise."""
    master: str | None = None
    """``MASTER_ADDR:MASTER_PORT``."""


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


SAME_NAMES = (
    *("index", "uuid", "name", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "utilisation_percent"),
)
"""Fields of a ``FleetGpu`` that a ``GpuReading`` has under the same names."""


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
    """Free bytes that running jobs have still to allocate, or that are reserved; None: unknown."""
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


class FleetTotals(Struct, frozen=True, kw_only=True):
    """Sums over a fleet; memory is that of live hosts only."""

    hosts: int
    silent_hosts: int
    """Hosts that are silent or unreachable; nothing of theirs is in the other figures."""
    connecting_hosts: int
    """Hosts that have not been asked for the first time; likewise."""
    gpus: HostTotals
    """Sums over the GPUs of live hosts."""


@dataclass(frozen=True)
class Fleet:
    """Many hosts at one moment. Sums are worked out when they are first asked for."""

    time: float
    """Unix seconds by the clock of this machine."""
    hosts: tuple[HostReading, ...]
    """In the order of the source. A host that has not changed is the same object as in the fleet before."""
    notice: str | None = None
    """What is wrong with the source as a whole, in one sentence; None: nothing."""

    @cached_property
    def totals(self) -> FleetTotals:
        """Sums over the live hosts."""
        live = [host.totals for host in self.hosts if host.is_live]
        return FleetTotals(
            hosts=len(self.hosts),
            silent_hosts=sum(host.state in ("silent", "unreachable") for host in self.hosts),
            connecting_hosts=sum(host.state == "connecting" for host in self.hosts),
            gpus=HostTotals(
                **{name: sum(getattr(each, name) for each in live) for name in HostTotals.__struct_fields__}
            ),
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
