"""Spreads the ranks of a job over nodes: the same number on each, and on as few nodes as possible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one node can give."""

    name: str
    gpus: int
    memory_bytes: int | None
    """RAM; None: unknown, and not checked."""
    cpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nodes of a job, and its ranks on each."""

    nodes: int
    per_node: int
    rooms: tuple[str, ...]
    """Every node that has room for that."""


def spread_over(
    ranks: int, rooms: Sequence[Room], memory_bytes: Callable[[int], int], *, max_nodes: int | None = None
) -> Spread | None:
    """Return the spread on the fewest nodes; None: there is no room.

    Args:
        ranks: of the job, each on a GPU of its own.
        rooms: nodes.
        memory_bytes: RAM that this number of ranks needs on one node.
        max_nodes: most nodes that a job may have.
    """
    most = max((room.gpus for room in rooms), default=0)
    for per_node in range(min(most, ranks), 0, -1):
        nodes = ranks // per_node
        if ranks % per_node or (max_nodes is not None and nodes > max_nodes):
            continue
        need = memory_bytes(per_node)
        fitting = [
            room.name
            for room in rooms
            if room.gpus >= per_node
            and (room.memory_bytes is None or room.memory_bytes >= need)
            and (room.cpus is None or room.cpus >= per_node)
        ]
        if len(fitting) >= nodes:
            return Spread(nodes=nodes, per_node=per_node, rooms=tuple(fitting))
    return None
