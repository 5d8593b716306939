"""Memory that nobody seems to need: forgotten processes, processes that have ended, memory of no process at all."""

from collections.abc import Collection, Iterator

from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.processes import ENDED, ZOMBIE
from ..host.time_format import span
from ..snapshot.snapshot import GpuProcess, GpuReading
from .anomaly import Oddity, Sight

_IDLE_SECONDS = 1800.0
"""Torch's longest default timeout: whatever waits for another rank has given up by then."""
_USUAL_BYTES = 512 * MIB
"""Twice what cards that drive a display were seen to hold for no process (260 MiB); cards without one hold 20."""
_LEAST_BYTES = 64 * MIB


def forgotten(sight: Sight, helping: Collection[int]) -> Iterator[Oddity]:
    """Processes of the viewer that hold memory and do nothing, while a newer one of theirs runs beside, or as orphans.

    Args:
        sight: what is seen.
        helping: pids of helpers, of which something else is said.
    """
    if not sight.live:
        return
    idle = {pid for pid, process in sight.processes.items() if _is_idle(sight, process)}
    working = [process for pid, process in sight.processes.items() if pid not in idle]
    mine = [process for process in sight.processes.values() if process.user == sight.viewer]
    for process in mine:
        unsure = process.note is not None or (process.used_bytes or 0) < _LEAST_BYTES
        if process.pid not in idle or process.pid in helping or unsure or _computes(sight, process):
            continue
        newer = _newer(sight, process, mine)
        origin = sight.origin_of(process)
        orphan = origin is not None and origin.orphan
        if (newer or orphan) and not any(_belong_together(sight, process, other) for other in working):
            yield _forgotten(sight, process, newer)


def _is_idle(sight: Sight, process: GpuProcess) -> bool:
    now = sight.snapshot.time
    idle = sight.idle.idle_seconds(process, now) or 0.0
    return idle >= _IDLE_SECONDS or sight.idle.hardly_ever_worked(process, now)


def _computes(sight: Sight, process: GpuProcess) -> bool:
    """It is alone on its GPU, and that is not idle."""
    gpu = next(gpu for gpu in sight.snapshot.gpus if gpu.index == sight.homes[process.pid])
    return len(gpu.processes or ()) == 1 and gpu.utilisation_percent != 0


def _newer(sight: Sight, process: GpuProcess, mine: list[GpuProcess]) -> GpuProcess | None:
    """The same user's newest process on the same GPU, where that began after this one and is no relative of it."""
    home = sight.homes[process.pid]
    later = [
        other
        for other in mine
        if sight.homes[other.pid] == home
        and other.start_time is not None
        and process.start_time is not None
        and other.start_time > process.start_time
        and not _belong_together(sight, process, other)
    ]
    return max(later, key=lambda other: other.start_time or 0.0, default=None)


def _belong_together(sight: Sight, process: GpuProcess, other: GpuProcess) -> bool:
    """One started the other, or somebody started both; notebooks of one server have nothing to do with each other."""
    if process.pid in sight.ancestors(other) or other.pid in sight.ancestors(process):
        return True
    siblings = process.parent is not None and process.parent > 1 and process.parent == other.parent
    return siblings and not _is_notebook(process)


def _is_notebook(process: GpuProcess) -> bool:
    return "ipykernel" in (process.command or "")


def _forgotten(sight: Sight, process: GpuProcess, newer: GpuProcess | None) -> Oddity:
    now, held = sight.snapshot.time, process.used_bytes or 0
    idle = sight.idle.idle_seconds(process, now) or 0.0
    what = "Jupyter kernel" if _is_notebook(process) else "process"
    age = span(sight.age_seconds(process))
    does = (
        f"has done nothing for {span(idle)}"
        if idle >= _IDLE_SECONDS
        else f"has used {span(process.cpu_seconds or 0.0)} of processor time in all"
    )
    why = f"you have started {newer.pid} on this GPU since" if newer else "whatever started it has ended"
    kill = f"'kill {process.pid}' frees its memory"
    return Oddity(
        kind="forgotten",
        gpu_index=sight.homes[process.pid],
        pids=(process.pid,),
        about=() if newer is None else (newer.pid,),
        held_bytes=held,
        sentence=f"your {what} {process.pid}, started {age} ago, holds {format_gib(held)} GiB and {does}; {why}",
        advice=f"if it is no longer needed, {'shutting it down in Jupyter or ' if _is_notebook(process) else ''}{kill}",
    )


def ended(sight: Sight) -> Iterator[Oddity]:
    """Processes that have ended and whose memory is still held."""
    for gpu, process in sight.snapshot.processes():
        note = process.note or ""
        if not process.used_bytes or not note.startswith((ENDED, ZOMBIE)):
            continue
        zombie = note.startswith(ZOMBIE) and process.parent is not None
        why = (
            f"its parent {process.parent} has not taken notice of its end: end that one"
            if zombie
            else "a thread of it may hang in the driver, or another process shares the memory"
        )
        yield Oddity(
            kind="ended",
            gpu_index=gpu.index,
            pids=(process.pid,),
            held_bytes=process.used_bytes,
            sentence=f"process {process.pid} has ended, and {format_gib(process.used_bytes)} GiB of it are still held",
            advice=why,
        )


def unseen(sight: Sight) -> Iterator[Oddity]:
    """Memory of no process that is seen, more than the driver's own."""
    for gpu in sight.snapshot.gpus:
        rest = gpu.unattributed_bytes
        if rest is not None and rest >= _USUAL_BYTES and gpu.reserved_bytes is not None:
            yield _unseen(gpu, rest)


def _unseen(gpu: GpuReading, rest: int) -> Oddity:
    others = "a process that is hidden from here (another container)"
    if gpu.processes:
        others = f"{others}, or memory that those seen here share with the host (cudaMallocManaged)"
    return Oddity(
        kind="unseen",
        gpu_index=gpu.index,
        pids=(),
        held_bytes=rest,
        sentence=f"{format_gib(rest)} GiB belong to no process that is seen",
        advice=f"it may be {others}; if there is none, a process that has ended left it, and a GPU reset frees it",
    )
