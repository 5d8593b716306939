"""The machine that a job is to run on: this one as it is now, or one that the user describes."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.process_limit import ProcessLimitError
from vramtop.estimator.job.gpu_catalogue import Gpu

from ..board.capacity import DeviceCapacity, device_capacities
from ..host.available_ram import available_host_memory
from ..snapshot.snapshot import DeviceIndex, Snapshot
from ..sources.nvml.nvml_source import NvmlSource
from ..storage.reservations import Reservations

DRIVER_TIMEOUT_SECONDS = 20.0
"""Without persistence mode the driver first initialises every GPU."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the job is to run on."""

    devices: tuple[DeviceCapacity, ...]
    """Memory available on the GPUs that the user chose, or on all."""
    snapshot: Snapshot | None = None
    """Snapshot of this machine; None: another machine is described, or this one's GPUs cannot be read."""
    chosen: bool = False
    """The user chose the GPUs; False: the job uses those that its environment makes visible."""
    host: int | None = None
    """Bytes of RAM; None: unknown, for a machine that is described."""
    unavailable_reason: str | None = None
    """Why this machine's GPUs cannot be read."""
    gpu_type: Gpu | None = None
    """Catalogue entry of the GPUs; None: not in the catalogue."""

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
    committed: Callable[[Snapshot], Mapping[DeviceIndex, int]] = lambda snapshot: Reservations().committed(snapshot),
    timeout_seconds: float = DRIVER_TIMEOUT_SECONDS,
) -> Machine:
    """Return this machine as NVML reports it now.

    Args:
        select: chooses the GPUs to consider, by index; None: all.
        committed: returns free memory that is reserved, or that running jobs will take.
        timeout_seconds: time limit for the driver.

    Raises:
        ProcessLimitError: no thread can be started to ask the driver.
    """
    host, source = available_host_memory(), NvmlSource(first_timeout=timeout_seconds)
    try:
        source.open()
        snapshot = source.read()
    except ProcessLimitError:
        raise
    except CannotTellError as error:
        return Machine(devices=(), unavailable_reason=error.message.rstrip("."), host=host)
    finally:
        source.close()
    indices = select(snapshot)
    devices = device_capacities(snapshot, committed(snapshot), indices)
    return Machine(
        devices=devices,
        snapshot=snapshot,
        chosen=indices is not None,
        gpu_type=next((device.gpu_type for device in devices if device.name), None),
        host=host,
    )
