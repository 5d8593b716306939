"""Memory that one GPU of a fleet has for a job: now, once the running jobs have ended, and empty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramtop.estimator.common import UNSEEN_BYTES

from ...board import BEING_READ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.estimator.job import Gpu

    from ..host_reading import FleetGpu, FleetProcess, HostReading

_STALE = "its driver does not answer"
_UNREAD = "its free memory is unknown"
_NOT_COMMITTED = "how much more its running jobs will allocate is unknown"


@dataclass(frozen=True, slots=True)
class Card:
    """A type of GPU; estimates depend on it."""

    name: str | None
    """Name as the driver reports it."""
    total_bytes: int | None
    is_mig: bool = False
    """A MIG device of such a GPU."""

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry; for a MIG device, of the GPU that it is a part of; None: unknown."""
        from vramtop.estimator.job import match_nvml_name  # not at start-up

        return match_nvml_name(self.name, None if self.is_mig else self.total_bytes) if self.name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpace:
    """Bytes that one GPU, or one MIG device, has for a job; None: unknown."""

    label: str
    uuid: str | None
    card: Card
    now_bytes: int | None
    """Free less committed."""
    at_most_bytes: int | None
    """Upper bound of ``now_bytes`` where that is unknown."""
    later_bytes: int | None
    """Once the running jobs that vramtop knows have ended: free, and what their processes hold. Memory of other
    processes, and memory without a process, stays taken."""
    empty_bytes: int | None
    """Total less what the driver reserves; if that is unknown, the total."""
    reason: str | None = None
    """Why ``now_bytes`` is unknown."""
    closed: str | None = None
    """Why no program can be started on it; it has 0 bytes."""


def spaces_of(host: HostReading) -> tuple[GpuSpace, ...]:
    """Return the GPUs of a host that is live; of a GPU in MIG mode, its MIG devices."""
    return tuple(space for gpu in host.gpus for space in _spaces(gpu))


def _spaces(gpu: FleetGpu) -> Iterator[GpuSpace]:
    for device in gpu.devices:
        rows = None
        if gpu.processes is not None and all(row.device is not None for row in gpu.processes):
            rows = [row for row in gpu.processes if row.device == device.label]
        space = _space(device, rows, Card(device.name or gpu.name, device.total_bytes, is_mig=True), stale=gpu.is_stale)
        yield _closed(space, gpu.closed)
    if not gpu.devices:
        space = _space(gpu, gpu.processes, Card(gpu.name, gpu.total_bytes), stale=gpu.is_stale)
        yield _closed(space, gpu.closed)


def _closed(space: GpuSpace, reason: str | None) -> GpuSpace:
    """Return the GPU as it is if programs can be started on it, otherwise without memory for a job."""
    if reason is None:
        return space
    return replace(space, now_bytes=0, at_most_bytes=0, later_bytes=0, empty_bytes=0, reason=None, closed=reason)


def _space(gpu: FleetGpu, rows: Sequence[FleetProcess] | None, card: Card, *, stale: bool) -> GpuSpace:
    total, free = gpu.total_bytes, None if stale else gpu.free_bytes
    empty = None if total is None else total - (gpu.reserved_bytes or 0)
    committed = _committed(gpu, rows)
    ending = _held_by_jobs(gpu, rows)
    now = None if free is None or committed is None else max(0, free - committed)
    reason = None
    if free is None:
        reason = _STALE if stale else gpu.fault or _UNREAD
    elif committed is None:
        reason = _NOT_COMMITTED
    return GpuSpace(
        label=gpu.shown_label,
        uuid=gpu.uuid,
        card=card,
        now_bytes=now,
        at_most_bytes=empty if free is None else free,
        later_bytes=None if free is None or ending is None else _at_most(free + ending, empty),
        empty_bytes=empty,
        reason=reason,
    )


def _committed(gpu: FleetGpu, rows: Sequence[FleetProcess] | None) -> int | None:
    """Return what running jobs will yet allocate; on a GPU that nothing runs on, nothing.

    A CUDA context alone takes more than ``UNSEEN_BYTES``.
    """
    if any(row.note == BEING_READ for row in rows or ()):
        return None
    if rows:
        return gpu.committed_bytes
    if gpu.used_bytes is not None and gpu.used_bytes < UNSEEN_BYTES:
        return gpu.committed_bytes or 0
    return None if rows is None else gpu.committed_bytes


def _held_by_jobs(gpu: FleetGpu, rows: Sequence[FleetProcess] | None) -> int | None:
    """Return what becomes free once the known jobs end; None: unknown."""
    if gpu.used_bytes is not None and gpu.used_bytes < UNSEEN_BYTES:
        return 0
    if rows is None or (not rows and gpu.unattributed_bytes is None):
        return None
    sizes = [row.used_bytes for row in rows if row.job is not None]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _at_most(size: int, limit: int | None) -> int:
    return size if limit is None else min(size, limit)
