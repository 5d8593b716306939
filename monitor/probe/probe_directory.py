"""Adds the probes' figures to the readings of the processes on the GPUs.

A process's open files are searched for its probe once, and later only now and then, as that takes 4 microseconds per
file. A probe that was found stays open and is read at every tick.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from vramtop.estimator.common.records import replace

from ..snapshot.snapshot import FinalCounters, GpuProcess, GpuReading, ProcessCounters, ProcessKey
from .probe_reader import DeviceCounters, OpenProbe, ProbeSample, find_probe, open_probe

SEARCH_INTERVALS_SECONDS = (10.0, 60.0, 600.0)
"""Waiting times before a process without a probe is searched again, as torch may be imported, or ``report`` called,
later; the last one repeats."""
SEARCH_BUDGET_SECONDS = 0.005
"""Maximum time for searches in one tick; the remaining processes are searched in the next one."""
FIRST_SEARCH_BUDGET_SECONDS = 0.05
"""Maximum time for searches in the first tick, which may be the only one."""


class _KnownProcess(msgspec.Struct):
    """A process that is searched for a probe, or has one."""

    search_at: float
    searches: int = 0
    probe: OpenProbe | None = None
    sample: ProbeSample | None = None
    """The latest sample."""
    gpus: list[GpuReading] = []
    """The GPUs that it is on, as they were read last."""
    tick: int = 0
    """Last tick in which it was on a GPU."""


class ProbeDirectory:
    """The probes of the processes on the GPUs. Not thread-safe.

    Args:
        clock: monotonic seconds.
        now: Unix seconds.
    """

    def __init__(self, *, clock: Callable[[], float], now: Callable[[], float]) -> None:
        self._clock = clock
        self._now = now
        self._known: dict[ProcessKey, _KnownProcess] = {}
        self._tick = 0

    def add_counters(self, readings: Sequence[GpuReading]) -> tuple[list[GpuReading], tuple[FinalCounters, ...]]:
        """Return the readings with the counters of processes that have a probe, and those of processes that ended."""
        self._tick += 1
        present = self._record_gpus(readings)
        final = self._remove_ended(readings) if present < len(self._known) else ()
        counters = self._read_all(readings)
        return [_with_counters(reading, counters) for reading in readings] if counters else list(readings), final

    def close(self) -> None:
        """Close all probes."""
        for known in self._known.values():
            _close(known)
        self._known = {}

    def _record_gpus(self, readings: Sequence[GpuReading]) -> int:
        """Record which GPUs each process uses; returns the number of processes. Runs for hundreds of them per tick."""
        tick, known_by_key, present = self._tick, self._known, 0
        for reading in readings:
            for process in reading.processes or ():
                start_time = process.start_time
                if start_time is None:  # not visible from here
                    continue
                known = known_by_key.get((process.pid, start_time))
                if known is None:
                    known = known_by_key[process.pid, start_time] = _KnownProcess(search_at=self._clock())
                if known.tick == tick:
                    known.gpus.append(reading)
                else:
                    known.tick, known.gpus = tick, [reading]
                    present += 1
        return present

    def _remove_ended(self, readings: Sequence[GpuReading]) -> tuple[FinalCounters, ...]:
        """Forget the processes that have ended; their probes are read once more, as some publish at their exit."""
        unread = {reading.index for reading in readings if reading.processes is None}
        final: list[FinalCounters] = []
        for key, known in list(self._known.items()):
            if known.tick == self._tick or any(gpu.index in unread for gpu in known.gpus):
                continue  # it is there, or that is unknown
            if self._read(key[0], known):
                counters = _counters_by_gpu(known, readings)
                final += [FinalCounters(gpu=i, pid=key[0], start_time=key[1], counters=c) for i, c in counters.items()]
            _close(self._known.pop(key))
        return tuple(final)

    def _read_all(self, readings: Sequence[GpuReading]) -> dict[ProcessKey, dict[int, ProcessCounters]]:
        """Return the counters of all processes with a probe, by process and GPU index.

        Probes are searched for in the order in which processes were first seen, largest first.
        """
        budget = FIRST_SEARCH_BUDGET_SECONDS if self._tick == 1 else SEARCH_BUDGET_SECONDS
        now, until = self._clock(), time.perf_counter() + budget
        counters: dict[ProcessKey, dict[int, ProcessCounters]] = {}
        for key, known in self._known.items():
            if known.search_at <= now and time.perf_counter() < until and self._is_silent(known):
                self._search(key[0], known, now)
            if known.probe is not None and known.tick == self._tick and self._read(key[0], known):
                counters[key] = _counters_by_gpu(known, readings)
        return counters

    def _is_silent(self, known: _KnownProcess) -> bool:
        """True if no probe was found, or its sample is stale: the process may have executed another program."""
        return known.probe is None or known.sample is None or known.sample.stale_seconds(self._now()) is not None

    def _search(self, pid: int, known: _KnownProcess, now: float) -> None:
        known.search_at = now + SEARCH_INTERVALS_SECONDS[min(known.searches, len(SEARCH_INTERVALS_SECONDS) - 1)]
        known.searches += 1
        path = find_probe(pid)
        probe = None if path is None else open_probe(path)
        if probe is not None:
            _close(known)
            known.probe = probe

    def _read(self, pid: int, known: _KnownProcess) -> bool:
        """Read a process's probe; returns True if there is a sample. An older one stays if none can be read."""
        sample = None if known.probe is None else known.probe.read(facts=False)
        if sample is not None and known.sample is None and not sample.belongs_to(pid):
            _close(known)
        elif sample is not None:
            known.sample = sample
        return known.sample is not None


def _counters_by_gpu(known: _KnownProcess, readings: Sequence[GpuReading]) -> dict[int, ProcessCounters]:
    """Return a process's counters by GPU index, for the GPUs that it is on."""
    sample, alone = known.sample, len(known.gpus) == 1
    if sample is None:
        return {}
    uuids = {_bare_uuid(reading.uuid) for reading in readings if reading.uuid}
    return {gpu.index: sample.process_counters(_device_on(sample, gpu, alone, uuids)) for gpu in known.gpus}


def _with_counters(reading: GpuReading, counters: Mapping[ProcessKey, Mapping[int, ProcessCounters]]) -> GpuReading:
    def add(process: GpuProcess) -> GpuProcess:
        by_gpu = counters.get(process.key)
        return process if by_gpu is None else replace(process, counters=by_gpu[reading.index])

    if not any(process.key in counters for process in reading.processes or ()):
        return reading
    return replace(reading, processes=tuple(add(process) for process in reading.processes or ()))


def _device_on(sample: ProbeSample, gpu: GpuReading, alone: bool, uuids: set[str]) -> DeviceCounters | None:
    """Return the process's device that a GPU is; None if that is unknown.

    Args:
        sample: of the process.
        gpu: a GPU that it is on.
        alone: it is on no other GPU.
        uuids: of all GPUs, without ``GPU-``.
    """
    if gpu.uuid is not None:
        for device in sample.devices:
            if device.uuid is not None and _bare_uuid(device.uuid) == _bare_uuid(gpu.uuid):
                return device
    if alone and len(sample.devices) == 1:
        (device,) = sample.devices
        if device.uuid is None or _bare_uuid(device.uuid) not in uuids:  # an old torch; a MIG device
            return device
    return None


def _bare_uuid(uuid: str) -> str:
    """Return a uuid without NVML's prefix, which torch does not write."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _close(known: _KnownProcess) -> None:
    if known.probe is not None:
        known.probe.close()
    known.probe = known.sample = None
