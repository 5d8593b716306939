"""A source of fleets whose readings a test replaces, and hosts for it."""

import threading
from collections.abc import Sequence
from typing import Any

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading, RankFacts

NOW = 2_000_000_000.0


class ScriptedFleets:
    """A source whose fleet a test replaces; an error is raised in its place."""

    def __init__(self, hosts: Sequence[HostReading]) -> None:
        self.fleet: Fleet | Exception = Fleet(NOW, tuple(hosts))
        self.closed = threading.Event()

    def read(self) -> Fleet:
        if isinstance(self.fleet, Exception):
            raise self.fleet
        return self.fleet

    def close(self) -> None:
        self.closed.set()


def host(name: str, *statuses: str | None, first: int = 0, user: str = "ann", **changes: Any) -> HostReading:
    """Make a host with a GPU for each status, of a rank of the run of eight that all hosts share; None: an idle one."""

    def gpu(at: int, status: str | None) -> FleetGpu:
        facts = RankFacts(rank=first + at, world_size=8, master="node1:29500")
        held = 66 if status == "over" else 60
        fields = {"used_bytes": held * GIB, "budget_bytes": 60 * GIB, "job": "tune", "user": user, "facts": facts}
        rank = FleetProcess(pid=700 + at, status=status, sentence=f"holds {held} GiB", **fields)
        processes = () if status is None else (rank,)
        used = held * GIB if processes else 0
        return FleetGpu(
            index=at,
            name="NVIDIA H100",
            total_bytes=80 * GIB,
            used_bytes=used,
            free_bytes=80 * GIB - used,
            committed_bytes=0,
            unattributed_bytes=0,
            processes=processes,
        )

    gpus = tuple(gpu(at, status) for at, status in enumerate(statuses))
    return HostReading(**{"host": name, "time": NOW, "since": NOW, "gpus": gpus, **changes})


HOSTS = (
    host("node1", *["on_budget"] * 4),
    host("node2", "on_budget", "over", None, first=4),
    host("node3", None, None),
    host("node10", "loading", first=6, user="bob"),
    host("node4", "on_budget", first=7, state="unreachable", reason="Connection refused", since=NOW - 180),
)
