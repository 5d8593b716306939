"""Searches for the largest micro-batch and the longest sequence with which a job still fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..common.errors import VramtopError
from ..job.job import Job
from ..job.job_file.changes import with_changes
from .bounded_search import BoundedSearch

_BATCH_SIZES = (1, 2, 4, *range(8, 4096 + 1, 8))
_MAX_SEQUENCE_LENGTH = 1 << 21
_MAX_GUESSES = 8
"""Replays after which the values that are left are halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFitting:
    """The largest micro-batch and the longest sequence that fit, each with all other settings unchanged."""

    micro_batch: int | None
    """1, 2, 4, a multiple of eight, or the job's own; None: not even 1 fits."""
    sequence_length: int | None
    """A multiple of 128, 64 below that, or the job's own; None: not even 64 tokens fit."""
    at_model_limit: bool = False
    """The model supports no longer sequence, though memory would allow it."""


def find_largest(
    job: Job, fits: Callable[[Job], bool] | BoundedSearch, *, max_positions: int | None = None
) -> LargestFitting:
    """Search both: the results fit, and the next larger candidates do not.

    A job that fits as it is never gets a smaller value than its own.

    Allocated bytes never fall as either grows. What the allocator keeps beside them may, as other blocks fit into each
    other; a larger candidate that fits can then be missed.

    Args:
        job: the job to grow.
        fits: returns True if a changed job fits; one that raises VramtopError does not. A bounded search, which first
            refuses what is too large in any case, replays a few candidates only.
        max_positions: the longest sequence that the model supports.
    """
    own_size, own_length = job.training.micro_batch, job.training.sequence_length
    sizes = sorted({*_BATCH_SIZES, own_size})
    lengths = sorted({*_lengths(max_positions), min(own_length, max_positions or own_length)})

    def largest(key: str, values: Sequence[int], own: int) -> int | None:
        return _last_fitting(_Candidates(values, lambda value: with_changes(job, {key: value}), fits), own)

    longest = largest("training.sequence_length", lengths, own_length)
    return LargestFitting(
        micro_batch=largest("training.micro_batch", sizes, own_size),
        sequence_length=longest,
        at_model_limit=longest is not None and max_positions is not None and longest == lengths[-1],
    )


class _Candidates:
    """Values of one setting, ascending, and whether the job fits with each."""

    def __init__(
        self, values: Sequence[int], job_of: Callable[[int], Job], fits: Callable[[Job], bool] | BoundedSearch
    ) -> None:
        self.values = values
        self._job_of = job_of
        self._fits = fits
        self.bounded = isinstance(fits, BoundedSearch)
        """True if it is known what each takes at least."""
        self.more = 0
        """Bytes by which the last one that ``fit`` was asked for takes more than the least that it may take."""

    def fit(self, at: int) -> bool:
        """Return whether the job fits with the value at an index."""
        try:
            job = self._job_of(self.values[at])
            if not isinstance(self._fits, BoundedSearch):
                return self._fits(job)
            budget, verdict = self._fits.least(job)
            if verdict != "fits":
                return False
            exact, verdict = self._fits.exact(budget)
        except VramtopError:
            return False
        self.more = exact.peak.high_bytes - budget.peak.high_bytes
        return verdict == "fits"

    def may_fit(self, at: int, more: int) -> bool:
        """Return whether the candidate fits with the least memory that it can take, plus ``more`` bytes."""
        try:
            job = self._job_of(self.values[at])
            return isinstance(self._fits, BoundedSearch) and self._fits.least(job, more)[1] == "fits"
        except VramtopError:
            return False


def _last_fitting(candidates: _Candidates, own: int) -> int | None:
    """Return the last candidate that fits if all before it do.

    The search starts from the job's own value if that fits, otherwise from the first candidate.
    """
    values, fits = candidates.values, candidates.fit
    start = next((at for at in (values.index(own) if own in values else 0, 0) if fits(at)), None)
    if start is None:
        return None
    if candidates.bounded:
        return values[_bounded_end(candidates, start)]
    low, high = _doubled(fits, start, len(values))
    return values[_bisected(fits, low, high)]


def _bounded_end(candidates: _Candidates, low: int) -> int:
    """Return the last index that fits, of those that do with the least, from one that was found to fit.

    What the last replays took more than the least tells where the end may be; replays decide.
    """
    values, below, above = candidates.values, candidates.more, None
    _, high = _doubled(lambda at: candidates.may_fit(at, 0), low, len(values))
    high = 1 + _bisected(lambda at: candidates.may_fit(at, 0), low, high)
    steps = 0
    while high - low > 1:
        slope = 0.0 if above is None else (above - below) / (values[high] - values[low])
        guess = _bisected(
            lambda at, start=values[low], more=below, slope=slope: candidates.may_fit(  # type: ignore[misc]
                at, more + round(slope * (values[at] - start))
            ),
            low,
            high,
        )
        at = max(low + 1, min(high - 1, guess)) if steps < _MAX_GUESSES else (low + high) // 2
        steps += 1
        if candidates.fit(at):
            low, below = at, candidates.more
        else:
            high, above = at, candidates.more
    return low


def _doubled(fits: Callable[[int], bool], low: int, end: int) -> tuple[int, int]:
    """Return the last index that fits of those at doubling distances from one that does, and the next of them."""
    step = 1
    while low + step < end and fits(low + step):
        low += step
        step *= 2
    return low, min(low + step, end)


def _bisected(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest index that fits, by bisection between one that fits and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _lengths(max_positions: int | None) -> list[int]:
    limit = min(max_positions or _MAX_SEQUENCE_LENGTH, _MAX_SEQUENCE_LENGTH)
    lengths = [length for length in (64, *range(128, limit + 1, 128)) if length <= limit]
    if max_positions and (not lengths or lengths[-1] != max_positions):
        lengths.append(max_positions)
    return lengths
