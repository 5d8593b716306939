"""Which GPUs of this machine a job's ranks will take, if it is started as its environment is."""

from ...attach.gpu_assignment import GpuAssignment, assign_gpu, visible_mig_devices
from ...attach.gpu_environment import GpuEnvironment, nvml_mig_parent
from ...fit.device_capacity import DeviceCapacity
from .check_context import CheckContext


def assign_gpus(context: CheckContext) -> tuple[GpuAssignment, ...]:
    """A seat for each rank on this machine, by its number; empty: this machine's GPUs are not to be seen."""
    snapshot = context.machine.snapshot
    if snapshot is None:
        return ()
    ranks = context.local_ranks or context.job.parallel.world_size
    choices = (
        GpuEnvironment.from_environ(
            context.environ, local_rank=rank, mig_parent=nvml_mig_parent if rank == 0 else lambda _: None
        )
        for rank in range(ranks)
    )
    return tuple(assign_gpu(choice, snapshot.gpus, pid=0) for choice in choices)


def assigned_gpu_indices(context: CheckContext) -> tuple[int, ...]:
    """Indices of the GPUs that the ranks take, those that are there; each once."""
    here = {gpu.index for gpu in context.machine.snapshot.gpus} if context.machine.snapshot else set()
    return tuple(dict.fromkeys(seat.gpu for seat in assign_gpus(context) if seat.gpu is not None and seat.gpu in here))


def target_devices(context: CheckContext) -> tuple[DeviceCapacity, ...]:
    """What the GPUs can give that the job will take; all that are considered, where that is not known."""
    rooms = context.machine.devices
    if context.machine.chosen:
        return rooms
    slices = _named_mig_devices(context)
    if slices:
        return tuple(room for room in rooms if room.uuid in slices)
    taken = assigned_gpu_indices(context)
    ranks = context.local_ranks or context.job.parallel.world_size
    chosen = tuple(room for room in rooms if room.index in taken)
    return chosen if len(chosen) == ranks else rooms


def _named_mig_devices(context: CheckContext) -> tuple[str, ...]:
    gpus = context.machine.snapshot.gpus if context.machine.snapshot else ()
    return visible_mig_devices(GpuEnvironment.from_environ(context.environ, local_rank=None), gpus)
