"""Plots as plain data, which ``svg`` draws into the page and ``plot_files`` with matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.monitor.sources.recorded import Stretch

LineStyle = Literal["area", "line", "thin", "dashed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Memory over time."""

    label: str
    colour: str
    stretches: tuple[Stretch, ...]
    """Between them are gaps, over which nothing is drawn."""
    style: LineStyle = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range of memory over the whole time, such as that of a budget."""

    label: str
    colour: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment at which something happened."""

    time: float
    """Unix seconds."""
    number: int
    """Its number in the table of events."""
    colour: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time without readings."""

    begin: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlot:
    """Memory over time."""

    name: str
    """For the name of a file: ``gpu-0``."""
    title: str
    summary: str
    """What it shows, for those who do not see it."""
    begin: float
    end: float
    top_bytes: int
    """Upper end of the scale."""
    limit_bytes: int | None = None
    """Size of the GPU."""
    lines: tuple[Line, ...] = ()
    band: Band | None = None
    moments: tuple[Moment, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar."""

    label: str
    colour: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of stacked parts."""

    label: str
    segments: tuple[Segment, ...]
    figure: str
    """What stands at its end: ``67.2 GiB (62.0 to 70.1)``."""
    low_bytes: int | None = None
    """Lower end of its range; None: it has none."""
    high_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Bars on one scale, one below the other."""

    name: str
    title: str
    summary: str
    bars: tuple[Bar, ...]

    @property
    def top_bytes(self) -> int:
        """Upper end of the scale."""
        ends = (max(sum(part.bytes for part in bar.segments), bar.high_bytes or 0) for bar in self.bars)
        return max(1, *ends) if self.bars else 1

    @property
    def legend(self) -> dict[str, str]:
        """Labels of the parts, each with its colour."""
        parts = (part for bar in self.bars for part in bar.segments if part.bytes)
        return {part.label: part.colour for part in parts}


Plot = TimePlot | BarPlot


def outline(stretch: Sequence[tuple[float, float, int, int]]) -> list[tuple[float, int]]:
    """Return the corners of a line through intervals: (Unix seconds, bytes), of each interval its peak at least.

    An interval of several readings is drawn through its lowest and its highest one, so that no peak is lost.
    """
    corners: list[tuple[float, int]] = []
    for begin, end, low, high in stretch:
        if begin == end:
            corners.append((begin, high))
            continue
        rises = not corners or corners[-1][1] <= (low + high) / 2
        first, second = (low, high) if rises else (high, low)
        corners += [(begin, first), (end, second)]
    return corners
