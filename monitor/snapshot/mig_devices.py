"""MIG devices as readings of their own: whatever is shown of a GPU can be shown of each of them."""

from collections.abc import Iterator, Sequence

from vramtop.estimator.common.sizes import format_gib

from .figures import Fault
from .snapshot import GpuKey, GpuProcess, GpuReading, MigReading

_FIELDS = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes")


class MigDevice(GpuReading, frozen=True, kw_only=True):
    """One MIG device, with the memory of its GPU instance; ``index`` is that of the GPU.

    If several devices share a GPU instance, the first one represents its memory and lists the processes of all.
    """

    device: MigReading
    parent_key: GpuKey
    """Key of the GPU that it is a part of."""
    shares_memory: bool = False
    """Other devices use the same GPU instance and its memory."""
    shares_memory_of: str | None = None
    """Label of the device that represents this memory; None: this one does."""

    @property
    def key(self) -> GpuKey:
        """Uuid and profile: with another profile it is another device."""
        return f"{self.device.uuid} {self.device.profile or ''}"

    @property
    def whole_gpu_key(self) -> GpuKey:
        """Key of the GPU that it is a part of."""
        return self.parent_key

    @property
    def label(self) -> str:
        """GPU and GPU instance, ``0:3``; with the compute instance where there are several: ``0:3:1``."""
        return mig_label(self.index, self.device, shares_memory=self.shares_memory)

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: after its GPU, by its instances."""
        return (self.index, *self.instances)

    @property
    def instances(self) -> tuple[int, int]:
        """Indices of its GPU instance and compute instance."""
        return self.device.gpu_instance, self.device.compute_instance


def mig_label(index: int, device: MigReading, *, shares_memory: bool) -> str:
    """Return a label with the indices of nvidia-smi: GPU, GPU instance, and compute instance where it is needed.

    Args:
        index: of the GPU.
        device: the MIG device.
        shares_memory: other devices use the same GPU instance.
    """
    part = f":{device.compute_instance}" if shares_memory or device.compute_instance else ""
    return f"{index}:{device.gpu_instance}{part}"


def mig_devices(gpu: GpuReading) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU by instance; none if MIG mode is off or unknown."""
    if not gpu.mig:
        return ()
    listed = sorted(gpu.mig, key=lambda device: (device.gpu_instance, device.compute_instance))
    parts: dict[int, list[MigReading]] = {}
    for device in listed:
        parts.setdefault(device.gpu_instance, []).append(device)
    return tuple(_device(gpu, device, parts[device.gpu_instance]) for device in listed)


def processes_by_device(gpu: GpuReading, devices: Sequence[MigDevice]) -> Iterator[tuple[GpuReading, GpuProcess]]:
    """Yield each process with its MIG device; with the GPU itself if there is none or it is unknown.

    Args:
        gpu: the GPU.
        devices: its MIG devices (``mig_devices``).
    """
    by_instances: dict[tuple[int | None, int | None], GpuReading] = {device.instances: device for device in devices}
    by_instances |= {
        (device.device.gpu_instance, None): device for device in devices if device.shares_memory_of is None
    }
    for process in gpu.processes or ():
        instance, compute = process.gpu_instance, process.compute_instance
        device = by_instances.get((instance, compute)) or by_instances.get((instance, None)) or gpu
        yield device, process


def device_of(gpu: GpuReading, process: GpuProcess) -> GpuReading:
    """Return the MIG device that a process of the GPU runs in, else the GPU itself."""
    return next((device for device, each in processes_by_device(gpu, mig_devices(gpu)) if each is process), gpu)


def _device(gpu: GpuReading, device: MigReading, same_instance: Sequence[MigReading]) -> MigDevice:
    shared, first = len(same_instance) > 1, same_instance[0]
    processes = gpu.processes and tuple(each for each in gpu.processes if each.gpu_instance == device.gpu_instance)
    own = processes and tuple(each for each in processes if each.compute_instance == device.compute_instance)
    return MigDevice(
        index=gpu.index,
        uuid=device.uuid,
        name=" ".join(filter(None, (gpu.name, "MIG", device.profile))),
        **{name: getattr(device, name) for name in _FIELDS},
        compute_mode=gpu.compute_mode,
        processes=processes if device is first else own,
        faults=_faults(gpu, device, processes),
        read_at=gpu.read_at,
        device=device,
        parent_key=gpu.key,
        shares_memory=shared,
        shares_memory_of=None if device is first else mig_label(gpu.index, first, shares_memory=True),
    )


def _faults(gpu: GpuReading, device: MigReading, processes: tuple[GpuProcess, ...] | None) -> tuple[Fault, ...]:
    """Return the device's faults under the names of its own fields."""
    faults = [fault for fault in gpu.faults if fault.field == "processes"]
    reason = next((fault for fault in gpu.faults if fault.field == "mig"), None)
    if reason is not None and device.used_bytes is None:
        faults += [Fault(field=field, code=reason.code, message=reason.message) for field in _FIELDS]
    held = sum(process.used_bytes or 0 for process in processes or ())
    if device.used_bytes is not None and held > device.used_bytes:
        faults.append(excess_fault(held, device.used_bytes))
    return tuple(faults)


def excess_fault(held: int, used: int) -> Fault:
    """Return the fault of a device whose processes hold more bytes than it counts as used."""
    message = (
        f"the processes' figures add up to {format_gib(held)} GiB, more than the "
        f"{format_gib(used)} GiB that the driver counts as used"
    )
    return Fault(field="unattributed_bytes", code="IMPLAUSIBLE", message=message)
