"""The MIG devices of a GPU as readings of their own, so that all that is said of a GPU can be said of each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramtop.estimator.common.sizes import format_gib

from .snapshot import Fault, GpuKey, GpuProcess, GpuReading, MigReading

_FIELDS = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice(GpuReading):
    """One MIG device, with the memory of its GPU instance; ``index`` is that of the GPU.

    Where several share a GPU instance, the first one stands for its memory: its processes are those of all.
    """

    device: MigReading
    parent_key: GpuKey
    """Of the GPU that it is a part of."""
    shares_memory: bool = False
    """Other devices have the same memory."""
    shares_memory_of: str | None = None
    """Label of the one that stands for the memory; None: this one."""

    @property
    def key(self) -> GpuKey:
        """Another profile is another device, whatever its uuid."""
        return f"{self.device.uuid} {self.device.profile or ''}"

    @property
    def whole_gpu_key(self) -> GpuKey:
        """Of the GPU that it is a part of."""
        return self.parent_key

    @property
    def label(self) -> str:
        """``0:3``: GPU and GPU instance; the compute instance too, where there are several: ``0:3:1``."""
        return mig_label(self.index, self.device, shares_memory=self.shares_memory)

    @property
    def order(self) -> tuple[int, ...]:
        """After its GPU, by its instances."""
        return (self.index, *self.instances)

    @property
    def instances(self) -> tuple[int, int]:
        """Numbers of its GPU instance and compute instance."""
        return self.device.gpu_instance, self.device.compute_instance


def mig_label(index: int, device: MigReading, *, shares_memory: bool) -> str:
    """As nvidia-smi counts: GPU, GI, and CI where that is needed to tell devices apart."""
    part = f":{device.compute_instance}" if shares_memory or device.compute_instance else ""
    return f"{index}:{device.gpu_instance}{part}"


def mig_devices(gpu: GpuReading) -> tuple[MigDevice, ...]:
    """The MIG devices by instance; none where MIG mode is off or not known."""
    if not gpu.mig:
        return ()
    listed = sorted(gpu.mig, key=lambda device: (device.gpu_instance, device.compute_instance))
    parts: dict[int, list[MigReading]] = {}
    for device in listed:
        parts.setdefault(device.gpu_instance, []).append(device)
    return tuple(_device(gpu, device, parts[device.gpu_instance]) for device in listed)


def processes_by_device(gpu: GpuReading, devices: Sequence[MigDevice]) -> Iterator[tuple[GpuReading, GpuProcess]]:
    """Each process with the MIG device that it runs in; with the GPU itself, where that is not known or there is none.

    Args:
        gpu: the GPU.
        devices: what ``mig_devices`` gives of it.
    """
    homes: dict[tuple[int | None, int | None], GpuReading] = {device.instances: device for device in devices}
    homes |= {(device.device.gpu_instance, None): device for device in devices if device.shares_memory_of is None}
    for process in gpu.processes or ():
        instance, part = process.gpu_instance, process.compute_instance
        yield (homes.get((instance, part)) or homes.get((instance, None)) or gpu if homes else gpu), process


def device_of(gpu: GpuReading, process: GpuProcess) -> GpuReading:
    """The MIG device that a process of the GPU runs in, else the GPU itself."""
    return next((home for home, each in processes_by_device(gpu, mig_devices(gpu)) if each is process), gpu)


def _device(gpu: GpuReading, device: MigReading, together: Sequence[MigReading]) -> MigDevice:
    shared, first = len(together) > 1, together[0]
    inside = _inside(gpu, device)
    return MigDevice(
        index=gpu.index,
        uuid=device.uuid,
        name=" ".join(filter(None, (gpu.name, "MIG", device.profile))),
        total_bytes=device.total_bytes,
        reserved_bytes=device.reserved_bytes,
        used_bytes=device.used_bytes,
        free_bytes=device.free_bytes,
        compute_mode=gpu.compute_mode,
        processes=inside if device is first else _of_part(inside, device.compute_instance),
        faults=_faults(gpu, device, inside),
        read_at=gpu.read_at,
        device=device,
        parent_key=gpu.key,
        shares_memory=shared,
        shares_memory_of=None if device is first else mig_label(gpu.index, first, shares_memory=True),
    )


def _inside(gpu: GpuReading, device: MigReading) -> tuple[GpuProcess, ...] | None:
    """The processes of its GPU instance."""
    if gpu.processes is None:
        return None
    return tuple(process for process in gpu.processes if process.gpu_instance == device.gpu_instance)


def _of_part(processes: tuple[GpuProcess, ...] | None, part: int) -> tuple[GpuProcess, ...] | None:
    """Those of one compute instance."""
    return processes and tuple(process for process in processes if process.compute_instance == part)


def _faults(gpu: GpuReading, device: MigReading, inside: tuple[GpuProcess, ...] | None) -> tuple[Fault, ...]:
    """What is not known of the device, by its own fields."""
    faults = [fault for fault in gpu.faults if fault.field == "processes"]
    reason = next((fault for fault in gpu.faults if fault.field == "mig"), None)
    if reason is not None and device.used_bytes is None:
        faults += [Fault(field=field, code=reason.code, message=reason.message) for field in _FIELDS]
    held = sum(process.used_bytes or 0 for process in inside or ())
    if device.used_bytes is not None and held > device.used_bytes:
        message = (
            f"the processes' figures add up to {format_gib(held)} GiB, more than the "
            f"{format_gib(device.used_bytes)} GiB that the driver counts as used"
        )
        faults.append(Fault(field="unattributed_bytes", code="IMPLAUSIBLE", message=message))
    return tuple(faults)
