"""Spreads the ranks of a job over nodes: the same number on each, and on as few nodes as possible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpace:
    """GPUs, RAM and processors that one node has for a job."""

    gpus: int
    memory_bytes: int | None
    """RAM; None: unknown, and not checked."""
    cpus: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nodes of a job, and its ranks on each."""

    nodes: int
    per_node: int


def spread_over(
    ranks: int, nodes: Sequence[NodeSpace], memory_bytes: Callable[[int], int], *, max_nodes: int | None = None
) -> Spread | None:
    """Return the spread on the fewest nodes; None: there is no room.

    Args:
        ranks: of the job, each on a GPU of its own.
        nodes: those that may be taken.
        memory_bytes: RAM that this number of ranks needs on one node.
        max_nodes: most nodes that a job may have.
    """
    most = max((node.gpus for node in nodes), default=0)
    for per_node in range(min(most, ranks), 0, -1):
        count = ranks // per_node
        if ranks % per_node or (max_nodes is not None and count > max_nodes):
            continue
        need = memory_bytes(per_node)
        fitting = sum(
            node.gpus >= per_node
            and (node.memory_bytes is None or node.memory_bytes >= need)
            and (node.cpus is None or node.cpus >= per_node)
            for node in nodes
        )
        if fitting >= count:
            return Spread(nodes=count, per_node=per_node)
    return None
