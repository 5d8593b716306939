"""Groups processes into runs: ranks of one run on several hosts are one run.

Facts of the environment decide, the most telling first: the address and port at which ranks meet, the rendezvous id of
torchrun, the group of pods, the Ray job, the Slurm job. Processes with no such fact are runs of their own host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fleet_run import FleetRank, FleetRun
from .local_masters import is_loopback, join_local_masters

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from .host_reading import FleetProcess, HostReading, RankFacts
    from .local_masters import RunKey


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
    identity = None if facts.world_size == 1 else _identity(host, facts)
    return None if identity is None else (*identity, facts.world_size)


def _identity(host: str, facts: RankFacts) -> RunKey | None:
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
