"""Processor time, RAM and threads of the processes that a screen shows them of, from ``/proc/PID/stat``."""

import os
import time
from collections.abc import Callable, Iterable

import msgspec

from vramtop.estimator.common.records import replace

from ..snapshot.demand import HOST_FIGURES, Demand, ProcessFigure
from ..snapshot.figures import FIRST_SAMPLE, Fault
from ..snapshot.snapshot import GpuProcess, GpuReading, ProcessFigures, ProcessKey
from .process_stat import ProcessStat, load_stat

MIN_WINDOW_SECONDS = 0.5
"""Shortest time over which CPU % is measured: processor time is counted in steps of 10 ms, or 2 % of this."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MESSAGES = {
    "NO_PERMISSION": "this user may not read the /proc of this process",
    "ENDED": "this process has ended",
    "NOT_VISIBLE": "this process is not visible from here: it has ended or runs in another container",
    FIRST_SAMPLE: "needs two readings",
}


class _Sample(msgspec.Struct, frozen=True):
    """Processor time of a process at the beginning of a window, and the share in the window before."""

    time: float
    start_ticks: int
    cpu_seconds: float
    percent: float | None = None


class HostFigures:
    """Adds figures of the host to processes where they are in demand; keeps a sample of each for CPU %.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[ProcessKey, _Sample] = {}

    def add(self, readings: Iterable[GpuReading], demand: Demand) -> list[GpuReading]:
        """Return the readings with the figures in demand; reads no file if there are none."""
        if HOST_FIGURES.isdisjoint(demand.process_figures):
            self._samples = {}
            return list(readings)
        read: dict[ProcessKey, ProcessFigures] = {}
        earlier, self._samples = self._samples, {}

        def with_figures(process: GpuProcess) -> GpuProcess:
            host = read.get(process.key)  # each process is read once, whatever it runs on
            if host is None:
                host = read[process.key] = self._read(process, earlier.get(process.key))
            mine = process.figures or ProcessFigures()
            figures = replace(
                mine,
                cpu_percent=host.cpu_percent,
                rss_bytes=host.rss_bytes,
                threads=host.threads,
                faults=(*mine.faults, *host.faults),
            )
            return replace(process, figures=figures)

        return [
            replace(each, processes=tuple(map(with_figures, each.processes))) if each.processes else each
            for each in readings
        ]

    def _read(self, process: GpuProcess, earlier: _Sample | None) -> ProcessFigures:
        now = self._clock()
        try:
            stat = load_stat(process.pid)
        except PermissionError:
            return _unknown("NO_PERMISSION")
        except OSError:
            return _unknown("NOT_VISIBLE" if process.start_time is None else "ENDED")
        if process.start_time is None:  # a process of another container, and one here that has the same pid
            return _unknown("NOT_VISIBLE")
        if stat.is_zombie or (earlier is not None and earlier.start_ticks != stat.start_ticks):
            return _unknown("ENDED")
        percent = self._cpu_percent(process.key, stat, now, earlier)
        return ProcessFigures(
            cpu_percent=percent,
            rss_bytes=stat.rss_pages * _PAGE_BYTES,
            threads=stat.threads,
            faults=_faults({"cpu_percent"}, FIRST_SAMPLE) if percent is None else (),
        )

    def _cpu_percent(self, key: ProcessKey, stat: ProcessStat, now: float, earlier: _Sample | None) -> float | None:
        """Return the processor time of the last window in percent of one core; None at the first sample."""
        if earlier is None:
            self._samples[key] = _Sample(now, stat.start_ticks, stat.cpu_seconds)
            return None
        window = now - earlier.time
        if window < MIN_WINDOW_SECONDS:
            self._samples[key] = earlier
            return earlier.percent
        percent = max(0.0, stat.cpu_seconds - earlier.cpu_seconds) / window * 100
        self._samples[key] = _Sample(now, stat.start_ticks, stat.cpu_seconds, percent)
        return percent


def _unknown(code: str) -> ProcessFigures:
    return ProcessFigures(faults=_faults(HOST_FIGURES, code))


def _faults(figures: Iterable[ProcessFigure], code: str) -> tuple[Fault, ...]:
    return tuple(Fault(field=figure, code=code, message=_MESSAGES[code]) for figure in sorted(figures))
