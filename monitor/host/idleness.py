"""How long a process has done nothing, by its processor time."""

from dataclasses import dataclass

from ..snapshot.snapshot import GpuProcess, Snapshot

MAX_IDLE_CPU_SHARE = 0.002
"""A process that uses less of one core does nothing: an idle Jupyter kernel takes 0.0002 (ipykernel 7.4: 28 ms in two
minutes); one that waits for its GPU spins, unless it asked CUDA for another way (cudaDeviceScheduleAuto)."""
_SPAN_SECONDS = 60.0
_YOUNG_SECONDS = 3600.0
_STARTED_SECONDS = 120.0
"""Processor time that imports, CUDA and loading a model may take: one that has never used more has done little else."""

ProcessKey = tuple[int, float | None]


@dataclass(slots=True)
class _Seen:
    began: float
    """Of the present span, Unix seconds."""
    cpu_seconds: float
    """When the present span began."""
    idle_since: float
    worked: bool = False
    """It was seen to work."""


class IdleTracker:
    """Watches processes over snapshots. A process counts as idle since it was last seen to work."""

    def __init__(self) -> None:
        self._seen: dict[ProcessKey, _Seen] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Take in how much processor time everybody has used."""
        now = snapshot.time
        seen: dict[ProcessKey, _Seen] = {}
        for _, process in snapshot.processes():
            if process.cpu_seconds is None or process.key in seen:
                continue
            known = self._seen.get(process.key) or _Seen(now, process.cpu_seconds, now)
            seen[process.key] = known
            used, span = process.cpu_seconds - known.cpu_seconds, now - known.began
            if used > MAX_IDLE_CPU_SHARE * max(span, _SPAN_SECONDS):
                known.idle_since, known.worked = now, True
            elif span < _SPAN_SECONDS:
                continue
            known.began, known.cpu_seconds = now, process.cpu_seconds
        self._seen = seen

    def idle_seconds(self, process: GpuProcess, now: float) -> float | None:
        """For how long the process was seen to do nothing; None where its processor time is not known."""
        seen = self._seen.get(process.key)
        return None if seen is None else now - seen.idle_since

    def hardly_ever_worked(self, process: GpuProcess, now: float) -> bool:
        """Whether it has done little more than start, as one reading can tell of a process that is old enough."""
        seen = self._seen.get(process.key)
        if seen is None or seen.worked or process.cpu_seconds is None or process.start_time is None:
            return False
        age = now - process.start_time
        return age >= _YOUNG_SECONDS and process.cpu_seconds <= min(MAX_IDLE_CPU_SHARE * age, _STARTED_SECONDS)
