"""Nodes and partitions of a Slurm cluster, from the one-line records of ``scontrol show node`` and ``show partition``.

Sources: scontrol(1), slurm.conf(5) and gres.conf(5) of Slurm 20.11 to 25.05; states from sinfo(1), "NODE STATE CODES".
A record is ``Name=value`` pairs; values such as OS and Reason contain spaces, and Reason, Comment and Extra are free
text, which is why only the first pair of a name counts: these stand last.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramtop.estimator.common import MIB

_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_GRES = re.compile(
    r"(?P<name>[a-z_]+)(?::(?P<type>[A-Za-z][^:()]*|\d+g\.[^:()]+|\d+[A-Za-z_][^:()]*))?(?::(?P<count>\d+)(?P<unit>[KM]?))?"
)
_UNITS = {"": 1, "K": 1024, "M": 1024**2}
_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")
_NOT_A_TYPE = "no_consume"
_GONE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "INVALID_REG", "INVAL"),
    *("NOT_RESPONDING", "NO_RESPOND", "DYNAMIC_FUTURE"),
}
"""States of a node that takes no job until somebody has looked after it."""
_LATER = {
    *("RESERVED", "MAINTENANCE", "MAINT", "PLANNED", "COMPLETING", "REBOOT_REQUESTED", "REBOOT_ISSUED", "BLOCKED"),
    *("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "POWER_DRAIN"),
}
"""States of a node that takes jobs, but not at once or not those of everybody."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Marks that scontrol and sinfo put behind a state."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of one type on one node."""

    type: str | None
    """Name that the cluster gave them; None: none."""
    count: int
    used: int | None
    """GPUs that jobs have; None: Slurm does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node, as far as Slurm knows it."""

    name: str
    gpus: tuple[NodeGpus, ...]
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    states: frozenset[str]
    cpus: int | None
    free_cpus: int | None
    memory_bytes: int | None
    """RAM that jobs may have."""
    free_memory_bytes: int | None
    """RAM that no job has."""

    @property
    def is_gone(self) -> bool:
        """Whether it is down, drained, or does not answer."""
        return not self.states or bool(self.states & _GONE)

    @property
    def takes_jobs_now(self) -> bool:
        """Whether a job could start on it at once, if there is room."""
        return not self.is_gone and not self.states & _LATER


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """One partition."""

    name: str
    is_up: bool
    is_default: bool
    max_nodes: int | None
    """Most nodes of a job; None: any number."""


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Return the nodes of ``scontrol show node -o``, with or without ``-d``."""
    return tuple(_node(record) for record in _records(text) if _NAME.fullmatch(record.get("NodeName", "")))


def parse_partitions(text: str) -> tuple[SlurmPartition, ...]:
    """Return the partitions of ``scontrol show partition -o``."""
    return tuple(
        SlurmPartition(
            name=record["PartitionName"],
            is_up=record.get("State", "UP").upper() == "UP",
            is_default=record.get("Default", "NO").upper() == "YES",
            max_nodes=_whole(record.get("MaxNodes")),
        )
        for record in _records(text)
        if _NAME.fullmatch(record.get("PartitionName", ""))
    )


def _records(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        pairs = list(_PAIR.finditer(line))
        ends = [*(pair.start() for pair in pairs), len(line)][1:]
        record: dict[str, str] = {}
        for pair, end in zip(pairs, ends, strict=True):
            record.setdefault(pair[1], line[pair.end() : end].strip())
        if record:
            yield record


def _node(record: Mapping[str, str]) -> SlurmNode:
    states = _states(record.get("State", ""))
    real, reserved = _whole(record.get("RealMemory")), _whole(record.get("MemSpecLimit")) or 0
    taken = _whole(record.get("AllocMem"))
    memory = None if real is None else max(0, real - reserved)
    cpus, busy = _whole(record.get("CPUEfctv")) or _whole(record.get("CPUTot")), _whole(record.get("CPUAlloc"))
    return SlurmNode(
        name=record["NodeName"],
        gpus=tuple(_gpus(record, states)),
        features=_names(record.get("ActiveFeatures") or record.get("AvailableFeatures") or record.get("Features", "")),
        partitions=_names(record.get("Partitions", "")),
        states=states,
        cpus=cpus,
        free_cpus=None if cpus is None or busy is None else max(0, cpus - busy),
        memory_bytes=None if memory is None else memory * MIB,
        free_memory_bytes=None if memory is None or taken is None else max(0, memory - taken) * MIB,
    )


def _states(text: str) -> frozenset[str]:
    found: set[str] = set()
    for word in text.upper().split("+"):
        name = word.rstrip("".join(_SUFFIXES))
        found.update(_SUFFIXES[mark] for mark in word[len(name) :])
        found.update([name] if name else [])
    return frozenset(found)


def _gpus(record: Mapping[str, str], states: frozenset[str]) -> Iterator[NodeGpus]:
    counts = _gpu_counts(record.get("Gres", ""))
    used = _used(record, counts, states)
    for name, count in counts.items():
        taken = used.get(name) if used is not None else None
        yield NodeGpus(type=name, count=count, used=None if taken is None else min(count, taken))


def _used(
    record: Mapping[str, str], counts: Mapping[str | None, int], states: frozenset[str]
) -> dict[str | None, int] | None:
    """Return how many GPUs of each type jobs have; None: not known.

    ``GresUsed`` stands in the output of ``-d``. AllocTRES has ``gres/gpu`` only where AccountingStorageTRES names it.
    """
    if "GresUsed" in record:
        return dict.fromkeys(counts, 0) | _gpu_counts(record["GresUsed"])
    if "gres/gpu" in record.get("CfgTRES", ""):
        allocated = dict(pair.split("=", 1) for pair in record.get("AllocTRES", "").split(",") if "=" in pair)
        if len(counts) == 1:
            return dict.fromkeys(counts, _whole(allocated.get("gres/gpu", "0")) or 0)
        if "gres/gpu" not in allocated or any(name.startswith("gres/gpu:") for name in allocated):
            return {name: _whole(allocated.get(f"gres/gpu:{name}", "0")) or 0 for name in counts}
        return None
    if states & {"ALLOCATED", "ALLOC"}:
        return dict(counts)  # no processor is left for another job
    return dict.fromkeys(counts, 0) if "IDLE" in states else None


def _gpu_counts(text: str) -> dict[str | None, int]:
    """Return the number of GPUs by type: of ``gpu:a100:4(S:0-1),gpu:2,shard:8``, {a100: 4, None: 2}."""
    counts: dict[str | None, int] = {}
    for part in _OUTSIDE_PARENTHESES.split(text):
        plain = part.partition("(")[0].replace(f":{_NOT_A_TYPE}", "")
        found = _GRES.fullmatch(plain.strip())
        if found and found["name"] == "gpu":
            count = int(found["count"] or 1) * _UNITS[found["unit"] or ""]
            counts[found["type"]] = counts.get(found["type"], 0) + count
    return counts


def _names(text: str) -> tuple[str, ...]:
    words = (word.partition("(")[0].strip() for word in text.split(","))
    return tuple(word for word in words if _NAME.fullmatch(word) and word not in ("null", "N/A"))


def _whole(text: str | None) -> int | None:
    """Return a number; None for UNLIMITED, N/A and the like."""
    return int(text) if text and text.isascii() and text.isdecimal() else None
