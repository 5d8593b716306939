"""The measurement of one process of a run, and what identifies the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from vramtop.estimator.common.trust import process_owner

from ..host.process_stat import read_stat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job
    from vramtop.estimator.learning.measurement import Measurement, Observed, RunState

    from ..board.comparison import PeakUsage
    from ..snapshot.snapshot import GpuProcess, GpuReading


class RunFacts(Protocol):
    """What was read of a run's process, as far as a measurement needs it."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the installed frameworks, by name."""

    @property
    def estimate_environ(self) -> Mapping[str, str]:
        """The Hugging Face cache and the allocator's settings."""

    @property
    def command(self) -> str:
        """Command line without secrets."""


def run_identity(pid: int) -> str | None:
    """Return what identifies a process on this machine for all time; None: it has ended, or may not be read."""
    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{boot} {pid} {stat.start_ticks}"


def is_own(pid: int) -> bool:
    """Return True if a process belongs to the user who runs vramtop."""
    return process_owner(pid) == os.geteuid()


def measurement_of_run(
    job: Job,
    budget: Budget,
    gpu: GpuReading,
    process: GpuProcess,
    *,
    usage: PeakUsage | None,
    run: str,
    state: RunState,
    time: float,
    driver: str | None,
    facts: RunFacts | None,
) -> Measurement:
    """Return the measurement of a run by its process with the highest peak; reads files.

    Args:
        job: of the run.
        budget: of the job.
        gpu: the GPU of the process.
        process: its latest reading, with torch's counters if it runs with the probe.
        usage: the most that it held.
        run: what identifies the run; see ``run_identity``.
        state: what the figures are the peaks of.
        time: Unix seconds of the reading.
        driver: version of the driver.
        facts: what was read of the process; None: nothing.
    """
    from vramtop.estimator.trace.allocator_report import allocator_settings

    from .new_measurement import new_measurement

    environ = None if facts is None else facts.estimate_environ
    _, allocator = (allocator_settings(environ) if environ else None) or (None, None)
    return new_measurement(
        job,
        [budget],
        _observed(process, usage),
        run=run,
        state=state,
        time=time,
        card=gpu.name,
        card_bytes=gpu.total_bytes,
        driver=driver,
        versions=dict(facts.versions) if facts else None,
        command=facts.command if facts else process.command,
        allocator=allocator,
        environ=environ,
    )


def _observed(process: GpuProcess, usage: PeakUsage | None) -> Observed:
    from vramtop.estimator.learning.measurement import Observed

    counters = process.counters
    allocated, reserved = (counters.allocated_peak_bytes, counters.reserved_peak_bytes) if counters else (None, None)
    return Observed(
        allocated_bytes=allocated or None,
        reserved_bytes=reserved or None,
        device_bytes=usage.size_bytes if usage else None,
        allocator_source="probe" if allocated or reserved else None,
        device_source=None if usage is None else "readings" if usage.source == "seen" else usage.source,
    )
