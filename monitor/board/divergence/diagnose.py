"""Find the likely causes of a divergence: the observations of a process, passed to the estimator's cause search."""

from collections.abc import Callable, Collection

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes import Divergence, Observation, explain_divergence
from vramtop.estimator.job import Job

from ...snapshot import GpuProcess
from .divergence_status import Comparison


def diagnose(
    budget: Budget,
    comparison: Comparison,
    process: GpuProcess | None,
    estimate: Callable[[Job], Budget],
    *,
    assumed: Collection[str] = (),
) -> Divergence:
    """Return where the difference lies and the settings that would explain it; takes 50 ms to a second.

    Where measured runs have corrected the budget, each cause is searched with the part of that correction that a job so
    changed shares.

    Args:
        budget: budget of the job that the process runs.
        comparison: comparison of the process with that budget.
        process: latest reading of the process, with torch's counters if it runs with the probe.
        estimate: a quick estimate of a changed job; may raise VramtopError.
        assumed: dotted keys of the job that are defaults or inferences (``Finding.written`` is false).
    """
    peak, now = comparison.peak_usage, comparison.observed_bytes
    observation = Observation(
        device_bytes=now if peak is None or comparison.phase == "loading" else peak.size_bytes,
        now_bytes=now,
        loading=comparison.phase == "loading" and comparison.status != "out_of_memory",
        at_least=comparison.status == "out_of_memory",
        counters=process.counters if process else None,
        assumed=assumed,
    )
    return explain_divergence(budget, observation, _corrected_like(budget, estimate))


def _corrected_like(budget: Budget, estimate: Callable[[Job], Budget]) -> Callable[[Job], Budget]:
    if budget.learned is None:
        return estimate
    from vramtop.estimator.learning.carried import carried

    return lambda job: carried(estimate(job), budget)
