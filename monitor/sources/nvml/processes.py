"""NVML's process lists of one device, merged into one row per process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...host.processes import ProcessFacts
from ...snapshot.snapshot import GpuProcess, ProcessKind

UNREPORTED_NOTE = "memory not reported by the driver"
TOO_LARGE_NOTE = "reported memory exceeds the card"
MAX_GPU_BYTES = 2**49
"""No figure of a GPU's memory is larger: its addresses have 49 bits (NVIDIA Tesla P100 whitepaper, unified memory)."""
MPS_SERVER_NOTE = "MPS server: may hold its clients' memory"
MPS_CLIENT_NOTE = "runs under MPS"
_NO_INSTANCE = 0xFFFFFFFF
_SERVER_NAME = "nvidia-cuda-mps"
"""Begin of ``nvidia-cuda-mps-server``, of which Linux keeps 15 letters."""


@dataclass(slots=True)
class _Listed:
    """What the lists say of one process in one place."""

    kinds: tuple[ProcessKind, ...] = ()
    size: int | None = None
    part: int | None = None
    """Its compute instance."""

    def take(self, kind: ProcessKind, size: int | None) -> None:
        """One more entry of it; some drivers say 0 in a container for all processes."""
        if kind not in self.kinds:
            self.kinds = (*self.kinds, kind)
        size = size or None
        self.size = size if self.size is None else max(self.size, size or 0)


def process_rows(
    lists: Mapping[ProcessKind, Sequence[Any]],
    *,
    total_bytes: int | None,
    describe: Callable[[int], ProcessFacts],
    instances: Mapping[int | None, int | None] | None = None,
) -> tuple[GpuProcess, ...]:
    """One row per pid, or per GPU instance and pid, largest first, unknown sizes last.

    The lists repeat a process that does both compute and graphics, each time with all of its memory: the larger figure
    counts, never the sum.

    Args:
        lists: NVML's entries (``pid``, ``usedGpuMemory`` or None) by list.
        total_bytes: the device's memory; no process can hold more.
        describe: what is known of a pid.
        instances: the device's GPU instances with their memory, in MIG mode; an entry that names another number is in
            none of them.
    """
    found: dict[tuple[int, int | None], _Listed] = {}
    for kind, entries in lists.items():
        for entry in entries:
            instance = entry.gpuInstanceId if instances and entry.gpuInstanceId in instances else None
            listed = found.get((entry.pid, instance))
            if listed is None:
                listed = found[entry.pid, instance] = _Listed()
            listed.take(kind, entry.usedGpuMemory)
            if instance is not None and listed.part is None and entry.computeInstanceId != _NO_INSTANCE:
                listed.part = entry.computeInstanceId
    if instances:
        _join(found)
    rows = [
        _row(pid, listed, (instances or {}).get(instance) or total_bytes, describe(pid), instance)
        for (pid, instance), listed in found.items()
    ]
    rows.sort(key=lambda row: (row.used_bytes is None, -(row.used_bytes or 0), row.pid))
    return tuple(rows)


def _join(found: dict[tuple[int, int | None], _Listed]) -> None:
    """Entries of a list that does not tell instances are of the same process in the instance that another one tells."""
    homes = {pid: instance for pid, instance in found if instance is not None}
    for pid, instance in [(pid, homes[pid]) for pid, none in found if none is None and pid in homes]:
        untold = found.pop((pid, None))
        for kind in untold.kinds:
            found[pid, instance].take(kind, untold.size)


def _row(pid: int, listed: _Listed, total_bytes: int | None, facts: ProcessFacts, instance: int | None) -> GpuProcess:
    size, note = listed.size, facts.note
    if (facts.name or "").startswith(_SERVER_NAME):
        note = _both(note, MPS_SERVER_NOTE)
    elif "mps" in listed.kinds:
        note = _both(note, MPS_CLIENT_NOTE)
    if size is None:
        note = _both(note, UNREPORTED_NOTE)
    elif size > (MAX_GPU_BYTES if total_bytes is None else total_bytes):
        size, note = None, _both(note, TOO_LARGE_NOTE)
    return GpuProcess(
        pid=pid,
        start_time=facts.start_time,
        used_bytes=size,
        kinds=listed.kinds,
        user=facts.user,
        name=facts.name,
        command=facts.command,
        note=note,
        parent=facts.parent,
        cpu_seconds=facts.cpu_seconds,
        gpu_instance=instance,
        compute_instance=listed.part,
    )


def _both(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
