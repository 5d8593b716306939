"""The fleet: readings of many hosts at one moment, their sums, and the runs that span them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .group_ranks import group_ranks
from .host_reading import HostTotals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .fleet_run import FleetRun
    from .host_reading import HostReading


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
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


@runtime_checkable
class MemoryHistorySource(Protocol):
    """A source of fleets that also knows what was before."""

    def memory_history(self, host: str, seconds: float) -> Mapping[str, Sequence[tuple[float, int | None]]]:
        """Return for each GPU of a host, by its UUID, (Unix seconds, bytes in use or None), oldest first.

        May be called on another thread than ``read``.

        Args:
            host: name of the host in the latest fleet.
            seconds: how far back.

        Raises:
            VramtopError: the source cannot say.
        """
