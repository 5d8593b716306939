"""NVML's process lists of one device, merged into one row per process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .processes import ProcessFacts
from .snapshot import GpuProcess, ProcessKind

UNREPORTED = "memory not reported by the driver"
TOO_LARGE = "reported memory exceeds the card"


def process_rows(
    lists: Mapping[ProcessKind, Sequence[Any]],
    *,
    total_bytes: int | None,
    describe: Callable[[int], ProcessFacts],
    instances: Collection[int] = (),
) -> tuple[GpuProcess, ...]:
    """One row per pid, largest first, unknown sizes last.

    The lists repeat a process that does both compute and graphics, each time with all of its memory: the larger figure
    counts, never the sum.

    Args:
        lists: NVML's entries (``pid``, ``usedGpuMemory`` or None) by list.
        total_bytes: the device's memory; no process can hold more.
        describe: what is known of a pid.
        instances: the device's GPU instances, in MIG mode; an entry that names another number is in none of them.
    """
    kinds: dict[int, tuple[ProcessKind, ...]] = {}
    sizes: dict[int, int | None] = {}
    inside: dict[int, int] = {}
    for kind, entries in lists.items():
        for entry in entries:
            pid, size = entry.pid, entry.usedGpuMemory or None  # some drivers say 0 in a container for all processes
            before = kinds.get(pid, ())
            if kind not in before:
                kinds[pid] = (*before, kind)
            if instances and getattr(entry, "gpuInstanceId", None) in instances:
                inside[pid] = entry.gpuInstanceId
            known = sizes.get(pid)
            sizes[pid] = size if known is None else max(known, size or 0)
    rows = [
        _row(pid, sizes[pid], kinds[pid], total_bytes, describe(pid), gpu_instance=inside.get(pid)) for pid in kinds
    ]
    rows.sort(key=lambda row: (row.used_bytes is None, -(row.used_bytes or 0), row.pid))
    return tuple(rows)


def _row(
    pid: int,
    size: int | None,
    kinds: tuple[ProcessKind, ...],
    total_bytes: int | None,
    facts: ProcessFacts,
    *,
    gpu_instance: int | None,
) -> GpuProcess:
    note = facts.note
    if size is None:
        note = _both(note, UNREPORTED)
    elif total_bytes is not None and size > total_bytes:
        size, note = None, _both(note, TOO_LARGE)
    return GpuProcess(
        pid=pid,
        start_time=facts.start_time,
        used_bytes=size,
        kinds=kinds,
        user=facts.user,
        name=facts.name,
        command=facts.command,
        note=note,
        parent=facts.parent,
        cpu_seconds=facts.cpu_seconds,
        gpu_instance=gpu_instance,
    )


def _both(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
