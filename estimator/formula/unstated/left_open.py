"""Settings that a job leaves open, as the closed form tells them: alike for budgets made by any method."""

from dataclasses import replace

from msgspec import Struct

from ...budget import Budget
from ...common import CannotTellError, format_gib
from ...job import Gpu, Job
from ...model import Architecture
from .allow_for import Change, with_unstated

_SMALL = 0.01
"""Share of the reserved bytes below which it does not matter whether lengths differ."""
_UNKNOWN_LENGTHS = "Whether batches differ in length from step to step is not known (training.varying_lengths); if so"


class LeftOpen(Struct, frozen=True, kw_only=True):
    """Findings of the closed form about a job, at the cost of several replays; they can be kept as JSON."""

    changes: tuple[Change, ...]
    """Differences of the job from those that it may be instead."""
    lengths_cache: int
    """Bytes that the allocator keeps besides if batches differ in length."""


def find_left_open(
    job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None, conf: str | None = None
) -> LeftOpen:
    """Return what a job leaves open.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: those that the job's framework makes.

    Raises:
        InputError: the job is spread over more than the model has.
    """
    from ..reserved import lengths_cache  # 20 ms with the closed form, which a budget with what was found needs not
    from .changes import unstated_changes

    return LeftOpen(changes=unstated_changes(job, arch, gpu), lengths_cache=lengths_cache(job, arch, gpu, conf))


def with_left_open(budget: Budget, found: LeftOpen) -> Budget:
    """Return the budget with a range that allows for what its job leaves open, and sentences about it."""
    return _with_varying_lengths(with_unstated(budget, found.changes), found.lengths_cache)


def _with_varying_lengths(budget: Budget, cache: int) -> Budget:
    """Return the budget with what the allocator keeps besides if its job's batches differ in length, and a sentence.

    Where the job does not say it, and its framework pads a batch to its longest sequence by default, there is only the
    sentence: memory beyond the range is still shown as a divergence.
    """
    known = budget.job.training.varying_lengths is not None
    if cache <= (0 if known else _SMALL * budget.peak.reserved_bytes):
        return budget
    lengths = "Batches differ in length" if known else _UNKNOWN_LENGTHS
    keeps = f"the allocator may keep {format_gib(cache)} GiB beyond the range, which it gives back before it fails"
    peak = replace(budget.peak, cache_bytes=cache if known else 0)
    return replace(budget, peak=peak, assumptions=(*budget.assumptions, f"{lengths}: {keeps}."))
