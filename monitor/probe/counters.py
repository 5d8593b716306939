"""What the processes on the GPUs say of themselves, put beside what NVML says of them.

A process is searched for its probe once, and again only now and then, as that takes 4 microseconds for each of its open
files; a probe that was found stays open, and is read at every tick.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..snapshot.snapshot import FinalCounters, GpuProcess, GpuReading, ProcessCounters, ProcessKey
from .probe_reader import DeviceCounters, OpenProbe, ProbeSample, find_probe, open_probe

SEARCH_INTERVALS_SECONDS = (10.0, 60.0, 600.0)
"""When a process without a probe is searched again, as torch may be imported, or ``report`` called, after it is seen
first; the last one goes on."""
SEARCH_BUDGET_SECONDS = 0.005
"""Time for searches in one tick; what is left over comes in the next one."""
FIRST_SEARCH_BUDGET_SECONDS = 0.05
"""The same in the first one, which may be the only one."""


@dataclass(slots=True)
class _Known:
    """A process that is to be searched, or was."""

    search_at: float
    searches: int = 0
    probe: OpenProbe | None = None
    sample: ProbeSample | None = None
    """The newest one."""
    gpus: list[GpuReading] = field(default_factory=list)
    """The GPUs that it is on, as they were read last."""
    tick: int = 0
    """When that was."""


class ProbeDirectory:
    """The probes of the processes on the GPUs. Not for several threads.

    Args:
        clock: seconds that never run backwards.
        now: Unix seconds.
    """

    def __init__(self, *, clock: Callable[[], float], now: Callable[[], float]) -> None:
        self._clock = clock
        self._now = now
        self._known: dict[ProcessKey, _Known] = {}
        self._tick = 0

    def fill(self, readings: Sequence[GpuReading]) -> tuple[list[GpuReading], tuple[FinalCounters, ...]]:
        """The readings with the counters of those processes that have a probe; what those said last that have gone."""
        self._tick += 1
        present = self._see(readings)
        words = self._part(readings) if present < len(self._known) else ()
        told = self._told(readings)
        return [_filled(reading, told) for reading in readings] if told else list(readings), words

    def close(self) -> None:
        """Let go of all of them."""
        for known in self._known.values():
            _close(known)
        self._known = {}

    def _see(self, readings: Sequence[GpuReading]) -> int:
        """Take note of who is where; how many processes there are. Runs for hundreds of them at every tick."""
        tick, known_by_key, present = self._tick, self._known, 0
        for reading in readings:
            for process in reading.processes or ():
                start_time = process.start_time
                if start_time is None:  # not to be seen from here
                    continue
                known = known_by_key.get((process.pid, start_time))
                if known is None:
                    known = known_by_key[process.pid, start_time] = _Known(search_at=self._clock())
                if known.tick == tick:
                    known.gpus.append(reading)
                else:
                    known.tick, known.gpus = tick, [reading]
                    present += 1
        return present

    def _part(self, readings: Sequence[GpuReading]) -> tuple[FinalCounters, ...]:
        """Let go of the processes that have gone; what they said last is read only now, as some say so at their end."""
        unread = {reading.index for reading in readings if reading.processes is None}
        words: list[FinalCounters] = []
        for key, known in list(self._known.items()):
            if known.tick == self._tick or any(gpu.index in unread for gpu in known.gpus):
                continue  # it is there, or it cannot be told
            if self._read(key[0], known):
                told = _counters(known, readings)
                words += [FinalCounters(gpu=i, pid=key[0], start_time=key[1], counters=c) for i, c in told.items()]
            _close(self._known.pop(key))
        return tuple(words)

    def _told(self, readings: Sequence[GpuReading]) -> dict[ProcessKey, dict[int, ProcessCounters]]:
        """What each process says now, by GPU index. Those that were seen first, the largest, are searched first."""
        seconds = FIRST_SEARCH_BUDGET_SECONDS if self._tick == 1 else SEARCH_BUDGET_SECONDS
        now, until = self._clock(), time.perf_counter() + seconds
        told: dict[ProcessKey, dict[int, ProcessCounters]] = {}
        for key, known in self._known.items():
            if known.search_at <= now and time.perf_counter() < until and self._is_silent(known):
                self._search(key[0], known, now)
            if known.probe is not None and known.tick == self._tick and self._read(key[0], known):
                told[key] = _counters(known, readings)
        return told

    def _is_silent(self, known: _Known) -> bool:
        """No probe was found, or the one that was tells nothing new: the process may have become another program."""
        return known.probe is None or known.sample is None or known.sample.stale_seconds(self._now()) is not None

    def _search(self, pid: int, known: _Known, now: float) -> None:
        known.search_at = now + SEARCH_INTERVALS_SECONDS[min(known.searches, len(SEARCH_INTERVALS_SECONDS) - 1)]
        known.searches += 1
        path = find_probe(pid)
        probe = None if path is None else open_probe(path)
        if probe is not None:
            _close(known)
            known.probe = probe

    def _read(self, pid: int, known: _Known) -> bool:
        """Whether there is a sample; the newest one stays where none can be read any more."""
        sample = None if known.probe is None else known.probe.read(facts=False)
        if sample is not None and known.sample is None and not sample.belongs_to(pid):
            _close(known)
        elif sample is not None:
            known.sample = sample
        return known.sample is not None


def _counters(known: _Known, readings: Sequence[GpuReading]) -> dict[int, ProcessCounters]:
    """By GPU index, for those that the process is on."""
    sample, alone = known.sample, len(known.gpus) == 1
    if sample is None:
        return {}
    everywhere = {_bare(reading.uuid) for reading in readings if reading.uuid}
    return {gpu.index: _counted(sample, _device_on(sample, gpu, alone, everywhere)) for gpu in known.gpus}


def _filled(reading: GpuReading, told: Mapping[ProcessKey, Mapping[int, ProcessCounters]]) -> GpuReading:
    def fill(process: GpuProcess) -> GpuProcess:
        counters = told.get(process.key)
        return process if counters is None else replace(process, counters=counters[reading.index])

    if not any(process.key in told for process in reading.processes or ()):
        return reading
    return replace(reading, processes=tuple(fill(process) for process in reading.processes or ()))


def _device_on(sample: ProbeSample, gpu: GpuReading, alone: bool, everywhere: set[str]) -> DeviceCounters | None:
    """Which of a process's devices a GPU is; None where that cannot be told.

    Args:
        sample: what the process says.
        gpu: one that it is on.
        alone: it is on no other.
        everywhere: all GPUs' UUIDs, without ``GPU-``.
    """
    if gpu.uuid is not None:
        for device in sample.devices:
            if device.uuid is not None and _bare(device.uuid) == _bare(gpu.uuid):
                return device
    if alone and len(sample.devices) == 1:
        (device,) = sample.devices
        if device.uuid is None or _bare(device.uuid) not in everywhere:  # an old torch; a MIG instance
            return device
    return None


def _bare(uuid: str) -> str:
    """NVML writes ``GPU-`` before it, torch does not."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _counted(sample: ProbeSample, device: DeviceCounters | None) -> ProcessCounters:
    told = device or DeviceCounters(index=-1)
    return ProcessCounters(
        time=sample.time,
        allocated_bytes=told.allocated_bytes,
        reserved_bytes=told.reserved_bytes,
        active_bytes=told.active_bytes,
        allocated_peak_bytes=told.allocated_peak_bytes,
        reserved_peak_bytes=told.reserved_peak_bytes,
        retries=told.retries,
        out_of_memory=told.out_of_memory,
        out_of_memory_time=told.out_of_memory_time,
        steps=sample.steps if sample.steps or sample.step_began is not None else None,
        step_seconds=sample.step_seconds,
        ended=sample.ended,
        error=sample.error,
    )


def _close(known: _Known) -> None:
    if known.probe is not None:
        known.probe.close()
    known.probe = known.sample = None
