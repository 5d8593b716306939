"""What every GPU and process held over the last minutes, and at its worst; in memory that does not grow."""

import math
import threading
from array import array
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TypeVar

from .mig_devices import mig_devices, processes_by_device
from .snapshot import GpuKey, HistoryKey, Snapshot

_Key = TypeVar("_Key")

MemorySample = tuple[float, int | None]
"""Unix seconds and bytes; None: not known at that time."""


class History:
    """Readings per GPU, per MIG device and per process. May be filled on one thread and read on another.

    Args:
        capacity: readings kept of each; of a process, besides, so many stretches of its whole life at most.
        keep_seconds: how long something that is no longer in the snapshots is remembered.
    """

    def __init__(self, capacity: int = 600, *, keep_seconds: float = 120.0) -> None:
        self._capacity = capacity
        self._keep_seconds = keep_seconds
        self._gpus: dict[GpuKey, _RingBuffer] = {}
        self._processes: dict[HistoryKey, _RingBuffer] = {}
        self._lives: dict[HistoryKey, _LifetimePeaks] = {}
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot, *, keep: Collection[HistoryKey] = ()) -> None:
        """Take in what a snapshot says; its own time counts. What is to be kept is not forgotten, gone or not."""
        with self._lock:
            for gpu in snapshot.gpus:
                old = gpu.is_stale  # nobody knows what it holds now
                devices = mig_devices(gpu)
                for each in (gpu, *devices):
                    size = None if old else each.used_bytes
                    _ring_for(self._gpus, each.key, self._capacity).add(snapshot.time, size)
                whole = gpu.key
                for home, process in processes_by_device(gpu, devices):
                    key = (whole if home is gpu else home.key, process.pid, process.start_time)
                    size = None if old else process.used_bytes
                    _ring_for(self._processes, key, self._capacity).add(snapshot.time, size)
                    if key not in self._lives:
                        self._lives[key] = _LifetimePeaks(self._capacity)
                    self._lives[key].add(snapshot.time, size)
            oldest = snapshot.time - self._keep_seconds
            _forget(self._gpus, oldest)
            _forget(self._processes, oldest, keep)
            if len(self._lives) > len(self._processes):
                self._lives = {key: life for key, life in self._lives.items() if key in self._processes}

    def gpu(self, key: GpuKey) -> Sequence[MemorySample]:
        """Used memory of a GPU or MIG device, oldest first; empty for an unknown one."""
        with self._lock:
            return _readings(self._gpus.get(key))

    def process(self, key: HistoryKey) -> Sequence[MemorySample]:
        """Memory of a process on one GPU, oldest first; empty for an unknown one."""
        with self._lock:
            return _readings(self._processes.get(key))

    def lifetime(self, key: HistoryKey) -> Sequence[MemorySample]:
        """A process's memory from its first reading on: what is older than the last minutes as the most of a stretch.

        Stretches are of equal length and get longer as the process gets older.
        """
        with self._lock:
            life, recent = self._lives.get(key), _readings(self._processes.get(key))
            past = [] if life is None or not recent else life.before(recent[0][0])
            return [*past, *recent]


class _RingBuffer:
    """The last ``capacity`` readings: two doubles each, whatever happens."""

    __slots__ = ("_capacity", "_next", "_sizes", "_times", "newest")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._sizes = array("d")  # exact up to 2^53 bytes; NaN for what is not known
        self._next = 0
        self.newest = -math.inf

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

    def readings(self) -> list[MemorySample]:
        times = self._times[self._next :] + self._times[: self._next]
        sizes = self._sizes[self._next :] + self._sizes[: self._next]
        return [(time, None if math.isnan(size) else int(size)) for time, size in zip(times, sizes, strict=True)]


class _LifetimePeaks:
    """The most of each of at most ``capacity`` stretches; when they are full, two become one."""

    __slots__ = ("_capacity", "_count", "_grain", "_sizes", "_times")

    def __init__(self, capacity: int) -> None:
        self._capacity = max(2, capacity)
        self._grain = 1
        """Readings in a stretch."""
        self._count = 0
        """Readings in the last one."""
        self._times = array("d")
        self._sizes = array("d")

    def add(self, time: float, size: int | None) -> None:
        if self._count and self._count < self._grain:
            self._sizes[-1] = _max_known(self._sizes[-1], math.nan if size is None else size)
            self._count += 1
            return
        if len(self._times) == self._capacity:
            self._halve()
        self._times.append(time)
        self._sizes.append(math.nan if size is None else size)
        self._count = 1

    def before(self, time: float) -> list[MemorySample]:
        pairs = zip(self._times, self._sizes, strict=True)
        return [(at, None if math.isnan(size) else int(size)) for at, size in pairs if at < time]

    def _halve(self) -> None:
        sizes = self._sizes
        pairs = (sizes[at : at + 2] for at in range(0, len(sizes), 2))
        self._sizes = array("d", (_max_known(*pair) if len(pair) == 2 else pair[0] for pair in pairs))
        self._times = self._times[::2]
        self._grain *= 2


def usual_interval(readings: Sequence[MemorySample]) -> float | None:
    """The median of the seconds between two readings; None for fewer than two."""
    gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(readings))
    return gaps[len(gaps) // 2] if gaps else None


def _max_known(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _readings(ring: _RingBuffer | None) -> list[MemorySample]:
    return [] if ring is None else ring.readings()


def _ring_for(rings: dict[_Key, _RingBuffer], key: _Key, capacity: int) -> _RingBuffer:
    ring = rings.get(key)
    if ring is None:
        ring = rings[key] = _RingBuffer(capacity)
    return ring


def _forget(rings: dict[_Key, _RingBuffer], before: float, keep: Collection[_Key] = ()) -> None:
    for key in [key for key, ring in rings.items() if ring.newest < before and key not in keep]:
        del rings[key]
