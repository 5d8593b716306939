"""Which GPUs of this machine a job's ranks will take, if it is started as its environment is."""

from ...attach.gpu_assignment import DeviceChoice, Seat, nvml_mig_parent, seat_of, visible_mig_devices
from ...board.fit import Room
from .context import Context


def seats_of(context: Context) -> tuple[Seat, ...]:
    """A seat for each rank on this machine, by its number; empty: this machine's GPUs are not to be seen."""
    snapshot = context.machine.snapshot
    if snapshot is None:
        return ()
    ranks = context.local_ranks or context.job.parallel.world_size
    choices = (
        DeviceChoice.of(context.environ, local_rank=rank, mig_parent=nvml_mig_parent if rank == 0 else lambda _: None)
        for rank in range(ranks)
    )
    return tuple(seat_of(choice, snapshot.gpus, pid=0) for choice in choices)


def visible(context: Context) -> tuple[int, ...]:
    """Indices of the GPUs that the ranks take, those that are there; each once."""
    here = {gpu.index for gpu in context.machine.snapshot.gpus} if context.machine.snapshot else set()
    return tuple(dict.fromkeys(seat.gpu for seat in seats_of(context) if seat.gpu is not None and seat.gpu in here))


def rooms_to_take(context: Context) -> tuple[Room, ...]:
    """What the GPUs can give that the job will take; all that are considered, where that is not known."""
    rooms = context.machine.rooms
    if context.machine.chosen:
        return rooms
    slices = _named_mig_devices(context)
    if slices:
        return tuple(room for room in rooms if room.uuid in slices)
    taken = visible(context)
    ranks = context.local_ranks or context.job.parallel.world_size
    chosen = tuple(room for room in rooms if room.index in taken)
    return chosen if len(chosen) == ranks else rooms


def _named_mig_devices(context: Context) -> tuple[str, ...]:
    gpus = context.machine.snapshot.gpus if context.machine.snapshot else ()
    return visible_mig_devices(DeviceChoice.of(context.environ, local_rank=None), gpus)
