"""Memory that each GPU or MIG device has available to place a rank on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace

from ..host.plain_text import gpu_list
from ..snapshot.figures import NOT_LISTED
from ..snapshot.mig_devices import mig_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vramtop.estimator.job.gpu_catalogue import Gpu

    from ..snapshot.snapshot import DeviceIndex, GpuReading, MigReading, Snapshot


_NO_MIG_DEVICE = "is in MIG mode and has no MIG device (nvidia-smi mig -cgi PROFILE -C makes one)"
_UNUSABLE_FAULTS = {
    "GPU_IS_LOST": "no longer answers",
    "RESET_REQUIRED": "must be reset before it can be used again",
    NOT_LISTED: "is no longer listed by the driver",
    "NO_PERMISSION": "cannot be opened by this user",
}
"""Faults of a GPU on which no program can be started, by the driver's code."""


class DeviceCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Memory available on one GPU, or on one MIG device of it."""

    index: int
    """NVML index of the GPU; of the first one of several that are alike."""
    uuid: str | None
    """UUID of the GPU or of the MIG device, as CUDA_VISIBLE_DEVICES takes it."""
    name: str | None
    """Product name of the GPU."""
    total_bytes: int | None
    free_bytes: int | None
    """Free memory as NVML reports it; total less used would also count the memory reserved by the driver."""
    committed_bytes: int = 0
    """Free memory that running jobs have yet to allocate, and memory already assigned to earlier pending jobs."""
    unusable_reason: str | None = None
    """Why no program can be started here, regardless of free memory; None: programs can be started."""
    unread_reason: str | None = None
    """Why ``free_bytes`` is unknown; None: it is known, or no reason was reported."""
    reserved_bytes: int = 0
    """Part of the total that the driver reserves and CUDA does not count; 0 if unknown."""
    mig: MigReading | None = None
    """The MIG device; None: a whole GPU."""
    mig_label: str | None = None
    """Name of the MIG device on the dashboard: ``0:3``."""
    count: int = 1
    """GPUs that are alike, with consecutive indices: those of a machine that is described rather than read."""
    shares_host_memory: bool = False
    """It has no memory of its own: its total is the machine's RAM (GB10, Jetson)."""
    growth: str | None = None
    """What will take the free memory, in a sentence: ``sft grows, GPU 0 full in about 10 min``; None: nothing grows."""

    @property
    def device_index(self) -> DeviceIndex:
        """Index of the GPU or GPU instance that holds the memory; MIG devices of one instance share it."""
        return self.index if self.mig is None else (self.index, self.mig.gpu_instance)

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry of the GPU; for a MIG device, of the GPU that it is a part of."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        return match_nvml_name(self.name, None if self.mig else self.total_bytes) if self.name else None

    @property
    def cuda_device(self) -> str:
        """Entry for CUDA_VISIBLE_DEVICES."""
        return self.uuid or str(self.index)

    @property
    def label(self) -> str:
        """Name in sentences: ``GPU 0``, ``GPU 0-63``, ``GPU 0:3 (MIG 1g.10gb)``."""
        if self.mig is None:
            return f"GPU {self.numbers}"
        return f"GPU {self.mig_label or self.index} ({' '.join(filter(None, ('MIG', self.mig.profile)))})"

    @property
    def indices(self) -> range:
        """NVML index; of several that are alike, their indices."""
        return range(self.index, self.index + self.count)

    @property
    def numbers(self) -> str:
        """Index, or indices: ``0-63``."""
        return gpu_list([self.indices])

    def split(self, count: int) -> tuple[DeviceCapacity, DeviceCapacity | None]:
        """Return the first ``count`` of alike GPUs, and the rest; None: there is no rest."""
        if count >= self.count:
            return self, None
        return replace(self, count=count), replace(self, index=self.index + count, count=self.count - count)

    @property
    def available_bytes(self) -> int | None:
        """Free less committed bytes, at least 0; 0 if the device is unusable; None if the free memory is unknown."""
        if self.unusable_reason:
            return 0
        return None if self.free_bytes is None else max(0, self.free_bytes - self.committed_bytes)


def count_devices(devices: Iterable[DeviceCapacity]) -> int:
    """Return the number of devices; those that are alike count each."""
    return sum(device.count for device in devices)


def device_capacities(
    snapshot: Snapshot, committed: Mapping[DeviceIndex, int], only: Iterable[int | str] | None = None
) -> tuple[DeviceCapacity, ...]:
    """Return the memory available on each GPU of a snapshot; in MIG mode, on each of its MIG devices.

    Args:
        snapshot: the machine now.
        committed: committed bytes; those of a whole GPU count for each of its MIG devices, because it is not known
            which of them will be used.
        only: GPUs to consider by index, and MIG devices by UUID; all if left out.
    """
    selected = None if only is None else set(only)
    return tuple(
        replace(device, committed_bytes=_committed_on(device, committed))
        for gpu in snapshot.gpus
        for device in _devices_of(gpu)
        if selected is None or device.index in selected or (device.mig and device.uuid in selected)
    )


_SYSTEM_BYTES = 4 << 30
"""What the system and its page cache are left of a memory that GPU and CPU share. An assumption."""


def described_devices(gpu: Gpu | None, memory_bytes: int, count: int) -> tuple[DeviceCapacity, ...]:
    """Return this number of empty GPUs of a machine that is described rather than read: alike, so one entry."""
    is_whole = gpu is not None and memory_bytes == gpu.total_bytes
    reserved = (gpu.reserved_bytes or 0) if gpu is not None and is_whole else 0
    if gpu is not None and gpu.unified:
        reserved += _SYSTEM_BYTES
    alike = DeviceCapacity(
        index=0,
        uuid=None,
        name=gpu.label if gpu else "as described",
        total_bytes=memory_bytes,
        free_bytes=memory_bytes - reserved,
        reserved_bytes=reserved,
        count=count,
        shares_host_memory=gpu is not None and gpu.unified,
    )
    return (alike,)


def commit(
    devices: Iterable[DeviceCapacity], taken: Iterable[tuple[DeviceCapacity, int]]
) -> tuple[DeviceCapacity, ...]:
    """Return the devices with further bytes committed.

    Args:
        devices: capacities before.
        taken: (device, bytes) of a job that is placed on some of them.
    """
    added: dict[DeviceIndex, int] = {}
    for device, size in taken:
        added[device.device_index] = added.get(device.device_index, 0) + size
    return tuple(
        replace(device, committed_bytes=device.committed_bytes + _committed_on(device, added)) for device in devices
    )


def _committed_on(device: DeviceCapacity, committed: Mapping[DeviceIndex, int]) -> int:
    return sum(committed.get(index, 0) for index in {device.index, device.device_index})


def _devices_of(gpu: GpuReading) -> Iterator[DeviceCapacity]:
    reason = unusable_reason(gpu)
    if gpu.mig:
        yield from _mig_devices_of(gpu, reason)
        return
    yield DeviceCapacity(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        free_bytes=None if gpu.is_stale else gpu.free_bytes,
        unread_reason=gpu.reason("free_bytes") if gpu.is_stale or gpu.free_bytes is None else None,
        reserved_bytes=gpu.reserved_bytes or 0,
        unusable_reason=reason,
        shares_host_memory=gpu.shares_host_memory,
    )


def _mig_devices_of(gpu: GpuReading, unusable_reason: str | None) -> Iterator[DeviceCapacity]:
    devices = gpu.mig or ()
    instances = [device.gpu_instance for device in devices]
    for device in devices:
        yield DeviceCapacity(
            index=gpu.index,
            uuid=device.uuid,
            name=gpu.name,
            total_bytes=device.total_bytes,
            free_bytes=None if gpu.is_stale else device.free_bytes,
            mig=device,
            mig_label=mig_label(gpu.index, device, shares_memory=instances.count(device.gpu_instance) > 1),
            unusable_reason=unusable_reason,
        )


def unusable_reason(gpu: GpuReading) -> str | None:
    """Return why no program can be started on a GPU, regardless of free memory; None: programs can be started."""
    if gpu.mig is not None and not gpu.mig:
        reason = gpu.reason("mig")
        return _NO_MIG_DEVICE if reason is None else f"is in MIG mode, and {reason}"
    for fault in gpu.faults:
        if fault.field is None and fault.code in _UNUSABLE_FAULTS:
            return _UNUSABLE_FAULTS[fault.code]
    if gpu.compute_mode == "prohibited":
        return "does not allow compute programs (compute mode prohibited)"
    programs = [process for process in gpu.processes or () if any(kind != "graphics" for kind in process.kinds)]
    # an MPS server is the one program, and starts others' work for them
    joins = any("mps" in each.kinds or (each.name or "").startswith("nvidia-cuda-mps") for each in programs)
    if gpu.compute_mode == "exclusive_process" and programs and not joins and gpu.mig is None:
        return "allows one program at a time (compute mode exclusive-process) and is in use"
    return None
