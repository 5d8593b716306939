"""Reads the nodes and partitions of the Slurm cluster that this machine belongs to."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common import CannotTellError, find_program, why_not_found

from .slurm_nodes import SlurmNode, SlurmPartition, parse_nodes, parse_partitions

_SECONDS = 30
"""The controller of a large cluster may take seconds to answer (``MessageTimeout`` is 10 by default)."""


class NoSlurmError(CannotTellError):
    """This machine has no scontrol that may be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """Nodes and partitions of a cluster."""

    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]


def read_cluster() -> SlurmCluster:
    """Ask ``scontrol`` for the nodes and partitions.

    Raises:
        NoSlurmError: there is no scontrol.
        CannotTellError: it fails, or says nothing that can be read.
    """
    program = find_program("scontrol", os.environ.get("PATH"))
    if program is None:
        reason = why_not_found("scontrol", os.environ.get("PATH"))
        raise NoSlurmError(f"{reason}, so what cards the cluster has is unknown")
    try:
        nodes = _ask(program, "show", "node", "-o", "-d")
    except CannotTellError:
        nodes = _ask(program, "show", "node", "-o")
    try:
        partitions = _ask(program, "show", "partition", "-o")
    except CannotTellError:
        partitions = ""
    return parse_cluster(nodes, partitions)


def parse_cluster(nodes: str, partitions: str) -> SlurmCluster:
    """Return the cluster of ``scontrol show node -o`` and ``scontrol show partition -o``.

    Raises:
        CannotTellError: there is no node in it.
    """
    found = parse_nodes(nodes)
    if not found:
        raise CannotTellError("scontrol show node -o lists no node; ask your administrators whether it may")
    named = parse_partitions(partitions)
    known = {partition.name for partition in named}
    others = sorted({name for node in found for name in node.partitions} - known)
    unread = (SlurmPartition(name=name, is_up=True, is_default=False, max_nodes=None) for name in others)
    return SlurmCluster(nodes=found, partitions=(*named, *unread))


def _ask(program: Path, *words: str) -> str:
    try:
        answer = subprocess.run(
            [program, *words], capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise CannotTellError(
            f"scontrol {' '.join(words)} did not answer within {_SECONDS} s; scontrol ping says whether Slurm is up"
        ) from None
    except OSError as error:
        raise CannotTellError(f"scontrol cannot be started: {error.strerror}") from None
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise CannotTellError(f"scontrol {' '.join(words)} failed: {lines[-1][:200]}")
    return answer.stdout.decode(errors="replace")
