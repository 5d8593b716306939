"""The machine that a job is to run on: this one as it is now, or one that the user describes."""

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from vramtop.estimator.common import CannotTellError, ProcessLimitError, start_thread
from vramtop.estimator.job import Gpu

from ...board.fit import DeviceCapacity, device_capacities
from ...host import HostRam, available_host_memory
from ...snapshot import Snapshot
from ...sources.nvml import NvmlSource, shut_down
from ...storage import Reservations

DRIVER_TIMEOUT_SECONDS = 20.0
"""Without persistence mode the driver first initialises every GPU."""
Capabilities = Mapping[int, tuple[int, int]]
"""CUDA compute capability by GPU index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that the job is to run on."""

    devices: tuple[DeviceCapacity, ...]
    """Memory available on the GPUs that the user chose, or on all."""
    snapshot: Snapshot | None = None
    """Snapshot of this machine; None: another machine is described, or this one's GPUs cannot be read."""
    chosen: bool = False
    """The user chose the GPUs; False: the job uses those that its environment makes visible."""
    host: HostRam | None = None
    """RAM; None: unknown, for a machine that is described."""
    unavailable_reason: str | None = None
    """Why this machine's GPUs cannot be read."""
    gpu_type: Gpu | None = None
    """Catalogue entry of the GPUs; None: not in the catalogue."""
    capabilities: Callable[[], Capabilities] = dict
    """Returns the compute capabilities that are known."""

    @property
    def is_described(self) -> bool:
        """True if the user described another machine than this one."""
        return self.snapshot is None and self.unavailable_reason is None

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the largest GPU; None: unknown."""
        return max((device.total_bytes for device in self.devices if device.total_bytes), default=None)


def this_machine(
    select: Callable[[Snapshot], Collection[int] | None] = lambda _: None,
    *,
    timeout_seconds: float = DRIVER_TIMEOUT_SECONDS,
) -> Machine:
    """Return this machine as NVML reports it now.

    Args:
        select: chooses the GPUs to consider, by index; None: all.
        timeout_seconds: time limit for the driver.

    Raises:
        ProcessLimitError: no thread can be started to ask the driver.
    """
    answers: queue.SimpleQueue[Snapshot | CannotTellError] = queue.SimpleQueue()
    host = available_host_memory()
    start_thread(threading.Thread(target=_read, args=(answers,), name="preflight NVML", daemon=True))
    try:
        snapshot = answers.get(timeout=timeout_seconds)
    except queue.Empty:
        reason = f"the NVIDIA driver gives no answer within {timeout_seconds:g} seconds"
        return Machine(devices=(), unavailable_reason=reason, host=host)
    if isinstance(snapshot, ProcessLimitError):
        raise snapshot
    if isinstance(snapshot, CannotTellError):
        return Machine(devices=(), unavailable_reason=snapshot.message.rstrip("."), host=host)
    indices = select(snapshot)
    devices = device_capacities(snapshot, Reservations().committed(snapshot), indices)
    return Machine(
        devices=devices,
        snapshot=snapshot,
        chosen=indices is not None,
        gpu_type=next((device.gpu_type for device in devices if device.name), None),
        capabilities=compute_capabilities,
        host=host,
    )


def described_machine(
    devices: tuple[DeviceCapacity, ...], gpu_type: Gpu | None, host: HostRam | None = None
) -> Machine:
    """Return a machine that is not this one."""
    known = {} if gpu_type is None else dict.fromkeys((each.index for each in devices), gpu_type.compute_capability)
    return Machine(devices=devices, gpu_type=gpu_type, capabilities=lambda: known, host=host)


def _read(answers: "queue.SimpleQueue[Snapshot | CannotTellError]") -> None:
    """Read one snapshot; a driver with a lost GPU may never return from this."""
    source = NvmlSource()
    try:
        source.open()
        try:
            snapshot = source.read()
        finally:
            source.close()
        answers.put(snapshot)
    except CannotTellError as error:
        answers.put(error)


def compute_capabilities() -> Capabilities:
    """Ask the driver for the compute capability of this machine's GPUs."""
    import pynvml

    found: dict[int, tuple[int, int]] = {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return found
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(device)
            except pynvml.NVMLError:
                continue
            found[index] = major, minor
    except pynvml.NVMLError:
        return found
    finally:
        shut_down(pynvml)
    return found
