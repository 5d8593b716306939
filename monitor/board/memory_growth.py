"""Does memory that should be steady grow? A trend that is significant, and when it would reach a limit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BUCKET_COUNT = 12
"""Spans of equal length, of which the maxima are looked at: steps make memory go up and down."""
_LEAST_SECONDS = 120.0
MIN_DEVIATIONS = 3.3
"""Standard deviations: by chance one series in two thousand comes so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthTrend:
    """A significant growth."""

    bytes_per_second: float
    deviations: float
    """How far the order of the readings is from one without a trend, in standard deviations (Mann-Kendall)."""

    def seconds_until(self, left_bytes: int) -> float:
        """When so many more bytes would be taken, if it goes on."""
        return max(0, left_bytes) / self.bytes_per_second

    @property
    def confidence(self) -> str:
        """For people."""
        return "almost certain" if self.deviations >= 4 else "likely"


def find_growth(
    readings: Sequence[tuple[float, int]], *, least_bytes: int, deviations: float = MIN_DEVIATIONS
) -> GrowthTrend | None:
    """The trend of readings (Unix seconds, bytes), oldest first; None where they do not grow beyond doubt.

    A job whose allocator still settles grows and then stays: growth counts only if it goes on in the last third.

    Args:
        readings: of the steady phase alone.
        least_bytes: growth over all of it that is worth a word.
        deviations: how many standard deviations are beyond doubt.
    """
    if len(readings) < BUCKET_COUNT or readings[-1][0] - readings[0][0] < _LEAST_SECONDS:
        return None
    maxima = _maxima(readings)
    if len(maxima) < BUCKET_COUNT * 2 // 3:
        return None
    sizes = [size for _, size in maxima]
    late = sizes[-(len(sizes) // 3) - 1 :]
    if sizes[-1] - sizes[0] < least_bytes or late[-1] <= late[0]:
        return None
    found = _mann_kendall(sizes)
    if found < deviations:
        return None
    return GrowthTrend(bytes_per_second=_median_slope(maxima), deviations=found)


def _maxima(readings: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    begun, ended = readings[0][0], readings[-1][0]
    span = (ended - begun) / BUCKET_COUNT
    found: dict[int, tuple[float, int]] = {}
    for time, size in readings:
        bucket = min(BUCKET_COUNT - 1, int((time - begun) / span))
        if bucket not in found or size > found[bucket][1]:
            found[bucket] = (begun + (bucket + 0.5) * span, size)
    return [found[bucket] for bucket in sorted(found)]


def _mann_kendall(sizes: Sequence[int]) -> float:
    """The test statistic z, with the correction for ties (Kendall 1975)."""
    count = len(sizes)
    score = sum((b > a) - (b < a) for at, a in enumerate(sizes) for b in sizes[at + 1 :])
    ties = [sizes.count(size) for size in set(sizes)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 0.0 if variance <= 0 or score <= 0 else (score - 1) / math.sqrt(variance)


def _median_slope(points: Sequence[tuple[float, int]]) -> float:
    """Theil's and Sen's estimate: the median of the slopes of all pairs."""
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for at, a in enumerate(points) for b in points[at + 1 :])
    return slopes[len(slopes) // 2]
