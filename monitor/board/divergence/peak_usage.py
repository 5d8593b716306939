"""The highest memory use of a process, from the most exact source that is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...snapshot import GpuProcess, MemorySample, ProcessCounters, usual_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakUsage:
    """The most memory that a process has held on one GPU."""

    size_bytes: int
    source: Literal["probe", "accounting", "seen"]
    """Torch's own counters, the driver's accounting, or the highest reading (a peak between two readings is missed)."""
    interval_seconds: float | None = None
    """Time between two readings, if they are the only source."""


def peak_usage(seen_bytes: int | None, history: Sequence[MemorySample], process: GpuProcess | None) -> PeakUsage | None:
    """Return the peak memory of a process; None if no memory was ever seen.

    Args:
        seen_bytes: highest reading.
        history: recent readings, for their interval.
        process: latest reading of the process, with torch's counters if it runs with the probe.
    """
    seen = seen_bytes or 0
    if process and process.counters:
        from_probe = _probe_peak_bytes(process, process.counters)
        if from_probe is not None:
            return PeakUsage(size_bytes=max(from_probe, seen), source="probe")
    if process and process.peak_bytes is not None:
        return PeakUsage(size_bytes=max(process.peak_bytes, seen), source="accounting")
    if seen_bytes is None:
        return None
    return PeakUsage(size_bytes=seen_bytes, source="seen", interval_seconds=usual_interval(history))


def _probe_peak_bytes(process: GpuProcess, counters: ProcessCounters) -> int | None:
    """Return torch's peak of reserved bytes plus the present overhead outside of torch (CUDA context, libraries)."""
    peak, reserved, used = counters.reserved_peak_bytes, counters.reserved_bytes, process.used_bytes
    if peak is None or reserved is None or used is None:
        return None
    return peak + max(0, used - reserved)
