"""Joins a rank 0 that calls its own host ``localhost`` with the ranks elsewhere that name that host.

Kubeflow's pytorch-operator sets MASTER_ADDR so (``setClusterSpec`` in ``pkg/controller.v1/pytorch/pod.go``):
``localhost`` in the pod of the master, the name of its service in the others, of which nobody here knows the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from .fleet_run import FleetRank

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
