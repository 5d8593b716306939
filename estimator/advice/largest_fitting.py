"""Searches for the largest micro-batch and the longest sequence with which a job still fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..common.errors import VramtopError
from ..job.job import Job
from ..job.job_file.changes import with_changes

_BATCH_SIZES = (1, 2, 4, *range(8, 4096 + 1, 8))
_MAX_SEQUENCE_LENGTH = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFitting:
    """The largest micro-batch and the longest sequence that fit, each with all other settings unchanged."""

    micro_batch: int | None
    """1, 2, 4, a multiple of eight, or the job's own; None: not even 1 fits."""
    sequence_length: int | None
    """A multiple of 128, 64 below that, or the job's own; None: not even 64 tokens fit."""
    at_model_limit: bool = False
    """The model supports no longer sequence, though memory would allow it."""


def find_largest(job: Job, fits: Callable[[Job], bool], *, max_positions: int | None = None) -> LargestFitting:
    """Search both: the results fit, and the next larger candidates do not.

    A job that fits as it is never gets a smaller value than its own.

    Allocated bytes never fall as either grows. What the allocator keeps beside them may, as other blocks fit into each
    other; a larger candidate that fits can then be missed.

    Args:
        job: the job to grow.
        fits: returns True if a changed job fits; one that raises VramtopError does not.
        max_positions: the longest sequence that the model supports.
    """
    own_size, own_length = job.training.micro_batch, job.training.sequence_length
    sizes = sorted({*_BATCH_SIZES, own_size})
    lengths = sorted({*_lengths(max_positions), min(own_length, max_positions or own_length)})

    def largest(key: str, values: Sequence[int], own: int) -> int | None:
        def fits_with(value: int) -> bool:
            try:
                return fits(with_changes(job, {key: value}))
            except VramtopError:
                return False

        return _last_fitting(values, fits_with, own)

    longest = largest("training.sequence_length", lengths, own_length)
    return LargestFitting(
        micro_batch=largest("training.micro_batch", sizes, own_size),
        sequence_length=longest,
        at_model_limit=longest is not None and max_positions is not None and longest == lengths[-1],
    )


def _last_fitting(values: Sequence[int], fits: Callable[[int], bool], own: int) -> int | None:
    """Return the last value that fits if all before it do.

    The search goes up in doubling steps from the job's own value if that fits, otherwise from the first one, and then
    bisects the last step.
    """
    low = next((at for at in (values.index(own) if own in values else 0, 0) if fits(values[at])), None)
    if low is None:
        return None
    step = 1
    while low + step < len(values) and fits(values[low + step]):
        low += step
        step *= 2
    high = min(low + step, len(values))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(values[middle]) else (low, middle)
    return values[low]


def _lengths(max_positions: int | None) -> list[int]:
    limit = min(max_positions or _MAX_SEQUENCE_LENGTH, _MAX_SEQUENCE_LENGTH)
    lengths = [length for length in (64, *range(128, limit + 1, 128)) if length <= limit]
    if max_positions and (not lengths or lengths[-1] != max_positions):
        lengths.append(max_positions)
    return lengths
