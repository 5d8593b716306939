"""The machine that a job is to run on: this one as it is now, or one that is described."""

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.gpu_catalogue import Gpu

from ...fit.device_capacity import DeviceCapacity, device_capacities
from ...host.host_memory import HostRam, available_host_memory
from ...snapshot.snapshot import Snapshot
from ...sources.nvml.call_threads import shut_down
from ...sources.nvml.nvml_source import NvmlSource
from ...storage.reservations import Reservations

DRIVER_TIMEOUT_SECONDS = 20.0
"""So long the driver may take to answer: without persistence mode it starts up first, card by card."""
Capabilities = Mapping[int, tuple[int, int]]
"""CUDA compute capability by GPU index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the job is to run."""

    devices: tuple[DeviceCapacity, ...]
    """What the GPUs that the user chose, or all, can give."""
    snapshot: Snapshot | None = None
    """Of this machine; None: another one is described, or this one's GPUs cannot be seen."""
    chosen: bool = False
    """The user named the GPUs; else the job takes those that its environment shows it."""
    host: HostRam | None = None
    """Its RAM; None: not known, of a machine that is described."""
    unavailable_reason: str | None = None
    """Why this machine's GPUs cannot be seen."""
    gpu_type: Gpu | None = None
    """The kind of card; None: not one of the catalogue."""
    capabilities: Callable[[], Capabilities] = dict
    """Of the GPUs; those that are not known are left out."""

    @property
    def is_described(self) -> bool:
        """Another machine than this one was described."""
        return self.snapshot is None and self.unavailable_reason is None

    @property
    def memory_bytes(self) -> int | None:
        """Of the largest card; None: not known."""
        return max((room.total_bytes for room in self.devices if room.total_bytes), default=None)


def this_machine(
    only: Callable[[Snapshot], Collection[int] | None] = lambda _: None, *, seconds: float = DRIVER_TIMEOUT_SECONDS
) -> Machine:
    """This machine as NVML shows it now.

    Args:
        only: chooses the GPUs to consider, by index; None: all.
        seconds: so long the driver may take to answer.
    """
    answers: queue.SimpleQueue[Snapshot | CannotTellError] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(answers,), name="preflight NVML", daemon=True).start()
    try:
        snapshot = answers.get(timeout=seconds)
    except queue.Empty:
        return Machine(
            devices=(),
            unavailable_reason=f"the NVIDIA driver gives no answer within {seconds:g} seconds",
            host=available_host_memory(),
        )
    if isinstance(snapshot, CannotTellError):
        return Machine(devices=(), unavailable_reason=snapshot.message.rstrip("."), host=available_host_memory())
    indices = only(snapshot)
    rooms = device_capacities(snapshot, Reservations().committed(snapshot), indices)
    card = next((room.gpu_type for room in rooms if room.name), None)
    named = indices is not None
    return Machine(
        devices=rooms,
        snapshot=snapshot,
        chosen=named,
        gpu_type=card,
        capabilities=compute_capabilities,
        host=available_host_memory(),
    )


def _read(answers: "queue.SimpleQueue[Snapshot | CannotTellError]") -> None:
    """One reading; a driver with a lost GPU may never come back from it."""
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


def described_machine(rooms: tuple[DeviceCapacity, ...], card: Gpu | None, host: HostRam | None = None) -> Machine:
    """A machine that is not this one."""
    known = {} if card is None else dict.fromkeys((room.index for room in rooms), card.compute_capability)
    return Machine(devices=rooms, gpu_type=card, capabilities=lambda: known, host=host)


def compute_capabilities() -> Capabilities:
    """Of this machine's GPUs, as the driver tells them."""
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
