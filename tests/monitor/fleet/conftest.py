"""Fixtures: hosts of a fleet with ranks on their GPUs."""

from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.fleet import FleetGpu, FleetProcess, HostReading, RankFacts

MakeHost = Callable[..., HostReading]


@pytest.fixture
def make_rank() -> Callable[..., FleetProcess]:
    """Make a process that holds so many GiB; further arguments are facts of its environment or fields of it."""

    def make(pid: int, gib: float | None = 10, *, facts: dict[str, Any] | None = None, **changes: Any) -> FleetProcess:
        used = None if gib is None else int(gib * GIB)
        known = None if facts is None else RankFacts(**facts)
        fields = {"job": "tune", "user": "ann", "budget_bytes": 20 * GIB, "status": "on_budget", "start_time": 1000.0}
        return FleetProcess(pid=pid, used_bytes=used, facts=known, **{**fields, **changes})

    return make


@pytest.fixture
def make_host() -> MakeHost:
    """Make a host with one 80 GiB GPU for each process."""

    def make(name: str, *processes: FleetProcess, **changes: Any) -> HostReading:
        gpus = tuple(
            FleetGpu(
                index=at,
                uuid=f"GPU-{name}-{at}",
                name="NVIDIA H100 80GB HBM3",
                total_bytes=80 * GIB,
                used_bytes=(process.used_bytes or 0) + GIB,
                free_bytes=79 * GIB - (process.used_bytes or 0),
                committed_bytes=5 * GIB,
                unattributed_bytes=GIB,
                processes=(process,),
            )
            for at, process in enumerate(processes)
        )
        return HostReading(**{"host": name, "time": 2000.0, "since": 2000.0, "gpus": gpus, **changes})

    return make
