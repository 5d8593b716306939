"""The age from which a board is too old: the sampler hangs, and its figures are no longer the machine's."""

_INTERVALS = 3
"""Readings that may be missed: one that takes long is no hang."""
_LEAST_SECONDS = 10.0
"""With short intervals: a driver that initialises a GPU takes some seconds."""


def stale_after_seconds(interval: float) -> float:
    """Return the age from which a board is too old, for alerts and for the exporter.

    Args:
        interval: seconds between two readings.
    """
    return max(_LEAST_SECONDS, _INTERVALS * interval)
