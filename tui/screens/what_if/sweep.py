"""A sweep: quick estimates of a job over the values of one setting, compared with the memory of a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import VramtopError, format_gib
from vramtop.estimator.job import Job, with_changes
from vramtop.monitor.board.fit import Verdict

Axis = Literal["training.micro_batch", "training.sequence_length"]
AXES: dict[Axis, str] = {"training.micro_batch": "micro-batch", "training.sequence_length": "sequence length"}
_VALUE_STEP: dict[Axis, int] = {"training.micro_batch": 1, "training.sequence_length": 64}
_MIN_END: dict[Axis, int] = {"training.micro_batch": 4, "training.sequence_length": 1024}
"""The sweep ends no earlier, and beyond the job's own value: a plot of two values shows nothing."""
_MAX_VALUE: dict[Axis, int] = {"training.micro_batch": 4096, "training.sequence_length": 1 << 21}
_LIMIT_MARGIN = 1.15
"""The sweep goes beyond the limit by this factor, to show where the need crosses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Memory of the job with one value."""

    value: int
    device_bytes: int
    low_bytes: int
    high_bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Memory of a GPU."""

    available_bytes: int | None = None
    """Available bytes, on the GPU of the job that would have the least memory left."""
    gpu_bytes: int | None = None
    """Total bytes of that GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Points in order of their values."""

    axis: Axis
    current_value: int
    """The job's own value."""
    points: tuple[SweepPoint, ...]
    limits: GpuLimits

    @property
    def largest(self) -> SweepPoint | None:
        """The last point that fits after points that all fit; if the job's own value fits, no less than that."""
        return self._last(("fits",))

    @property
    def largest_tight(self) -> SweepPoint | None:
        """The last point that fits or is tight after points that all do, likewise."""
        return self._last(("fits", "tight"))

    def at(self, value: int) -> SweepPoint | None:
        """Return the point of a value, or the one before it if that value was not estimated."""
        return next((point for point in reversed(self.points) if point.value <= value), None)

    def _last(self, verdicts: tuple[Verdict, ...]) -> SweepPoint | None:
        last = None
        own_fits = any(point.value == self.current_value and point.verdict in verdicts for point in self.points)
        for point in self.points:
            if own_fits and point.value < self.current_value:
                continue
            if point.verdict not in verdicts:
                break
            last = point
        return last


def sweep_setting(
    job: Job,
    axis: Axis,
    estimate: Callable[[Job], Budget],
    verdict: Callable[[Budget], Verdict],
    limits: GpuLimits,
    *,
    max_positions: int | None = None,
    points: int = 96,
) -> Sweep:
    """Estimate the job over one setting, from the smallest value to beyond the largest that fits.

    Args:
        job: the job with its current value.
        axis: key of the setting.
        estimate: a quick estimate; values for which it raises an error are left out.
        verdict: decides whether a budget fits.
        limits: the GPU's memory, which the sweep should exceed.
        max_positions: the longest sequence of the model: the sweep ends there, or at the job's own value.
        points: maximum number of values.
    """
    current_value: int = getattr(job.training, axis.partition(".")[2])
    value_step = _VALUE_STEP[axis]

    def need(value: int) -> Budget | None:
        try:
            return estimate(with_changes(job, {axis: value}))
        except VramtopError:
            return None

    most = _MAX_VALUE[axis]
    if axis == "training.sequence_length" and max_positions:
        most = max(min(most, max_positions), current_value)
    end = _end(need, limits, least=min(most, max(_MIN_END[axis], current_value + -(-current_value // 4))), most=most)
    step = max(value_step, -(-end // points // value_step) * value_step)
    values = sorted({value_step, current_value, *range(step, end + 1, step)})
    found = ((value, need(value)) for value in values)
    return Sweep(
        axis=axis,
        current_value=current_value,
        points=tuple(_point(value, budget, verdict) for value, budget in found if budget is not None),
        limits=limits,
    )


def point_words(sweep: Sweep, point: SweepPoint) -> str:
    """Return a point in words: ``micro-batch 8: 61.2 GiB (58.0 to 66.1)``."""
    low, high = format_gib(point.low_bytes), format_gib(point.high_bytes)
    return f"{AXES[sweep.axis]} {point.value:,}: {format_gib(point.device_bytes)} GiB ({low} to {high})"


def _end(need: Callable[[int], Budget | None], limits: GpuLimits, *, least: int, most: int) -> int:
    """Return the last value: just beyond the limits, found by doubling and then by linear interpolation."""
    limit = max(limits.available_bytes or 0, limits.gpu_bytes or 0) * _LIMIT_MARGIN
    last, size = least, _size(need(least))
    while size is not None and size < limit and last < most:
        further = min(2 * last, most)
        larger = _size(need(further))
        if larger is None:
            break
        if larger >= limit and larger > size:
            return round(last + (further - last) * (limit - size) / (larger - size))
        last, size = further, larger
    return last


def _size(budget: Budget | None) -> int | None:
    return None if budget is None else budget.peak.device_bytes


def _point(value: int, budget: Budget, verdict: Callable[[Budget], Verdict]) -> SweepPoint:
    peak = budget.peak
    return SweepPoint(
        value=value,
        device_bytes=peak.device_bytes,
        low_bytes=peak.low_bytes,
        high_bytes=peak.high_bytes,
        verdict=verdict(budget),
    )
