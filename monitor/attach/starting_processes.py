"""Processes of training jobs that have just started and will allocate more GPU memory than they hold now."""

import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.server_budget import budget_on_gpu

from ..snapshot.snapshot import DeviceIndex, GpuProcess, Snapshot
from .attachment import Attachment
from .read_run import read_run

READING_SECONDS = 5.0
MAX_STARTING_SECONDS = 600.0
"""Nearly every job has allocated its memory after this time; the dashboard detects it from the memory's course."""


class StartingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that will allocate more memory."""

    gpu_index: int
    pid: int
    remaining_bytes: int
    """Memory that its budget predicts and that it does not hold yet."""
    device_index: DeviceIndex
    """The GPU, or the GPU instance of it."""

    @property
    def sentence(self) -> str:
        """The expected growth in words."""
        more = format_gib(self.remaining_bytes)
        return f"GPU {self.gpu_index}: process {self.pid} has just started and is expected to take {more} GiB more."


def find_starting_processes(
    snapshot: Snapshot,
    estimate: Callable[[Attachment], Budget],
    *,
    only: Collection[int] | None = None,
    exclude_pids: Collection[int] = (),
    read_run: Callable[..., Attachment] = read_run,
    on_unread: Callable[[str], object] = lambda _: None,
    seconds: float = READING_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[StartingProcess, ...]:
    """Return the recently started processes whose job can be read and that hold less than its budget predicts.

    Thousands of processes may have just started, and to read one takes milliseconds, so there is a time limit.

    Args:
        snapshot: this machine now.
        estimate: a quick estimate of a job that was read; may raise VramtopError.
        only: indices of the GPUs to examine; all if left out.
        exclude_pids: processes that are accounted for already.
        read_run: reads a running process.
        on_unread: receives a sentence if processes were left unread at the time limit.
        seconds: the time limit.
        clock: monotonic seconds.
    """
    until = clock() + seconds
    unread = 0
    on_gpu = {process.pid for _, process in snapshot.processes()}
    budgets: dict[int, Budget | None] = dict.fromkeys(exclude_pids)
    found = []
    for gpu, process in snapshot.processes():
        if (only is not None and gpu.index not in only) or "compute" not in process.kinds:
            continue
        if process.start_time is None or snapshot.time - process.start_time >= MAX_STARTING_SECONDS:
            continue
        if process.pid not in budgets and clock() > until:
            unread += 1
            continue
        if process.pid not in budgets:
            budgets |= _budgets_of_job(process, on_gpu, estimate, read_run)
        budget = budgets.get(process.pid)
        budget = budget and budget_on_gpu(budget, gpu.cuda_total_bytes)
        remaining = (budget.steady_device_bytes if budget else 0) - (process.used_bytes or 0)
        if budget is not None and process.used_bytes is not None and remaining > 0:
            device = process.device_index_on(gpu.index)
            found.append(
                StartingProcess(gpu_index=gpu.index, pid=process.pid, remaining_bytes=remaining, device_index=device)
            )
    if unread:
        on_unread(
            f"{unread:,} process{'es have' if unread > 1 else ' has'} just started and could not be read within "
            f"{seconds:g} seconds; their future memory is not counted."
        )
    return tuple(found)


def remaining_bytes_by_device(processes: Collection[StartingProcess]) -> Mapping[DeviceIndex, int]:
    """Return the bytes that these processes will yet allocate, by GPU or GPU instance."""
    total: dict[DeviceIndex, int] = {}
    for each in processes:
        total[each.device_index] = total.get(each.device_index, 0) + each.remaining_bytes
    return total


def _budgets_of_job(
    process: GpuProcess,
    on_gpu: Collection[int],
    estimate: Callable[[Attachment], Budget],
    read_run: Callable[..., Attachment],
) -> dict[int, Budget | None]:
    """Return the budget of each rank of the process's job, by pid; None for a process without a budget."""
    try:
        attachment = read_run(process.pid, start_time=process.start_time, on_gpu=on_gpu)
        budget = None if attachment.reading.missing else estimate(attachment)
    except VramtopError:
        return {process.pid: None}
    if budget is None:
        return {process.pid: None, **{rank.pid: None for rank in attachment.ranks}}
    complete = len(attachment.ranks) == len(budget.ranks)
    ranks = {rank.pid: budget.of_rank(at) if complete else budget for at, rank in enumerate(attachment.ranks)}
    return {process.pid: None, **ranks}
