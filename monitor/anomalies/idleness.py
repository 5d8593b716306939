"""Time since a process last used the processor noticeably."""

import msgspec

from ..snapshot.snapshot import GpuProcess, ProcessKey, Snapshot

MAX_IDLE_CPU_SHARE = 0.002
"""Share of one core: a process that uses less is idle. An idle Jupyter kernel uses 0.0002 (ipykernel 7.4: 28 ms in two
minutes); a process that waits for its GPU spins, unless it asked CUDA not to (cudaDeviceScheduleAuto)."""
_WINDOW_SECONDS = 60.0
_MIN_AGE_SECONDS = 3600.0
_STARTUP_CPU_SECONDS = 120.0
"""Processor time that imports, CUDA and loading a model may take: a process with less has done little else."""


class _Usage(msgspec.Struct):
    """Processor time of one process as it was observed."""

    window_start: float
    """Unix seconds."""
    window_start_cpu_seconds: float
    idle_since: float
    """Unix seconds."""
    worked: bool = False
    """It was seen to work."""


class IdleTracker:
    """Tracks over snapshots how long each process has been idle: the time since it was last seen to work."""

    def __init__(self) -> None:
        self._usage: dict[ProcessKey, _Usage] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Record how much processor time each process has used."""
        now = snapshot.time
        current: dict[ProcessKey, _Usage] = {}
        for _, process in snapshot.processes():
            if process.cpu_seconds is None or process.key in current:
                continue
            usage = self._usage.get(process.key) or _Usage(now, process.cpu_seconds, now)
            current[process.key] = usage
            used, window = process.cpu_seconds - usage.window_start_cpu_seconds, now - usage.window_start
            if used > MAX_IDLE_CPU_SHARE * max(window, _WINDOW_SECONDS):
                usage.idle_since, usage.worked = now, True
            elif window < _WINDOW_SECONDS:
                continue
            usage.window_start, usage.window_start_cpu_seconds = now, process.cpu_seconds
        self._usage = current

    def idle_seconds(self, process: GpuProcess, now: float) -> float | None:
        """Return for how long the process has been idle; None if its processor time is unknown."""
        usage = self._usage.get(process.key)
        return None if usage is None else now - usage.idle_since

    def hardly_ever_worked(self, process: GpuProcess, now: float) -> bool:
        """Return True if an old process has used little more processor time than starting takes."""
        usage = self._usage.get(process.key)
        if usage is None or usage.worked or process.cpu_seconds is None or process.start_time is None:
            return False
        age = now - process.start_time
        return age >= _MIN_AGE_SECONDS and process.cpu_seconds <= min(MAX_IDLE_CPU_SHARE * age, _STARTUP_CPU_SECONDS)
