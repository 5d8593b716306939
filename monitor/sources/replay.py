"""A recording as a source of snapshots, played at the pace at which it was made."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..snapshot.snapshot import MAX_UNIX_SECONDS, GpuProcess, GpuReading, ProcessCounters, Snapshot
from .recording import read_recording
from .source import EndOfRecording

_SHORTEST_GAP = 0.1
"""Seconds for which the last snapshot stands at least before a loop begins again."""

_SLACK = 0.05
"""Seconds by which a snapshot may come early: played and recorded at one pace, the two would else miss each other."""

_MOST_PASSED = 200
"""Snapshots passed over in one reading: where times stand still, or run backwards, all of them are due at once."""


class ReplaySource:
    """Plays a recording through the same ``Sampler`` as live GPUs.

    ``read`` gives the newest snapshot that is due, the first one at once, and None while none is. Snapshots that became
    due between two calls are passed over, as they would be at a live source.

    Args:
        path: the recording.
        kind: what the snapshots' source is called.
        speed: recorded seconds per second.
        loop: begin again after the end, instead of ``EndOfRecording``.
        rebase: move all times, also the processes' start times, so that the first snapshot is from now; they go on at
            the recording's pace, so with ``speed`` above 1 they run ahead of the clock on the wall.
        clock: seconds that never run backwards.
        now: Unix seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: Literal["recording", "demo"] = "recording",
        speed: float = 1.0,
        loop: bool = False,
        rebase: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._kind: Literal["recording", "demo"] = kind
        self._speed = speed
        self._loop = loop
        self._rebase = rebase
        self._clock = clock
        self._now = now
        self._coming: Iterator[Snapshot] = iter(())
        self._next: Snapshot | None = None
        self._first_time = 0.0
        self._last_time = 0.0
        self._gap = _SHORTEST_GAP
        self._started: float | None = None
        """When the first snapshot was given, by ``clock``."""
        self._shift = 0.0

    def open(self) -> None:
        """Go to the beginning.

        Raises:
            InputError: the file is not a recording that can be played.
        """
        self._coming = read_recording(self._path)
        self._next = next(self._coming)
        self._first_time = self._last_time = self._next.time
        self._started = None

    def read(self) -> Snapshot | None:
        """The newest snapshot that is due; None: no new one is.

        Raises:
            EndOfRecording: the last one has been given.
        """
        if self._started is None:
            return self._begin(self._now())
        due: Snapshot | None = None
        until = self._first_time + self._played_seconds()
        for _ in range(_MOST_PASSED):
            if self._next is None or self._next.time > until:
                break
            due = self._take(self._next)
        if due is not None:
            return self._as_now(due)
        if self._next is not None:
            return None
        if not self._loop:
            raise EndOfRecording(f"the recording {self._path.name} has ended")
        if until < self._last_time + self._gap:
            return None
        earliest = self._last_time + self._shift + self._gap
        self.open()
        return self._begin(max(self._now(), earliest))

    def close(self) -> None:
        """Let go of the file."""
        self._coming = iter(())
        self._next = None

    def _begin(self, now: float) -> Snapshot | None:
        """Give the first snapshot, as of ``now``."""
        self._started = self._clock()
        self._shift = now - self._first_time if self._rebase else 0.0
        return None if self._next is None else self._as_now(self._take(self._next))

    def _played_seconds(self) -> float:
        """How far into the recording it is, in recorded seconds."""
        return (self._clock() - (self._started or 0.0) + _SLACK) * self._speed

    def _take(self, snapshot: Snapshot) -> Snapshot:
        self._gap = max(_SHORTEST_GAP, snapshot.time - self._last_time)
        self._last_time = snapshot.time
        self._next = next(self._coming, None)
        return snapshot

    def _as_now(self, snapshot: Snapshot) -> Snapshot:
        source = replace(snapshot.source, kind=self._kind, path=str(self._path))
        return replace(shift_times(snapshot, self._shift), source=source)


def shift_times(snapshot: Snapshot, seconds: float) -> Snapshot:
    """The snapshot with all its times moved, also those at which its processes started."""
    if seconds == 0:
        return snapshot
    return replace(
        snapshot,
        time=_to(snapshot.time, seconds),
        gpus=tuple(_shifted_gpu(gpu, seconds) for gpu in snapshot.gpus),
        watched=tuple(
            replace(job, pids=tuple((pid, _moved(start, seconds)) for pid, start in job.pids))
            for job in snapshot.watched
        ),
        last_words=tuple(
            replace(
                words,
                start_time=_moved(words.start_time, seconds),
                counters=_shifted_counters(words.counters, seconds),
            )
            for words in snapshot.last_words
        ),
    )


def _shifted_gpu(gpu: GpuReading, seconds: float) -> GpuReading:
    processes = gpu.processes and tuple(_shifted_process(process, seconds) for process in gpu.processes)
    read_at = _to(gpu.read_at, seconds) if gpu.read_at else gpu.read_at  # 0: never read
    return replace(gpu, processes=processes, read_at=read_at)


def _shifted_process(process: GpuProcess, seconds: float) -> GpuProcess:
    counters = process.counters and _shifted_counters(process.counters, seconds)
    return replace(process, start_time=_moved(process.start_time, seconds), counters=counters)


def _shifted_counters(counters: ProcessCounters, seconds: float) -> ProcessCounters:
    return replace(
        counters,
        time=_to(counters.time, seconds),
        out_of_memory_time=_moved(counters.out_of_memory_time, seconds),
        ended=_moved(counters.ended, seconds),
    )


def _moved(time: float | None, seconds: float) -> float | None:
    return None if time is None else _to(time, seconds)


def _to(time: float, seconds: float) -> float:
    return min(max(0.0, time + seconds), MAX_UNIX_SECONDS)
