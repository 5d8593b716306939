"""What every GPU and process held over the last minutes, and at its worst; in memory that does not grow."""

import math
import threading
from array import array
from collections.abc import Sequence
from typing import TypeVar

from .snapshot import GpuReading, Snapshot

GpuKey = str | int
"""A GPU's uuid; its index where it has none."""
ProcessKey = tuple[int, int, float | None]
"""GPU index, pid, start time."""
_Key = TypeVar("_Key")

Reading = tuple[float, int | None]
"""Unix seconds and bytes; None: not known at that time."""


def gpu_key(gpu: GpuReading) -> GpuKey:
    """The key under which a GPU's history is kept."""
    return gpu.index if gpu.uuid is None else gpu.uuid


class History:
    """Readings per GPU and per process. May be filled on one thread and read on another.

    Args:
        capacity: readings kept of each.
        keep_seconds: how long something that is no longer in the snapshots is remembered.
    """

    def __init__(self, capacity: int = 600, *, keep_seconds: float = 120.0) -> None:
        self._capacity = capacity
        self._keep_seconds = keep_seconds
        self._gpus: dict[GpuKey, _Ring] = {}
        self._processes: dict[ProcessKey, _Ring] = {}
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot) -> None:
        """Take in what a snapshot says; its own time counts."""
        with self._lock:
            for gpu in snapshot.gpus:
                _ring(self._gpus, gpu_key(gpu), self._capacity).add(snapshot.time, gpu.used_bytes)
                for process in gpu.processes or ():
                    key = (gpu.index, process.pid, process.start_time)
                    _ring(self._processes, key, self._capacity).add(snapshot.time, process.used_bytes)
            oldest = snapshot.time - self._keep_seconds
            _forget(self._gpus, oldest)
            _forget(self._processes, oldest)

    def gpu(self, key: GpuKey) -> Sequence[Reading]:
        """Used memory of a GPU, oldest first; empty for an unknown one."""
        with self._lock:
            return _readings(self._gpus.get(key))

    def process(self, key: ProcessKey) -> Sequence[Reading]:
        """Memory of a process on one GPU, oldest first; empty for an unknown one."""
        with self._lock:
            return _readings(self._processes.get(key))

    def peak_process(self, key: ProcessKey) -> int | None:
        """The most that a process was ever seen to hold, also before the oldest reading; None: never known."""
        with self._lock:
            ring = self._processes.get(key)
            return None if ring is None else ring.peak


class _Ring:
    """The last ``capacity`` readings: two doubles each, whatever happens."""

    __slots__ = ("_capacity", "_next", "_sizes", "_times", "newest", "peak")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._sizes = array("d")  # exact up to 2^53 bytes; NaN for what is not known
        self._next = 0
        self.newest = -math.inf
        self.peak: int | None = None

    def add(self, time: float, size: int | None) -> None:
        stored = math.nan if size is None else size
        if len(self._times) < self._capacity:
            self._times.append(time)
            self._sizes.append(stored)
        else:
            self._times[self._next] = time
            self._sizes[self._next] = stored
            self._next = (self._next + 1) % self._capacity
        self.newest = time
        if size is not None and (self.peak is None or size > self.peak):
            self.peak = size

    def readings(self) -> list[Reading]:
        times = self._times[self._next :] + self._times[: self._next]
        sizes = self._sizes[self._next :] + self._sizes[: self._next]
        return [(time, None if math.isnan(size) else int(size)) for time, size in zip(times, sizes, strict=True)]


def _readings(ring: _Ring | None) -> list[Reading]:
    return [] if ring is None else ring.readings()


def _ring(rings: dict[_Key, _Ring], key: _Key, capacity: int) -> _Ring:
    ring = rings.get(key)
    if ring is None:
        ring = rings[key] = _Ring(capacity)
    return ring


def _forget(rings: dict[_Key, _Ring], before: float) -> None:
    for key in [key for key, ring in rings.items() if ring.newest < before]:
        del rings[key]
