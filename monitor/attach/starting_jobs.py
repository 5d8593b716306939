"""Training jobs that have just been started and will take more than they hold now, for whoever asks once."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import format_gib

from ..snapshot.snapshot import DeviceIndex, GpuProcess, Snapshot
from .read_run import Attachment, read_run

MAX_STARTING_SECONDS = 600.0
"""After so long nearly every job has taken what it takes; the dashboard, which sees its memory move, knows better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingProcess:
    """A process that will take more."""

    gpu_index: int
    pid: int
    remaining_bytes: int
    """What its budget says and it does not hold yet."""
    place: DeviceIndex
    """The GPU, or the GPU instance of it."""

    @property
    def sentence(self) -> str:
        """For people."""
        more = format_gib(self.remaining_bytes)
        return f"GPU {self.gpu_index}: process {self.pid} has just started, and is expected to take {more} GiB more."


def find_starting_processes(
    snapshot: Snapshot,
    estimate: Callable[[Attachment], Budget],
    *,
    only: Collection[int] | None = None,
    exclude_pids: Collection[int] = (),
    read_run: Callable[..., Attachment] = read_run,
) -> tuple[StartingProcess, ...]:
    """The young processes on the GPUs whose job can be read, and holds less than its budget says.

    Args:
        snapshot: this machine now.
        estimate: a quick estimate of a job that was read; may raise VramtopError.
        only: GPU indices to look at; all when left out.
        exclude_pids: processes that are reckoned with already.
        read_run: reads a running process.
    """
    on_gpu = {process.pid for _, process in snapshot.processes()}
    budgets: dict[int, Budget | None] = dict.fromkeys(exclude_pids)
    found = []
    for gpu, process in snapshot.processes():
        if (only is not None and gpu.index not in only) or not _is_young(process, snapshot.time):
            continue
        if process.pid not in budgets:
            budgets |= _read(process, on_gpu, estimate, read_run)
        budget = budgets.get(process.pid)
        if budget is not None and process.used_bytes is not None:
            rest = budget.steady_device_bytes - process.used_bytes
            if rest > 0:
                found.append(
                    StartingProcess(
                        gpu_index=gpu.index,
                        place=process.device_index_on(gpu.index),
                        pid=process.pid,
                        remaining_bytes=rest,
                    )
                )
    return tuple(found)


def remaining_bytes_by_place(growing: Collection[StartingProcess]) -> Mapping[DeviceIndex, int]:
    """Bytes by GPU, or GPU instance."""
    total: dict[DeviceIndex, int] = {}
    for each in growing:
        total[each.place] = total.get(each.place, 0) + each.remaining_bytes
    return total


def _is_young(process: GpuProcess, now: float) -> bool:
    return (
        process.start_time is not None
        and now - process.start_time < MAX_STARTING_SECONDS
        and "compute" in process.kinds
    )


def _read(
    process: GpuProcess,
    on_gpu: Collection[int],
    estimate: Callable[[Attachment], Budget],
    read_run: Callable[..., Attachment],
) -> dict[int, Budget | None]:
    """The budget of all ranks of the job; None for a process that is not theirs, or tells too little."""
    try:
        attachment = read_run(process.pid, start_time=process.start_time, on_gpu=on_gpu)
        budget = None if attachment.reading.missing else estimate(attachment)
    except VramtopError:
        return {process.pid: None}
    whole = len(attachment.ranks) == (budget.job.parallel.world_size if budget else 0)
    ranks = {rank.pid: budget.of_rank(at) if budget and whole else budget for at, rank in enumerate(attachment.ranks)}
    return {process.pid: None, **ranks}
