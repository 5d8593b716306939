"""GPUs that a job's ranks will use if it is started with its environment."""

from ..attach.gpu_assignment import GpuAssignment, GpuEnvironment, assign_gpu, visible_mig_devices
from ..board.capacity import DeviceCapacity
from .context import CheckContext

_MAX_RANKS = 1024
"""No machine has a GPU for more; of more ranks the first stand for the others."""


def assign_gpus(context: CheckContext) -> tuple[GpuAssignment, ...]:
    """Return the GPU of each rank on this machine, by local rank; empty if this machine's GPUs cannot be read."""
    snapshot = context.machine.snapshot
    if snapshot is None:
        return ()
    environments = (
        GpuEnvironment.from_environ(context.environ, local_rank=rank)
        for rank in range(min(context.ranks_here, _MAX_RANKS))
    )
    return tuple(assign_gpu(environment, snapshot.gpus, pid=0) for environment in environments)


def assigned_gpu_indices(context: CheckContext) -> tuple[int, ...]:
    """Return the indices of the existing GPUs that the ranks will use, each once."""
    here = {gpu.index for gpu in context.machine.snapshot.gpus} if context.machine.snapshot else set()
    gpus = (assignment.gpu for assignment in assign_gpus(context))
    return tuple(dict.fromkeys(gpu for gpu in gpus if gpu is not None and gpu in here))


def target_devices(context: CheckContext) -> tuple[DeviceCapacity, ...]:
    """Return the devices that the job will use; all considered ones if that is unknown."""
    devices = context.machine.devices
    if context.machine.chosen or context.devices.is_unknown:
        return devices
    gpus = context.machine.snapshot.gpus if context.machine.snapshot else ()
    mig_devices = visible_mig_devices(GpuEnvironment.from_environ(context.environ, local_rank=None), gpus)
    if mig_devices:
        return tuple(device for device in devices if device.uuid in mig_devices)
    indices = assigned_gpu_indices(context)
    chosen = tuple(device for device in devices if device.index in indices)
    return chosen if len(chosen) == context.ranks_here else devices
