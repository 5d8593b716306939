"""Activity of a GPU: the recent samples of its utilisation, power and temperature; bounded in size."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .snapshot import GpuReading

GpuFigure = Literal["utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c"]
"""A field of ``GpuReading`` whose history is kept."""
_FIGURES: tuple[GpuFigure, ...] = ("utilisation_percent", "memory_utilisation_percent", "power_w", "temperature_c")


class GpuActivity:
    """The last ``capacity`` samples of one GPU."""

    __slots__ = ("_capacity", "_figures", "_next", "_times", "latest")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = array("d")
        self._figures = {figure: array("f") for figure in _FIGURES}  # NaN: unknown
        self._next = 0
        self.latest = -math.inf

    def add(self, time: float, gpu: GpuReading) -> None:
        """Add a reading; the figures of a stale one are unknown at this time."""
        stale = gpu.is_stale
        full = len(self._times) >= self._capacity
        for figure, values in self._figures.items():
            value = None if stale else getattr(gpu, figure)
            stored = math.nan if value is None else value
            if full:
                values[self._next] = stored
            else:
                values.append(stored)
        if full:
            self._times[self._next] = time
            self._next = (self._next + 1) % self._capacity
        else:
            self._times.append(time)
        self.latest = time

    def samples(self, figure: GpuFigure) -> list[tuple[float, int | None]]:
        """Return Unix seconds and the rounded figure, oldest first."""
        values, at = self._figures[figure], self._next
        pairs = zip(self._times[at:] + self._times[:at], values[at:] + values[:at], strict=True)
        return [(time, None if math.isnan(value) else round(value)) for time, value in pairs]
