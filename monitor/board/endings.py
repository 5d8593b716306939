"""The end of a process: whether it ran out of memory, by its last counters and the last reading of its GPU.

Only the parent of a process learns its exit code.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.sizes import MIB, format_gib

from ..host.kernel_files import file_text

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget

    from ..snapshot.snapshot import GpuReading, ProcessCounters
    from .comparison import PeakUsage, Status
    from .run_phases import RunPhase

_OUT_OF_MEMORY_ERROR = "OutOfMemoryError"
_MAX_SECONDS_AFTER_OUT_OF_MEMORY = 30.0
"""A failed allocation explains the end of the process within this time; it may wait for the other ranks first."""
_FULL_FRACTION = 0.02
_FULL_BYTES = 512 * MIB
"""A GPU is nearly full if less than this and less than the fraction of its total is free: the next block may fail."""

KERNEL_KILLED = "ended when the kernel killed a process (probably this one) because host memory ran out"


def process_end(
    last_status: Status | None,
    phase: RunPhase | None,
    counters: ProcessCounters | None,
    gpu: GpuReading,
    *,
    ended_at: float,
    kernel_killed: bool = False,
    grew_bytes: int = 0,
    still_runs: bool = False,
) -> tuple[Status, str]:
    """Return the status of a process that has ended, and how it ended in words.

    Args:
        last_status: its status at the last reading with it; None: it had none.
        phase: phase of its run then; None: it never held memory.
        counters: its last counters, if it ran with the probe.
        gpu: the last reading of its GPU with the process.
        ended_at: Unix seconds of the first reading without it.
        kernel_killed: at that time the kernel killed a process because host memory ran out.
        grew_bytes: what it allocated from one reading to the next, if it grew.
        still_runs: it has left the GPU alone.
    """
    if still_runs:
        return "ended", f"no longer holds memory on GPU {gpu.label}, but is still running"
    since_failure = ended_at - ((counters.out_of_memory_time if counters else None) or -math.inf)
    if counters and (counters.error == _OUT_OF_MEMORY_ERROR or since_failure < _MAX_SECONDS_AFTER_OUT_OF_MEMORY):
        return "out_of_memory", "has run out of memory, as torch itself reports"
    if counters and (counters.ended is not None or counters.error):
        return "ended", f"was ended by {counters.error}" if counters.error else "has finished"
    if kernel_killed:
        return "out_of_memory", KERNEL_KILLED
    free = gpu.free_bytes
    if free is None or free >= max(_FULL_BYTES, round(_FULL_FRACTION * (gpu.total_bytes or 0)), grew_bytes):
        return "ended", "was killed, or crashed" if counters else "has ended"
    nearly_full = f"its GPU was nearly full then ({format_gib(free)} GiB free)"
    if phase == "steady" and last_status not in ("over", "growing"):
        return "ended", f"has ended; {nearly_full}"
    when = "while it grew" if last_status == "growing" else "before it was steady"
    return "out_of_memory", f"ended {when}, and {nearly_full}: it has probably run out of memory"


def peak_sentence(peak: PeakUsage | None, budget: Budget) -> str:
    """Return the peak memory of a process beside the peak that its budget predicts."""
    span = f"the budget predicts {format_gib(budget.peak.low_bytes)} to {format_gib(budget.peak.shown_high_bytes)}"
    if peak is None:
        return f"its memory use was never known ({span})"
    return f"held at most {format_gib(peak.size_bytes)} GiB; {span}"


def count_kernel_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """Return how many processes the kernel's OOM killer has ended since boot; None if it is not reported."""
    counts = (line.split()[1] for line in file_text(vmstat).splitlines() if line.startswith("oom_kill "))
    return next(map(int, counts), None)
