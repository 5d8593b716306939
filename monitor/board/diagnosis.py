"""Likely causes of a divergence: the observations of a process, passed to the estimator's cause search."""

from collections.abc import Callable, Collection

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.cause_search import Observation
from vramtop.estimator.causes.divergence import Divergence, explain_divergence
from vramtop.estimator.job.job import Job

from ..snapshot.snapshot import GpuProcess
from .comparison import Comparison


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
    if comparison.trend is not None:  # a setting changes a level, and no trend
        causes = _causes_of_growth(process)
        return Divergence(sentence=comparison.sentence, parts=(), explanations=(), further=causes, is_trend=True)
    peak, now = comparison.peak_usage, comparison.observed_bytes
    observation = Observation(
        device_bytes=now if peak is None or comparison.phase == "loading" else peak.size_bytes,
        now_bytes=now,
        loading=comparison.phase == "loading" and comparison.status != "out_of_memory",
        at_least=comparison.status == "out_of_memory",
        counters=process.counters if process else None,
        assumed=assumed,
    )
    if budget.learned is None:
        return explain_divergence(budget, observation, estimate)
    from vramtop.estimator.learning.correction import carried

    return explain_divergence(budget, observation, lambda job: carried(estimate(job), budget))


_KEPT_TENSORS = (
    "tensors stay alive from step to step: a loss summed without .item(), outputs or metrics kept in a list, hooks "
    "that store activations, evaluation results left on the GPU"
)
_GROWING_CACHE = (
    "or torch's cache grows because batch lengths vary: it stops growing at the longest batch, and "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True keeps it small"
)
_MOSTLY_TENSORS = 0.85
"""Share of reserved memory from which tensors, and not free blocks, are what grows."""


def _causes_of_growth(process: GpuProcess | None) -> tuple[str, ...]:
    """Return what makes memory grow without end, as far as torch's counters tell tensors from free cache."""
    counters = process.counters if process else None
    allocated, reserved = (counters.allocated_bytes, counters.reserved_bytes) if counters else (None, None)
    if process is None or allocated is None or not reserved:
        which = (
            "vramtop run -- COMMAND starts the job with a probe that tells the two apart and shows which lines hold "
            "memory"
        )
        return (_KEPT_TENSORS, _GROWING_CACHE, which)
    if allocated < _MOSTLY_TENSORS * reserved:
        return (_GROWING_CACHE, _KEPT_TENSORS)
    return (_KEPT_TENSORS, f"vramtop snapshot {process.pid} shows which lines hold the memory")
