"""Memory that nobody seems to need: forgotten processes, processes that have ended, memory of no process at all."""

from collections.abc import Collection, Iterator

from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.plain_text import duration_text
from ..host.processes import ENDED_NOTE, ZOMBIE_NOTE
from ..snapshot.snapshot import GpuProcess, GpuReading
from .anomaly import Anomaly, RuleContext

_IDLE_SECONDS = 1800.0
"""Torch's longest default timeout: whatever waits for another rank has given up by then."""
_MIN_HIDDEN_BYTES = 512 * MIB
"""Twice what cards that drive a display were seen to hold for no process (260 MiB); cards without one hold 20."""
_MIN_HELD_BYTES = 64 * MIB


def find_forgotten(context: RuleContext, helping: Collection[int]) -> Iterator[Anomaly]:
    """Processes of the viewer that hold memory and do nothing, while a newer one of theirs runs beside, or as orphans.

    Args:
        context: what is seen.
        helping: pids of helpers, of which something else is said.
    """
    if not context.live:
        return
    idle = {pid for pid, process in context.processes.items() if _is_idle(context, process)}
    working = [process for pid, process in context.processes.items() if pid not in idle]
    mine = [process for process in context.processes.values() if process.user == context.viewer]
    for process in mine:
        unsure = process.note is not None or (process.used_bytes or 0) < _MIN_HELD_BYTES
        if process.pid not in idle or process.pid in helping or unsure or _computes(context, process):
            continue
        newer = _newer(context, process, mine)
        origin = context.origin_of(process)
        orphan = origin is not None and origin.orphan
        if (newer or orphan) and not any(_belong_together(context, process, other) for other in working):
            yield _forgotten(context, process, newer)


def _is_idle(context: RuleContext, process: GpuProcess) -> bool:
    now = context.snapshot.time
    idle = context.idle.idle_seconds(process, now) or 0.0
    return idle >= _IDLE_SECONDS or context.idle.hardly_ever_worked(process, now)


def _computes(context: RuleContext, process: GpuProcess) -> bool:
    """It is alone on its GPU, and that is not idle."""
    gpu = next(gpu for gpu in context.snapshot.gpus if gpu.index == context.homes[process.pid])
    return len(gpu.processes or ()) == 1 and gpu.utilisation_percent != 0


def _newer(context: RuleContext, process: GpuProcess, mine: list[GpuProcess]) -> GpuProcess | None:
    """The same user's newest process on the same GPU, where that began after this one and is no relative of it."""
    home = context.homes[process.pid]
    later = [
        other
        for other in mine
        if context.homes[other.pid] == home
        and other.start_time is not None
        and process.start_time is not None
        and other.start_time > process.start_time
        and not _belong_together(context, process, other)
    ]
    return max(later, key=lambda other: other.start_time or 0.0, default=None)


def _belong_together(context: RuleContext, process: GpuProcess, other: GpuProcess) -> bool:
    """One started the other, or somebody started both; notebooks of one server have nothing to do with each other."""
    if process.pid in context.ancestors(other) or other.pid in context.ancestors(process):
        return True
    siblings = process.parent is not None and process.parent > 1 and process.parent == other.parent
    return siblings and not _is_notebook(process)


def _is_notebook(process: GpuProcess) -> bool:
    return "ipykernel" in (process.command or "")


def _forgotten(context: RuleContext, process: GpuProcess, newer: GpuProcess | None) -> Anomaly:
    now, held = context.snapshot.time, process.used_bytes or 0
    idle = context.idle.idle_seconds(process, now) or 0.0
    what = "Jupyter kernel" if _is_notebook(process) else "process"
    age = duration_text(context.age_seconds(process))
    does = (
        f"has done nothing for {duration_text(idle)}"
        if idle >= _IDLE_SECONDS
        else f"has used {duration_text(process.cpu_seconds or 0.0)} of processor time in all"
    )
    why = f"you have started {newer.pid} on this GPU since" if newer else "whatever started it has ended"
    kill = f"'kill {process.pid}' frees its memory"
    return Anomaly(
        kind="forgotten",
        gpu_index=context.homes[process.pid],
        pids=(process.pid,),
        about=() if newer is None else (newer.pid,),
        held_bytes=held,
        sentence=f"your {what} {process.pid}, started {age} ago, holds {format_gib(held)} GiB and {does}; {why}",
        advice=f"if it is no longer needed, {'shutting it down in Jupyter or ' if _is_notebook(process) else ''}{kill}",
    )


def find_ended(context: RuleContext) -> Iterator[Anomaly]:
    """Processes that have ended and whose memory is still held."""
    for gpu, process in context.snapshot.processes():
        note = process.note or ""
        if not process.used_bytes or not note.startswith((ENDED_NOTE, ZOMBIE_NOTE)):
            continue
        zombie = note.startswith(ZOMBIE_NOTE) and process.parent is not None
        why = (
            f"its parent {process.parent} has not taken notice of its end: end that one"
            if zombie
            else "a thread of it may hang in the driver, or another process shares the memory"
        )
        yield Anomaly(
            kind="ended",
            gpu_index=gpu.index,
            pids=(process.pid,),
            held_bytes=process.used_bytes,
            sentence=f"process {process.pid} has ended, and {format_gib(process.used_bytes)} GiB of it are still held",
            advice=why,
        )


def find_hidden_memory(context: RuleContext) -> Iterator[Anomaly]:
    """Memory of no process that is seen, more than the driver's own."""
    for gpu in context.snapshot.gpus:
        rest = gpu.unattributed_bytes
        if rest is not None and rest >= _MIN_HIDDEN_BYTES and gpu.reserved_bytes is not None:
            yield _unseen(gpu, rest)


def _unseen(gpu: GpuReading, rest: int) -> Anomaly:
    others = "a process that is hidden from here (another container)"
    if gpu.processes:
        others = f"{others}, or memory that those seen here share with the host (cudaMallocManaged)"
    return Anomaly(
        kind="unseen",
        gpu_index=gpu.index,
        pids=(),
        held_bytes=rest,
        sentence=f"{format_gib(rest)} GiB belong to no process that is seen",
        advice=f"it may be {others}; if there is none, a process that has ended left it, and a GPU reset frees it",
    )
