"""Leftovers in GPU memory: forgotten processes, processes that have ended, memory of no visible process."""

from collections.abc import Collection, Iterator

from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.plain_text import duration_text
from ..host.process_directory import ENDED_NOTE, ZOMBIE_NOTE
from ..snapshot.snapshot import GpuProcess
from .anomaly import Anomaly, RuleContext

_MIN_IDLE_SECONDS = 1800.0
"""Torch's longest default timeout: a process that waits for another rank has given up by then."""
_MIN_HELD_BYTES = 64 * MIB


def find_forgotten(context: RuleContext, helper_pids: Collection[int]) -> Iterator[Anomaly]:
    """Find idle processes of the viewer that are orphans, or beside which the viewer has started a later process.

    Args:
        context: the snapshot with its processes.
        helper_pids: of helper processes, which are reported separately.
    """
    if not context.live:
        return
    now, watch = context.snapshot.time, context.idle
    idle = {
        pid
        for pid, process in context.processes.items()
        if (watch.idle_seconds(process, now) or 0.0) >= _MIN_IDLE_SECONDS or watch.hardly_ever_worked(process, now)
    }
    working = [process for pid, process in context.processes.items() if pid not in idle]
    mine = [process for process in context.processes.values() if process.user == context.viewer]
    for process in mine:
        excluded = process.note is not None or (process.used_bytes or 0) < _MIN_HELD_BYTES
        if process.pid not in idle or process.pid in helper_pids or excluded:
            continue
        gpu = next(gpu for gpu in context.snapshot.gpus if gpu.index == context.home_gpus[process.pid])
        if len(gpu.processes or ()) == 1 and gpu.utilisation_percent != 0:  # nobody else is at work on it
            continue
        later = _later_process(context, process, mine)
        origin = context.origin_of(process)
        orphan = origin is not None and origin.orphan
        if (later or orphan) and not any(_are_related(context, process, other) for other in working):
            yield _forgotten_anomaly(context, process, later)


def _later_process(context: RuleContext, process: GpuProcess, mine: list[GpuProcess]) -> GpuProcess | None:
    """Return the viewer's latest process on the same GPU that started after this one and is unrelated to it."""
    home = context.home_gpus[process.pid]
    later = [
        other
        for other in mine
        if context.home_gpus[other.pid] == home
        and other.start_time is not None
        and process.start_time is not None
        and other.start_time > process.start_time
        and not _are_related(context, process, other)
    ]
    return max(later, key=lambda other: other.start_time or 0.0, default=None)


def _are_related(context: RuleContext, process: GpuProcess, other: GpuProcess) -> bool:
    """True if one started the other, or both have one parent; notebooks of one server are not related."""
    if process.pid in context.ancestors(other) or other.pid in context.ancestors(process):
        return True
    siblings = process.parent is not None and process.parent > 1 and process.parent == other.parent
    return siblings and not _is_notebook(process)


def _is_notebook(process: GpuProcess) -> bool:
    return "ipykernel" in (process.command or "")


def _forgotten_anomaly(context: RuleContext, process: GpuProcess, later: GpuProcess | None) -> Anomaly:
    now, held = context.snapshot.time, process.used_bytes or 0
    idle = context.idle.idle_seconds(process, now) or 0.0
    what = "Jupyter kernel" if _is_notebook(process) else "process"
    age = duration_text(context.age_seconds(process))
    does = (
        f"has been idle for {duration_text(idle)}"
        if idle >= _MIN_IDLE_SECONDS
        else f"has used {duration_text(process.cpu_seconds or 0.0)} of CPU time in total"
    )
    why = f"you have started {later.pid} on this GPU since" if later else "the program that started it has ended"
    kill = f"'kill {process.pid}' frees its memory"
    return Anomaly(
        kind="forgotten",
        gpu=context.home_gpus[process.pid],
        pids=(process.pid,),
        about=() if later is None else (later.pid,),
        held_bytes=held,
        sentence=f"your {what} {process.pid}, started {age} ago, holds {format_gib(held)} GiB and {does}; {why}",
        advice=f"if it is no longer needed, {'shutting it down in Jupyter or ' if _is_notebook(process) else ''}{kill}",
    )


def find_ended(context: RuleContext) -> Iterator[Anomaly]:
    """Find processes that have ended and whose memory is still held."""
    for gpu, process in context.snapshot.processes():
        note = process.note or ""
        if not process.used_bytes or not note.startswith((ENDED_NOTE, ZOMBIE_NOTE)):
            continue
        zombie = note.startswith(ZOMBIE_NOTE) and process.parent is not None
        why = (
            f"its parent {process.parent} has not reaped it: end the parent"
            if zombie
            else "one of its threads may hang in the driver, or another process shares the memory"
        )
        yield Anomaly(
            kind="ended",
            gpu=gpu.index,
            pids=(process.pid,),
            held_bytes=process.used_bytes,
            sentence=(f"process {process.pid} has ended, but {format_gib(process.used_bytes)} GiB are still held"),
            advice=why,
        )


_MIN_HIDDEN_BYTES = 512 * MIB
"""Twice what GPUs with a display were seen to hold outside of processes (260 MiB); GPUs without one hold 20 MiB."""


def find_hidden_memory(context: RuleContext) -> Iterator[Anomaly]:
    """Find memory of no visible process, beyond the driver's own."""
    for gpu in context.snapshot.gpus:
        rest = gpu.unattributed_bytes
        if rest is None or rest < _MIN_HIDDEN_BYTES or gpu.reserved_bytes is None:
            continue
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # rarely needed, and reads the catalogue

        model = match_nvml_name(gpu.name, None) if gpu.name else None
        if model is not None and model.unified:  # its driver may answer as if it did not share the host's memory
            continue
        others = "a process that is hidden from here (another container)"
        if gpu.processes:
            others = f"{others}, or memory that the visible ones share with the host (cudaMallocManaged)"
        yield Anomaly(
            kind="unseen",
            gpu=gpu.index,
            pids=(),
            held_bytes=rest,
            sentence=f"{format_gib(rest)} GiB do not belong to any visible process",
            advice=f"the owner may be {others}; if there is none, an ended process left this memory, and a GPU reset "
            "frees it",
        )
