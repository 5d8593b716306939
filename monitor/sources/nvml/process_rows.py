"""NVML's process lists of one device, merged into one row per process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...host.process_directory import ProcessFacts
from ...snapshot.snapshot import GpuProcess, ProcessType

UNREPORTED_NOTE = "memory not reported by the driver"
TOO_LARGE_NOTE = "reported memory exceeds the GPU's"
MAX_GPU_BYTES = 2**49
"""Addressable by a GPU: its addresses have 49 bits (NVIDIA Tesla P100 whitepaper, unified memory)."""
MPS_SERVER_NOTE = "MPS server: may hold its clients' memory"
MPS_CLIENT_NOTE = "runs under MPS"
NO_INSTANCE = 0xFFFFFFFF
"""NVML's index for a process that runs in no GPU or compute instance, or in one that is not told."""
_MPS_SERVER_NAME = "nvidia-cuda-mps"
"""Beginning of ``nvidia-cuda-mps-server``, of which Linux keeps 15 letters."""


class _MergedEntry(msgspec.Struct):
    """The entries of all lists for one process on a GPU, or in one of its GPU instances."""

    kinds: tuple[ProcessType, ...] = ()
    size: int | None = None
    compute_instance: int | None = None

    def add(self, kind: ProcessType, size: int | None) -> None:
        """Add an entry; a size of 0 counts as unknown, as some drivers report it for all processes in a container."""
        if kind not in self.kinds:
            self.kinds = (*self.kinds, kind)
        size = size or None
        self.size = size if self.size is None else max(self.size, size or 0)


def process_rows(
    lists: Mapping[ProcessType, Sequence[Any]],
    *,
    total_bytes: int | None,
    describe: Callable[[int], ProcessFacts],
    instances: Mapping[int | None, int | None] | None = None,
) -> tuple[GpuProcess, ...]:
    """Return one row per pid, or per GPU instance and pid, largest first, unknown sizes last.

    A process that does both compute and graphics is in both lists, each time with all of its memory: the larger figure
    counts, never the sum.

    Args:
        lists: NVML's entries (``pid``, ``usedGpuMemory`` or None) by list.
        total_bytes: the device's memory; no process can hold more.
        describe: returns the facts about a pid.
        instances: in MIG mode, the memory of the device's GPU instances; other instances in entries are ignored.
    """
    merged: dict[tuple[int, int | None], _MergedEntry] = {}
    for kind, entries in lists.items():
        for entry in entries:
            instance = entry.gpuInstanceId if instances and entry.gpuInstanceId in instances else None
            row = merged.get((entry.pid, instance))
            if row is None:
                row = merged[entry.pid, instance] = _MergedEntry()
            row.add(kind, entry.usedGpuMemory)
            if instance is not None and row.compute_instance is None and entry.computeInstanceId != NO_INSTANCE:
                row.compute_instance = entry.computeInstanceId
    if instances:
        _merge_without_instance(merged)
    rows = [
        _process(pid, row, (instances or {}).get(instance) or total_bytes, describe(pid), instance)
        for (pid, instance), row in merged.items()
    ]
    rows.sort(key=lambda row: (row.used_bytes is None, -(row.used_bytes or 0), row.pid))
    return tuple(rows)


def _merge_without_instance(merged: dict[tuple[int, int | None], _MergedEntry]) -> None:
    """Merge entries of lists without GPU instances with the entry of the same pid that names its instance."""
    known = {pid: instance for pid, instance in merged if instance is not None}
    for pid, instance in [(pid, known[pid]) for pid, none in merged if none is None and pid in known]:
        entry = merged.pop((pid, None))
        for kind in entry.kinds:
            merged[pid, instance].add(kind, entry.size)


def _process(
    pid: int, entry: _MergedEntry, total_bytes: int | None, facts: ProcessFacts, instance: int | None
) -> GpuProcess:
    size, note = entry.size, facts.note
    if (facts.name or "").startswith(_MPS_SERVER_NAME):
        note = _joined(note, MPS_SERVER_NOTE)
    elif "mps" in entry.kinds:
        note = _joined(note, MPS_CLIENT_NOTE)
    if size is None:
        note = _joined(note, UNREPORTED_NOTE)
    elif size > (MAX_GPU_BYTES if total_bytes is None else total_bytes):
        size, note = None, _joined(note, TOO_LARGE_NOTE)
    return GpuProcess(
        pid=pid,
        start_time=facts.start_time,
        used_bytes=size,
        kinds=entry.kinds,
        user=facts.user,
        name=facts.name,
        command=facts.command,
        note=note,
        parent=facts.parent,
        parent_name=facts.parent_name,
        runs_in=facts.runs_in,
        cpu_seconds=facts.cpu_seconds,
        gpu_instance=instance,
        compute_instance=entry.compute_instance,
    )


def _joined(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
