"""Searches for the largest micro-batch and the longest sequence with which a job still fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..common import VramtopError
from ..job import Job, with_changes
from ..job.effective_batch import effective_batch

_MAX_MICRO_BATCH = 4096
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``largest``."""
        return {
            "micro_batch": self.micro_batch,
            "sequence_length": self.sequence_length,
            "at_model_limit": self.at_model_limit,
        }


def find_largest(
    job: Job, fits: Callable[[Job], bool], *, max_positions: int | None = None, keep_global_batch: bool = False
) -> LargestFitting:
    """Search both by bisection: the results fit, and the next larger candidates do not.

    A job that fits as it is never gets a smaller value than its own.

    Allocated bytes never fall as either grows. What the allocator keeps beside them may, as other blocks fit into each
    other; a larger candidate that fits can then be missed.

    Args:
        job: the job to grow.
        fits: returns True if a changed job fits; one that raises VramtopError does not.
        max_positions: the longest sequence that the model supports.
        keep_global_batch: only try micro-batches for which some accumulation keeps the sequences per step.
    """
    batch = effective_batch(job)

    def with_batch(size: int) -> bool:
        changes: dict[str, Any] = {"training.micro_batch": size}
        if keep_global_batch and batch:
            steps = batch.accumulation_for(micro_batch=size, data_ranks=batch.data_ranks)
            changes["training.gradient_accumulation"] = steps
        return _fits(job, changes, fits)

    own_size, own_length = job.training.micro_batch, job.training.sequence_length
    sizes = sorted({*_batch_sizes(), own_size})
    if keep_global_batch and batch:
        sizes = [s for s in sizes if batch.accumulation_for(micro_batch=s, data_ranks=batch.data_ranks)]
    lengths = sorted({*_lengths(max_positions), min(own_length, max_positions or own_length)})
    longest = _last_fitting(
        lengths, lambda length: _fits(job, {"training.sequence_length": length}, fits), own=own_length
    )
    return LargestFitting(
        micro_batch=_last_fitting(sizes, with_batch, own=own_size),
        sequence_length=longest,
        at_model_limit=longest is not None and max_positions is not None and longest == lengths[-1],
    )


def _fits(job: Job, changes: dict[str, Any], fits: Callable[[Job], bool]) -> bool:
    try:
        return fits(with_changes(job, changes))
    except VramtopError:
        return False


def _last_fitting(candidates: Sequence[int], fits: Callable[[int], bool], *, own: int) -> int | None:
    """Return the last candidate that fits if all before it do: steps that double, then bisection.

    The search starts from the job's own value if that fits, otherwise from the first candidate.
    """
    start = next((at for at in (candidates.index(own) if own in candidates else 0, 0) if fits(candidates[at])), None)
    if start is None:
        return None
    low, step = start, 1
    while low + step < len(candidates) and fits(candidates[low + step]):
        low += step
        step *= 2
    high = min(low + step, len(candidates))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(candidates[middle]) else (low, middle)
    return candidates[low]


def _batch_sizes() -> list[int]:
    return [1, 2, 4, *range(8, _MAX_MICRO_BATCH + 1, 8)]


def _lengths(max_positions: int | None) -> list[int]:
    limit = min(max_positions or _MAX_SEQUENCE_LENGTH, _MAX_SEQUENCE_LENGTH)
    lengths = [length for length in (64, *range(128, limit + 1, 128)) if length <= limit]
    if max_positions and (not lengths or lengths[-1] != max_positions):
        lengths.append(max_positions)
    return lengths
