"""Memory of every GPU and process over time: recent samples, and peaks over a process's lifetime; bounded in size."""

import math
import threading
from array import array
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, TypeVar

from .mig_devices import mig_devices, processes_by_device
from .snapshot import GpuKey, HistoryKey, Snapshot

GpuFigure = Literal["utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c"]
"""A field of ``GpuReading`` whose history is kept."""
_FIGURES: tuple[GpuFigure, ...] = ("utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c")
_Key = TypeVar("_Key")
MemorySample = tuple[float, int | None]
"""Unix seconds and bytes; None: unknown at that time."""


class MemoryHistory:
    """Memory samples per GPU, MIG device and process. Thread-safe: filled on one thread, read on another.

    Args:
        capacity: maximum number of recent samples kept of each, and of lifetime intervals kept of a process.
        keep_seconds: time for which the history of something that has left the snapshots is kept.
    """

    def __init__(self, capacity: int = 600, *, keep_seconds: float = 120.0) -> None:
        self._keep_seconds = keep_seconds
        ring = partial(_RingBuffer, capacity)
        self._gpus: dict[GpuKey, _RingBuffer] = defaultdict(ring)
        self._activity: dict[tuple[GpuKey, GpuFigure], _RingBuffer] = defaultdict(ring)
        self._processes: dict[HistoryKey, _RingBuffer] = defaultdict(ring)
        self._lifetimes: dict[HistoryKey, _LifetimePeaks] = defaultdict(partial(_LifetimePeaks, capacity))
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot, *, keep: Collection[HistoryKey] = ()) -> None:
        """Add the figures of a snapshot, at the snapshot's own time.

        Args:
            snapshot: later than the one before.
            keep: processes whose history is kept even if they have left the snapshots.
        """
        with self._lock:
            for gpu in snapshot.gpus:
                stale, devices = gpu.is_stale, mig_devices(gpu)
                for device in (gpu, *devices):
                    self._gpus[device.key].add(snapshot.time, None if stale else device.used_bytes)
                gpu_key = gpu.key
                for figure in _FIGURES:
                    value = None if stale else getattr(gpu, figure)
                    self._activity[gpu_key, figure].add(snapshot.time, None if value is None else round(value))
                for device, process in processes_by_device(gpu, devices):
                    key = (gpu_key if device is gpu else device.key, process.pid, process.start_time)
                    size = None if stale else process.used_bytes
                    self._processes[key].add(snapshot.time, size)
                    self._lifetimes[key].add(snapshot.time, size)
            oldest = snapshot.time - self._keep_seconds
            _forget(self._gpus, oldest)
            _forget(self._activity, oldest)
            _forget(self._processes, oldest, keep)
            if len(self._lifetimes) > len(self._processes):
                for key in [key for key in self._lifetimes if key not in self._processes]:
                    del self._lifetimes[key]

    def gpu(self, key: GpuKey) -> Sequence[MemorySample]:
        """Return the used memory of a GPU or MIG device, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._gpus.get(key))

    def activity(self, key: GpuKey, figure: GpuFigure) -> Sequence[tuple[float, int | None]]:
        """Return Unix seconds and a rounded figure of a whole GPU, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._activity.get((key, figure)))

    def process(self, key: HistoryKey) -> Sequence[MemorySample]:
        """Return the memory of a process on one GPU, oldest sample first; empty if it is unknown."""
        with self._lock:
            return _samples(self._processes.get(key))

    def lifetime(self, key: HistoryKey) -> Sequence[MemorySample]:
        """Return a process's memory since its first sample: peaks of intervals, followed by the recent samples.

        Intervals are of equal length and get longer as the process gets older.
        """
        with self._lock:
            recent = _samples(self._processes.get(key))
            return [*self._lifetimes[key].before(recent[0][0]), *recent] if recent else []


class _RingBuffer:
    """The last ``capacity`` samples, as two doubles each."""

    __slots__ = ("_capacity", "_next", "_sizes", "_times", "latest")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._sizes = array("d")  # exact up to 2^53 bytes; NaN: unknown
        self._next = 0
        self.latest = -math.inf

    def add(self, time: float, size: int | None) -> None:
        stored = math.nan if size is None else size
        if len(self._times) < self._capacity:
            self._times.append(time)
            self._sizes.append(stored)
        else:
            self._times[self._next] = time
            self._sizes[self._next] = stored
            self._next = (self._next + 1) % self._capacity
        self.latest = time

    def samples(self) -> list[MemorySample]:
        times = self._times[self._next :] + self._times[: self._next]
        sizes = self._sizes[self._next :] + self._sizes[: self._next]
        return [(time, None if math.isnan(size) else int(size)) for time, size in zip(times, sizes, strict=True)]


class _LifetimePeaks:
    """The peak of each of at most ``capacity`` intervals; when all are used, neighbours are merged in pairs."""

    __slots__ = ("_capacity", "_interval_samples", "_last_samples", "_sizes", "_times")

    def __init__(self, capacity: int) -> None:
        self._capacity = max(2, capacity)
        self._interval_samples = 1
        """Samples in an interval."""
        self._last_samples = 0
        """Samples in the last interval."""
        self._times = array("d")
        self._sizes = array("d")

    def add(self, time: float, size: int | None) -> None:
        if self._last_samples and self._last_samples < self._interval_samples:
            self._sizes[-1] = _max_known(self._sizes[-1], math.nan if size is None else size)
            self._last_samples += 1
            return
        if len(self._times) == self._capacity:
            self._merge_pairs()
        self._times.append(time)
        self._sizes.append(math.nan if size is None else size)
        self._last_samples = 1

    def before(self, time: float) -> list[MemorySample]:
        pairs = zip(self._times, self._sizes, strict=True)
        return [(at, None if math.isnan(size) else int(size)) for at, size in pairs if at < time]

    def _merge_pairs(self) -> None:
        sizes = self._sizes
        pairs = (sizes[at : at + 2] for at in range(0, len(sizes), 2))
        self._sizes = array("d", (_max_known(*pair) if len(pair) == 2 else pair[0] for pair in pairs))
        self._times = self._times[::2]
        self._interval_samples *= 2


def usual_interval(samples: Sequence[MemorySample]) -> float | None:
    """Return the median of the seconds between samples; None for fewer than two samples."""
    gaps = sorted(later[0] - earlier[0] for earlier, later in pairwise(samples))
    return gaps[len(gaps) // 2] if gaps else None


def _max_known(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _samples(ring: _RingBuffer | None) -> list[MemorySample]:
    return [] if ring is None else ring.samples()


def _forget(rings: dict[_Key, _RingBuffer], before: float, keep: Collection[_Key] = ()) -> None:
    for key in [key for key, ring in rings.items() if ring.latest < before and key not in keep]:
        del rings[key]
