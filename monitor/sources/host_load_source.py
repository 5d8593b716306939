"""Adds the load of this machine, from ``/proc`` and the control group, to snapshots while a screen shows it."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vramtop.estimator.common.records import replace

from ..host.kernel_files import CGROUP, cpu_limit, cpu_seconds, file_text, inactive_file_bytes, read_number
from ..snapshot.demand import CurrentDemand
from ..snapshot.snapshot import HostLoad, Snapshot
from .sampler import SnapshotSource

_PROC = Path("/proc")
_KIB = 1024
_IDLE = slice(3, 5)
"""Places of idle time and of waiting for disks among the processor times of ``/proc/stat``."""
_COUNTED = 8
"""Processor times up to stolen time; time of guests is counted in that of their users already."""


class HostLoadReader:
    """Reads the host's load again and again. Not thread-safe.

    Args:
        proc: the ``/proc`` folder.
        cgroup: folder of the control group's files, as the group sees itself.
        clock: monotonic seconds.
    """

    def __init__(self, proc: Path = _PROC, cgroup: Path = CGROUP, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._clock = clock
        self._last: tuple[float, float] | None = None
        """Busy and total processor time at the last reading."""

    def read(self) -> HostLoad:
        """Return the load now; that of the processors is their mean since the last call."""
        limit, cpus = cpu_limit(self._cgroup), os.cpu_count()
        limited = limit is not None and (cpus is None or limit < cpus)
        memory = self._memory()
        used, total, ram_limited = self._ram(memory)
        return HostLoad(
            cpu_percent=self._cpu_percent(limit if limited else None),
            cpus=limit if limited else cpus,
            cpu_limited=limited,
            ram_used_bytes=used,
            ram_total_bytes=total,
            ram_limited=ram_limited,
            swap_used_bytes=_difference(memory.get("SwapTotal"), memory.get("SwapFree")),
            swap_total_bytes=memory.get("SwapTotal"),
            load=_load(),
        )

    def _cpu_percent(self, limit: float | None) -> float | None:
        if limit is None:
            now = self._processor_times()
        else:  # the processor time that the group has used, and could have used by now
            used = cpu_seconds(self._cgroup)
            now = None if used is None else (used, self._clock() * limit)
        before, self._last = self._last, now
        if before is None or now is None or now[1] <= before[1]:
            return None
        return min(100.0, max(0.0, 100 * (now[0] - before[0]) / (now[1] - before[1])))

    def _processor_times(self) -> tuple[float, float] | None:
        """Return busy and total time of all processors, in the kernel's ticks."""
        try:
            with (self._proc / "stat").open(encoding="ascii") as file:
                times = [int(word) for word in file.readline().split()[1 : 1 + _COUNTED]]
        except (OSError, ValueError):
            return None
        return (float(sum(times) - sum(times[_IDLE])), float(sum(times))) if len(times) > 4 else None

    def _memory(self) -> dict[str, int]:
        """Return the sizes in ``/proc/meminfo`` by name, in bytes."""
        found = (line.split() for line in file_text(self._proc / "meminfo").splitlines())
        return {words[0][:-1]: int(words[1]) * _KIB for words in found if len(words) == 3 and words[1].isdecimal()}

    def _ram(self, memory: dict[str, int]) -> tuple[int | None, int | None, bool]:
        """Return used bytes, total bytes, and whether these are the container's."""
        total = memory.get("MemTotal")
        limit, used = read_number(self._cgroup / "memory.max"), read_number(self._cgroup / "memory.current")
        if limit is not None and used is not None and (total is None or limit < total):
            return max(0, used - inactive_file_bytes(self._cgroup)), limit, True
        return _difference(total, memory.get("MemAvailable")), total, False


def _difference(total: int | None, free: int | None) -> int | None:
    return None if total is None or free is None else max(0, total - free)


def _load() -> tuple[float, float, float] | None:
    try:
        return os.getloadavg()
    except OSError:
        return None


HOST_INTERVAL_SECONDS = 2.0
"""Minimum interval of readings: figures that change more often are hard to read, and cost more to draw."""


@dataclass(slots=True)
class HostLoadSource:
    """A source of this machine's snapshots, with its load if that is shown.

    Args:
        source: the GPUs.
        demand: tells whether the load is shown.
        reader: of the load.
        clock: monotonic seconds.
    """

    source: SnapshotSource
    demand: CurrentDemand
    reader: HostLoadReader = field(default_factory=HostLoadReader)
    clock: Callable[[], float] = time.monotonic
    _latest: HostLoad | None = field(default=None, init=False)
    _next_at: float = field(default=0.0, init=False)

    def open(self) -> None:
        """Open the source; the load of the processors is measured from now on."""
        if self.demand.value.host:
            self.reader.read()
        self.source.open()

    def read(self) -> Snapshot | None:
        """Return the source's snapshot.

        Raises:
            VramtopError: the source has failed.
        """
        snapshot = self.source.read()
        if snapshot is None or not self.demand.value.host:
            self._latest = None
            return snapshot
        if self._latest is None or self.clock() >= self._next_at:
            self._latest, self._next_at = self.reader.read(), self.clock() + HOST_INTERVAL_SECONDS
        return replace(snapshot, host=self._latest)

    def close(self) -> None:
        """Close the source."""
        self.source.close()
