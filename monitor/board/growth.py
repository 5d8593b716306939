"""Growth of memory that should be steady: a significant trend, and when it would reach a limit."""

import math
from collections.abc import Sequence

import msgspec

BUCKET_COUNT = 12
"""Number of equal time spans whose maxima are compared, because memory goes up and down within each step."""
MIN_DEVIATIONS = 3.3
"""Standard deviations of a significant trend: one series in two thousand gets there by chance."""
_MIN_SECONDS = 120.0
_ALMOST_CERTAIN_DEVIATIONS = 4
_SHORT_SECONDS = (15.0, 30.0, 60.0)
"""Spans in which growth counts if it fills the GPU within as long again: a fast leak is over before two minutes are."""
_LEAST_COVERED = 0.8
"""Share of such a span that the readings in it must cover."""


class GrowthTrend(msgspec.Struct, frozen=True, kw_only=True):
    """A significant growth of memory."""

    bytes_per_second: float
    deviations: float
    """Mann-Kendall statistic z: how far the readings are from an order without a trend, in standard deviations."""
    since: float
    """Unix seconds of the last reading before the growth."""

    def seconds_until(self, left_bytes: int) -> float:
        """Return the seconds in which this many more bytes will be allocated if the growth continues."""
        return max(0, left_bytes) / self.bytes_per_second

    @property
    def confidence(self) -> str:
        """Confidence in words: ``almost certain`` or ``likely``."""
        return "almost certain" if self.deviations >= _ALMOST_CERTAIN_DEVIATIONS else "likely"


def find_growth(
    readings: Sequence[tuple[float, int]],
    *,
    min_bytes: int,
    left_bytes: int | None = None,
    min_deviations: float = MIN_DEVIATIONS,
) -> GrowthTrend | None:
    """Return the trend of readings (Unix seconds, bytes), oldest first; None if they do not grow significantly.

    Memory may grow until the allocator settles: growth counts only if it continues in the last third of the readings.

    Args:
        readings: readings of the steady phase alone.
        min_bytes: smallest growth over all readings that is reported.
        left_bytes: free memory of the GPU; None: unknown. Growth that fills it soon counts after a few seconds.
        min_deviations: standard deviations of a significant trend.
    """
    if trend := _growth_over(readings, _MIN_SECONDS, min_bytes, min_deviations):
        return trend
    if left_bytes is None:
        return None
    for span in _SHORT_SECONDS:
        latest = [reading for reading in readings if reading[0] >= readings[-1][0] - span]
        trend = _growth_over(latest, _LEAST_COVERED * span, min_bytes, min_deviations)
        if trend is not None and trend.seconds_until(left_bytes) <= span:
            return trend
    return None


def _growth_over(
    readings: Sequence[tuple[float, int]], min_seconds: float, min_bytes: int, min_deviations: float
) -> GrowthTrend | None:
    if len(readings) < BUCKET_COUNT or readings[-1][0] - readings[0][0] < min_seconds:
        return None
    maxima = _bucket_maxima(readings)
    if len(maxima) < BUCKET_COUNT * 2 // 3:
        return None
    sizes = [size for _, size in maxima]
    last_third = sizes[-(len(sizes) // 3) - 1 :]
    if sizes[-1] - sizes[0] < min_bytes or last_third[-1] <= last_third[0]:
        return None
    deviations = _mann_kendall(sizes)
    if deviations < min_deviations:
        return None
    since = max(time for time, size in maxima if size <= sizes[0])
    # the Theil-Sen estimate of the slope is the median of the slopes of all pairs
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for at, a in enumerate(maxima) for b in maxima[at + 1 :])
    return GrowthTrend(bytes_per_second=slopes[len(slopes) // 2], deviations=deviations, since=since)


def _bucket_maxima(readings: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the highest reading of each bucket, at the time of its middle; buckets without a reading are left out."""
    start, end = readings[0][0], readings[-1][0]
    span = (end - start) / BUCKET_COUNT
    maxima: dict[int, tuple[float, int]] = {}
    for moment, size in readings:
        bucket = min(BUCKET_COUNT - 1, int((moment - start) / span))
        if bucket not in maxima or size > maxima[bucket][1]:
            maxima[bucket] = (start + (bucket + 0.5) * span, size)
    return [maxima[bucket] for bucket in sorted(maxima)]


def _mann_kendall(sizes: Sequence[int]) -> float:
    """Return the Mann-Kendall test statistic z, corrected for ties (Kendall 1975); 0 for a falling series."""
    count = len(sizes)
    score = sum((b > a) - (b < a) for at, a in enumerate(sizes) for b in sizes[at + 1 :])
    ties = [sizes.count(size) for size in set(sizes)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 0.0 if variance <= 0 or score <= 0 else (score - 1) / math.sqrt(variance)
