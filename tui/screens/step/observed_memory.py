"""A memory snapshot as the step graph draws it, beside the predicted step on one scale."""

from textual.content import Content

from vramtop.estimator.budget import Budget, ComponentName, Components, PhaseMark
from vramtop.estimator.common import format_gib
from vramtop.estimator.crash import MemorySnapshot, size_text

from ...draw import phase_place, printable
from .step_graph_rows import HEADROOM, StepMemory, step_top_bytes


def observed_memory(snapshot: MemorySnapshot) -> StepMemory:
    """Return the last recorded step; without a history, what was held at the end, as one moment."""
    line = snapshot.timeline
    if line is not None:
        return StepMemory(
            positions=line.events,
            end=line.events[-1] + 1,
            levels=line.levels,
            device_bytes=line.reserved_bytes,
            phases=line.phases,
        )
    sizes: dict[ComponentName, int] = {}
    for name, size in snapshot.components.items():
        drawn = "temporary" if name == "gradients or temporary" or name == "unknown" else name  # noqa: PLR1714
        sizes[drawn] = sizes.get(drawn, 0) + size
    phase = snapshot.failed.phase if snapshot.failed else None
    return StepMemory(
        positions=(0,),
        end=1,
        levels=(Components(**sizes),),
        device_bytes=(snapshot.reserved_bytes,),
        phases=(PhaseMark(name=phase, event=0),) if phase else (),
    )


def common_top_bytes(budget: Budget, snapshot: MemorySnapshot, gpu_bytes: int | None) -> int:
    """Return the bytes at the top of both graphs."""
    tried = snapshot.failed.tried_bytes if snapshot.failed else 0
    held = max(snapshot.reserved_bytes, snapshot.allocated_bytes + tried)
    return max(step_top_bytes(budget, gpu_bytes), round(HEADROOM * held))


def observed_line(snapshot: MemorySnapshot, name: str) -> Content:
    """Return the snapshot in a few words."""
    words = [
        f"observed, GPU {snapshot.device}",
        f"{format_gib(snapshot.allocated_bytes)} GiB allocated, {format_gib(snapshot.reserved_bytes)} reserved",
    ]
    failed = snapshot.failed
    if failed is not None:
        where = f" {phase_place(failed.phase)}" if failed.phase else ""
        place = f", at {failed.place}" if failed.place else ""
        words.append(f"✗ {size_text(failed.tried_bytes)} more failed{where}{place}")
    if snapshot.timeline is None:
        words.append("no history: only its end is known")
    words.append(name)
    return Content(printable("  ".join(words)))
