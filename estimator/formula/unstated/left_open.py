"""What a job leaves open, as far as the closed form tells: the same for a budget made by any method."""

from msgspec import Struct

from ...budget import Budget
from ...common import CannotTellError
from ...job import Gpu, Job
from ...model import Architecture
from ..reserved import lengths_cache, with_varying_lengths
from .allow_for import Change, unstated_changes, with_unstated


class LeftOpen(Struct, frozen=True, kw_only=True):
    """What the closed form finds for it, at the cost of several replays; it can be kept as JSON."""

    changes: tuple[Change, ...]
    """How far the job lies from those that it may be instead."""
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
    return LeftOpen(changes=unstated_changes(job, arch, gpu), lengths_cache=lengths_cache(job, arch, gpu, conf))


def with_left_open(budget: Budget, found: LeftOpen) -> Budget:
    """Return the budget with a range that allows for what its job leaves open, and sentences about it."""
    return with_varying_lengths(with_unstated(budget, found.changes), found.lengths_cache)
