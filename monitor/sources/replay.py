"""Plays a recording as a source of snapshots, at the pace at which it was made; one, the demo, ships with vramtop."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from vramtop.estimator.common.records import replace

from ..snapshot.figures import MAX_UNIX_SECONDS
from ..snapshot.snapshot import GpuReading, ProcessCounters, Snapshot
from .recording import read_recording
from .sampler import EndOfRecording

_MIN_GAP_SECONDS = 0.1
"""Minimum time for which the last snapshot is shown before a loop begins again."""
_EARLY_SECONDS = 0.05
"""Seconds by which a snapshot may be early: at equal recording and reading intervals, it would else be missed."""
_MAX_SKIPPED = 200
"""Maximum number of snapshots skipped in one reading: if times stand still or run backwards, all are due at once."""


class ReplaySource(msgspec.Struct, eq=False):
    """Plays a recording through the same ``Sampler`` as live GPUs.

    ``read`` returns the latest snapshot that is due, the first one at once, and None while none is. Earlier snapshots
    that became due between two calls are skipped, as with a live source.

    Args:
        path: the recording.
        kind: source kind in the snapshots.
        loop: begin again at the end, instead of raising ``EndOfRecording``.
        rebase: move all times, including start times of processes, so that the first snapshot is from now.
        clock: monotonic seconds.
        now: Unix seconds.
    """

    path: Path
    kind: Literal["recording", "demo"] = "recording"
    loop: bool = False
    rebase: bool = False
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _snapshots: Iterator[Snapshot] = msgspec.field(default_factory=lambda: iter(()))
    _next: Snapshot | None = None
    _first_time: float = 0.0
    _last_time: float = 0.0
    _last_gap: float = _MIN_GAP_SECONDS
    _started: float | None = None
    """Time of ``clock`` when the first snapshot was returned."""
    _shift: float = 0.0

    def open(self) -> None:
        """Go to the beginning of the recording.

        Raises:
            InputError: the file is no recording that can be played.
        """
        self._snapshots = read_recording(self.path)
        self._next = next(self._snapshots)
        self._first_time = self._last_time = self._next.time
        self._started = None

    def read(self) -> Snapshot | None:
        """Return the latest snapshot that is due; None if there is no new one.

        Raises:
            EndOfRecording: the last one has been returned.
        """
        if self._started is None:
            return self._begin(self.now())
        due: Snapshot | None = None
        until = self._first_time + self.clock() - self._started + _EARLY_SECONDS
        for _ in range(_MAX_SKIPPED):
            if self._next is None or self._next.time > until:
                break
            due = self._advance(self._next)
        if due is not None:
            return self._as_played(due)
        if self._next is not None:
            return None
        if not self.loop:
            raise EndOfRecording(f"the recording {self.path.name} has ended")
        if until < self._last_time + self._last_gap:
            return None
        earliest = self._last_time + self._shift + self._last_gap
        self.open()
        return self._begin(max(self.now(), earliest))

    def close(self) -> None:
        """Release the recording."""
        self._snapshots = iter(())
        self._next = None

    def _begin(self, now: float) -> Snapshot | None:
        """Return the first snapshot, as of ``now``."""
        self._started = self.clock()
        self._shift = now - self._first_time if self.rebase else 0.0
        return None if self._next is None else self._as_played(self._advance(self._next))

    def _advance(self, snapshot: Snapshot) -> Snapshot:
        self._last_gap = max(_MIN_GAP_SECONDS, snapshot.time - self._last_time)
        self._last_time = snapshot.time
        self._next = next(self._snapshots, None)
        return snapshot

    def _as_played(self, snapshot: Snapshot) -> Snapshot:
        source = replace(snapshot.source, kind=self.kind, path=str(self.path))
        return replace(shift_times(snapshot, self._shift), source=source)


def shift_times(snapshot: Snapshot, seconds: float) -> Snapshot:
    """Return the snapshot with all its times moved, including the start times of its processes."""
    if seconds == 0:
        return snapshot
    return replace(
        snapshot,
        time=_moved_time(snapshot.time, seconds),
        gpus=tuple(_shifted_gpu(gpu, seconds) for gpu in snapshot.gpus),
        watched=tuple(
            replace(job, pids=tuple((pid, _moved_if_known(start, seconds)) for pid, start in job.pids))
            for job in snapshot.watched
        ),
        last_words=tuple(
            replace(
                final,
                start_time=_moved_if_known(final.start_time, seconds),
                counters=_shifted_counters(final.counters, seconds),
            )
            for final in snapshot.last_words
        ),
    )


def _shifted_gpu(gpu: GpuReading, seconds: float) -> GpuReading:
    processes = gpu.processes and tuple(
        replace(
            each,
            start_time=_moved_if_known(each.start_time, seconds),
            counters=each.counters and _shifted_counters(each.counters, seconds),
        )
        for each in gpu.processes
    )
    read_at = _moved_time(gpu.read_at, seconds) if gpu.read_at else gpu.read_at  # 0: never read
    return replace(gpu, processes=processes, read_at=read_at)


def _shifted_counters(counters: ProcessCounters, seconds: float) -> ProcessCounters:
    return replace(
        counters,
        time=_moved_time(counters.time, seconds),
        out_of_memory_time=_moved_if_known(counters.out_of_memory_time, seconds),
        ended=_moved_if_known(counters.ended, seconds),
    )


def _moved_if_known(time: float | None, seconds: float) -> float | None:
    return None if time is None else _moved_time(time, seconds)


def _moved_time(time: float, seconds: float) -> float:
    return min(max(0.0, time + seconds), MAX_UNIX_SECONDS)


def demo_path() -> Path:
    """Return the path of the demo recording."""
    return Path(__file__).with_name("demo.jsonl.gz")


def demo_source() -> ReplaySource:
    """Return a source that plays the demo recording in a loop, with its times moved to now."""
    return ReplaySource(demo_path(), kind="demo", loop=True, rebase=True)
