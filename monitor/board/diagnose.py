"""Why a process diverges from its job's budget: what was seen of it, put to the estimator."""

from collections.abc import Callable, Collection

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.causes.divergence import Counters, Divergence, Observation, explain_divergence
from vramtop.estimator.job.job import Job

from ..snapshot.snapshot import GpuProcess
from .divergence_status import Comparison


def diagnose(
    budget: Budget,
    comparison: Comparison,
    process: GpuProcess | None,
    estimate: Callable[[Job], Budget],
    *,
    assumed: Collection[str] = (),
) -> Divergence:
    """Where the difference lies, and the settings that would explain it; some ten milliseconds, at most 150.

    Args:
        budget: of the job that the process runs.
        comparison: of the process.
        process: as it was read last, with torch's counters where it runs with the probe.
        estimate: a quick estimate of a changed job; may raise VramtopError.
        assumed: dotted keys of the job that nobody wrote down (``Finding.written``).
    """
    most, now = comparison.peak_usage, comparison.observed_bytes
    seen = Observation(
        device_bytes=now if most is None or comparison.phase == "loading" else most.size_bytes,
        now_bytes=now,
        loading=comparison.phase == "loading" and comparison.status != "out_of_memory",
        at_least=comparison.status == "out_of_memory",
        counters=_counters(process),
        assumed=assumed,
    )
    return explain_divergence(budget, seen, estimate)


def _counters(process: GpuProcess | None) -> Counters | None:
    told = process.counters if process else None
    if told is None:
        return None
    return Counters(
        allocated_peak_bytes=told.allocated_peak_bytes,
        reserved_bytes=told.reserved_bytes,
        reserved_peak_bytes=told.reserved_peak_bytes,
        retries=told.retries,
        out_of_memory=told.out_of_memory,
    )
