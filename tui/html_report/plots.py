"""Plots of memory as inline SVG without a script: they take the width of the page, its colours, and are sharp in print.

Positions are percentages, so letters keep their size on a phone; only lines of data are stretched, in a coordinate
system of their own. What a line is, and its peak, is in its title, which browsers show under the pointer.
"""

import math
import time as clock
from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element

import msgspec

from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.monitor.sources.memory_series import Stretch

from .elements import add, node

LineStyle = Literal["area", "line", "thin", "dashed"]
_UNITS = 10_000
"""Width and height of the coordinate system of data."""
_TOP = 16
"""Height of the numbers of events above the plot."""
_PLOT_HEIGHT = 210
_BOTTOM = _TOP + _PLOT_HEIGHT
_STEPS = (1, 2, 5, 10, 15, 30)


class Line(NamedTuple):
    """Memory over time."""

    label: str
    colour: str
    stretches: tuple[Stretch, ...]
    """Between them are gaps, over which nothing is drawn."""
    style: LineStyle = "line"


class Range(NamedTuple):
    """A predicted size with its range."""

    label: str
    colour: str
    expected_bytes: int
    low_bytes: int
    high_bytes: int


class Moment(NamedTuple):
    """A moment at which something happened, or a time without readings."""

    time: float
    """Unix seconds."""
    text: str
    number: int = 0
    """Its number in the table of events."""
    colour: str = ""
    end: float | None = None
    """Unix seconds at which the time without readings ends; None: it is a moment."""


class TimePlot(msgspec.Struct, frozen=True, kw_only=True):
    """Memory over time."""

    summary: str
    """What it shows, for those who do not see it."""
    begin: float
    end: float
    top_bytes: int
    """Upper end of the scale."""
    limit_bytes: int | None = None
    """Size of the GPU."""
    lines: tuple[Line, ...] = ()
    band: Range | None = None
    moments: tuple[Moment, ...] = ()

    def across(self, time: float) -> float:
        """Return a time as percent of the width."""
        return 100 * (time - self.begin) / max(self.end - self.begin, 1e-9)

    def down(self, size: int) -> float:
        """Return the distance of a size from the top, in pixels."""
        return round(_TOP + _PLOT_HEIGHT * (1 - size / self.top_bytes), 1)

    def level(self, size: int) -> int:
        """Return a size in the coordinate system of data."""
        return round(_UNITS * (1 - min(size, self.top_bytes) / self.top_bytes))


_MAX_LEGEND_LINES = 8


def time_figure(title: str, plot: TimePlot) -> Element:
    """Return a plot below its title, with what its lines and its range are below it."""
    entries = [(line.label, line.colour, line.style) for line in plot.lines[-_MAX_LEGEND_LINES:]]
    entries += [(f"{plot.band.label}, with its range", plot.band.colour, "dashed")] if plot.band else []
    items = []
    for label, colour, style in entries:
        line = node("line", x1="0", x2="18", y1="6", y2="6", stroke=colour, class_=f"data {style}")
        items.append(node("li", node("svg", line, width=18, height=12, aria_hidden="true"), " ", label))
    return node("figure", node("figcaption", title), time_plot(plot), node("ul", *items, class_="legend"))


_HEIGHT = _BOTTOM + 22
"""With the labels of the time axis below it."""


def time_plot(plot: TimePlot) -> Element:
    """Return memory over time as SVG."""
    svg = node("svg", class_="plot", role="img", aria_label=plot.summary, height=_HEIGHT, width="100%")
    for moment in plot.moments:
        if moment.end is not None:
            begin, end = plot.across(moment.time), plot.across(moment.end)
            place = {"x": _percent(begin), "width": _percent(max(0.15, end - begin)), "y": _TOP, "height": _PLOT_HEIGHT}
            add(svg, node("rect", node("title", moment.text), **place, class_="gap"))
    ticks = [(plot.down(size), label) for size, label in memory_ticks(plot.top_bytes)]
    add(svg, *(_across_line(y, class_="grid") for y, _ in ticks))
    _add_times(svg, plot)
    inner = node(
        "svg", viewBox=f"0 0 {_UNITS} {_UNITS}", preserveAspectRatio="none", y=_TOP, width="100%", height=_PLOT_HEIGHT
    )
    if band := plot.band:
        high, low, expected = map(plot.level, (band.high_bytes, band.low_bytes, band.expected_bytes))
        span = f"({format_gib(band.low_bytes)} to {format_gib(band.high_bytes)})"
        title = node("title", f"{band.label}: {format_gib(band.expected_bytes)} GiB {span}")
        place = {"x": "0", "width": _UNITS, "y": high, "height": max(0, low - high)}
        line = node("line", x1="0", x2=_UNITS, y1=expected, y2=expected, stroke=band.colour, class_="data dashed")
        add(inner, node("rect", title, **place, fill=band.colour, class_="band"), line)
    for each in plot.lines:
        add(inner, *_line(each, plot))
    add(svg, inner)
    if plot.limit_bytes is not None and plot.limit_bytes <= plot.top_bytes:
        title = node("title", f"size of the GPU: {format_gib(plot.limit_bytes)} GiB")
        add(svg, _across_line(plot.down(plot.limit_bytes), title, class_="limit"))
    add(svg, *(node("text", label, x="4", y=y - 3, class_="halo") for y, label in ticks[1:]))
    _add_moments(svg, plot)
    return svg


_EDGE_SHARE = 3.0


def _add_times(svg: Element, plot: TimePlot) -> None:
    for at, (moment, label) in enumerate(time_ticks(plot.begin, plot.end)):
        share = plot.across(moment)
        x = _percent(share)
        add(svg, node("line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4, class_="tick"))
        anchor = "start" if share < _EDGE_SHARE else "end" if share > 100 - _EDGE_SHARE else "middle"
        classes = "tick-label" if at % 2 == 0 else "tick-label wide"
        add(svg, node("text", label, x=x, y=_HEIGHT - 6, text_anchor=anchor, class_=classes))
    add(svg, _across_line(_BOTTOM, class_="axis"))


def _line(line: Line, plot: TimePlot) -> list[Element]:
    strokes, fills = [], []
    for stretch in line.stretches:
        corners = [(round(plot.across(time) * _UNITS / 100), plot.level(size)) for time, size in outline(stretch)]
        if len(corners) == 1:  # a single reading is a point
            corners.append(corners[0])
        path = " ".join(f"{x},{y}" for x, y in corners)
        strokes.append(f"M{path}")
        fills.append(f"M{corners[0][0]},{_UNITS} {path} {corners[-1][0]},{_UNITS}Z")
    if not strokes:
        return []
    highest = max(interval.high_bytes for stretch in line.stretches for interval in stretch)
    title = node("title", f"{line.label}: at most {highest / GIB:.2f} GiB")
    stroke = node("path", title, d="".join(strokes), stroke=line.colour, class_=f"data {line.style}")
    is_area = line.style == "area"
    return [node("path", d="".join(fills), fill=line.colour, class_="fill"), stroke] if is_area else [stroke]


_MIN_LABEL_SHARE = 2.5
"""Numbers of events are drawn at least this many percent of the width apart."""


def _add_moments(svg: Element, plot: TimePlot) -> None:
    lettered = -100.0
    for moment in plot.moments:
        share = plot.across(moment.time)
        if moment.end is not None or not 0 <= share <= 100:
            continue
        x = _percent(share)
        title = f"{clock_text(moment.time)} {moment.text}"
        line = node("line", x1=x, x2=x, y1="2", y2=_BOTTOM, stroke=moment.colour, class_="moment")
        group = node("g", node("title", title), line)
        if share - lettered >= _MIN_LABEL_SHARE:
            lettered = share
            anchor, shift = ("end", -3) if share > 100 - _EDGE_SHARE else ("start", 3)
            place = {"x": x, "dx": shift, "y": "11", "text_anchor": anchor}
            add(group, node("text", str(moment.number), **place, class_="halo strong"))
        add(svg, group)


def _across_line(y: float, *children: Element, class_: str) -> Element:
    return node("line", *children, x1="0", x2="100%", y1=y, y2=y, class_=class_)


def _percent(share: float) -> str:
    return f"{share:.3f}".rstrip("0").rstrip(".") + "%"


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


def memory_ticks(top_bytes: int) -> list[tuple[int, str]]:
    """Return about five round sizes below the end of a scale, each with its label."""
    unit, word = (GIB, "GiB") if top_bytes >= 2 * GIB else (MIB, "MiB")
    whole = max(top_bytes / unit, 1e-9)
    rough = whole / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    return [(round(at * step * unit), f"{at * step:g} {word}") for at in range(math.floor(whole / step * 1.001) + 1)]


_SECONDS = (
    *_STEPS,
    *(60 * step for step in _STEPS),
    *(3600 * step for step in (1, 2, 3, 6, 12)),
    *(86_400 * step for step in (1, 2, 7, 14, 28, 91, 364)),
)
"""Round steps of time."""
_TIME_TICKS = 8


def time_ticks(begin: float, end: float) -> list[tuple[float, str]]:
    """Return about eight round clock times, each with its label: ``14:05``, ``14:05:30``, ``11-22``.

    Args:
        begin: Unix seconds.
        end: Unix seconds.
    """
    span = max(end - begin, 1.0)
    step = next((each for each in _SECONDS if span / each <= _TIME_TICKS), span / _TIME_TICKS)
    offset = clock.localtime(begin).tm_gmtoff or 0
    first = math.ceil((begin + offset) / step) * step - offset
    pattern = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%m-%d"
    times = (first + at * step for at in range(math.floor((end - first) / step) + 1))
    return [(at, clock.strftime(pattern, clock.localtime(at))) for at in times]


def clock_text(seconds: float, *, date: bool = False) -> str:
    """Return a moment as a local time, with its date if asked for."""
    return clock.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", clock.localtime(seconds))
