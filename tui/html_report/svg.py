"""Plots as inline SVG without a script: they take the width of the page, its colours, and are sharp in print.

Positions are percentages, so letters keep their size on a phone; only lines of data are stretched, in a coordinate
system of their own. What a line is, and its peak, is in its title, which browsers show under the pointer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common import GIB, format_gib

from ..draw import ink_on
from .markup import add, node
from .plots import Bar, BarPlot, Line, TimePlot, outline
from .scale import clock_text, memory_ticks, time_ticks

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_UNITS = 10_000
"""Width and height of the coordinate system of data."""
_TOP = 16
"""Height of the numbers of events above the plot."""
_PLOT_HEIGHT = 210
_BOTTOM = _TOP + _PLOT_HEIGHT
_HEIGHT = _BOTTOM + 22
"""With the labels of the time axis below it."""
_MIN_LABEL_SHARE = 2.5
"""Numbers of events are drawn at least this many percent of the width apart."""
_BAR_HEIGHT = 22
_RANGE_AT = _BAR_HEIGHT + 5
"""Distance of the line of a range from the top of its bar."""
_MIN_LETTERED_SHARE = 7.0
"""A part of a bar that is at least this many percent wide has its figure on it."""
_EDGE_SHARE = 3.0


def time_plot(plot: TimePlot) -> Element:
    """Return memory over time as SVG."""
    svg = node("svg", class_="plot", role="img", aria_label=plot.summary, height=_HEIGHT, width="100%")
    _add_gaps(svg, plot)
    for size, _ in memory_ticks(plot.top_bytes):
        y = _down(size, plot)
        add(svg, node("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    _add_times(svg, plot)
    inner = node(
        "svg", viewBox=f"0 0 {_UNITS} {_UNITS}", preserveAspectRatio="none", y=_TOP, width="100%", height=_PLOT_HEIGHT
    )
    _add_band(inner, plot)
    for line in plot.lines:
        add(inner, *_line(line, plot))
    add(svg, inner)
    if plot.limit_bytes is not None and plot.limit_bytes <= plot.top_bytes:
        y = _down(plot.limit_bytes, plot)
        title = node("title", f"size of the GPU: {format_gib(plot.limit_bytes)} GiB")
        add(svg, node("line", title, x1="0", x2="100%", y1=y, y2=y, class_="limit"))
    for size, label in memory_ticks(plot.top_bytes):
        if size:
            add(svg, node("text", label, x="4", y=_down(size, plot) - 3, class_="halo"))
    _add_moments(svg, plot)
    return svg


def bar_plot(plot: BarPlot) -> Element:
    """Return stacked bars, each below its label."""
    figure = node("div", class_="bars", role="img", aria_label=plot.summary)
    top = plot.top_bytes
    for bar in plot.bars:
        label = node("span", bar.label, class_="bar-label")
        add(figure, node("div", label, node("span", bar.figure, class_="bar-figure"), class_="bar-head"))
        add(figure, _bar(bar, top))
    return figure


def legend(entries: dict[str, str], extra: tuple[tuple[str, str, str], ...] = ()) -> Element:
    """Return a legend.

    Args:
        entries: labels, each with the colour of its square.
        extra: (label, colour, style) of lines.
    """
    found = node("ul", class_="legend")
    for label, colour in entries.items():
        square = node("rect", width="12", height="12", fill=colour)
        add(found, node("li", node("svg", square, width="12", height="12", aria_hidden="true"), " ", label))
    for label, colour, style in extra:
        line = node("line", x1="0", x2="18", y1="6", y2="6", stroke=colour, class_=f"data {style}")
        add(found, node("li", node("svg", line, width="18", height="12", aria_hidden="true"), " ", label))
    return found


def _bar(bar: Bar, top: int) -> Element:
    height = _RANGE_AT + 5 if bar.low_bytes is not None else _BAR_HEIGHT
    svg = node("svg", width="100%", height=height, class_="bar", aria_hidden="true")
    at = 0
    for part in bar.segments:
        if not part.bytes:
            continue
        width = 100 * part.bytes / top
        text = f"{part.label}: {format_gib(part.bytes, digits=2)} GiB"
        begin = 100 * at / top
        add(
            svg,
            node(
                "rect",
                node("title", text),
                x=_percent(begin),
                width=_percent(width),
                y="0",
                height=_BAR_HEIGHT,
                fill=part.colour,
            ),
        )
        if width >= _MIN_LETTERED_SHARE:
            middle = _percent(begin + width / 2)
            letters = format_gib(part.bytes)
            add(svg, node("text", letters, x=middle, y="15", fill=ink_on(part.colour), class_="on-bar"))
        at += part.bytes
    if bar.low_bytes is not None and bar.high_bytes is not None:
        low, high = (_percent(100 * size / top) for size in (bar.low_bytes, bar.high_bytes))
        add(svg, node("line", x1=low, x2=high, y1=_RANGE_AT, y2=_RANGE_AT, class_="range"))
        add(svg, *(node("line", x1=x, x2=x, y1=_RANGE_AT - 4, y2=_RANGE_AT + 4, class_="range") for x in (low, high)))
    return svg


def _add_gaps(svg: Element, plot: TimePlot) -> None:
    for gap in plot.gaps:
        begin, end = _across(gap.begin, plot), _across(gap.end, plot)
        title = node("title", gap.text)
        width = _percent(max(0.15, end - begin))
        add(svg, node("rect", title, x=_percent(begin), width=width, y=_TOP, height=_PLOT_HEIGHT, class_="gap"))


def _add_times(svg: Element, plot: TimePlot) -> None:
    for at, (moment, label) in enumerate(time_ticks(plot.begin, plot.end)):
        share = _across(moment, plot)
        x = _percent(share)
        add(svg, node("line", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4, class_="tick"))
        anchor = "start" if share < _EDGE_SHARE else "end" if share > 100 - _EDGE_SHARE else "middle"
        classes = "tick-label" if at % 2 == 0 else "tick-label wide"
        add(svg, node("text", label, x=x, y=_HEIGHT - 6, text_anchor=anchor, class_=classes))
    add(svg, node("line", x1="0", x2="100%", y1=_BOTTOM, y2=_BOTTOM, class_="axis"))


def _add_band(inner: Element, plot: TimePlot) -> None:
    band = plot.band
    if band is None:
        return
    high, low = _level(band.high_bytes, plot), _level(band.low_bytes, plot)
    expected = _level(band.expected_bytes, plot)
    title = (
        f"{band.label}: {format_gib(band.expected_bytes)} GiB "
        f"({format_gib(band.low_bytes)} to {format_gib(band.high_bytes)})"
    )
    add(
        inner,
        node(
            "rect",
            node("title", title),
            x="0",
            width=_UNITS,
            y=high,
            height=max(0, low - high),
            fill=band.colour,
            class_="band",
        ),
        node("line", x1="0", x2=_UNITS, y1=expected, y2=expected, stroke=band.colour, class_="data dashed"),
    )


def _line(line: Line, plot: TimePlot) -> list[Element]:
    strokes, fills = [], []
    for stretch in line.stretches:
        corners = [(_unit(time, plot), _level(size, plot)) for time, size in outline(stretch)]
        if len(corners) == 1:  # a single reading is a point
            corners.append(corners[0])
        path = " ".join(f"{x},{y}" for x, y in corners)
        strokes.append(f"M{path}")
        fills.append(f"M{corners[0][0]},{_UNITS} {path} {corners[-1][0]},{_UNITS}Z")
    if not strokes:
        return []
    found = []
    if line.style == "area":
        found.append(node("path", d="".join(fills), fill=line.colour, class_="fill"))
    highest = max(interval.high_bytes for stretch in line.stretches for interval in stretch)
    title = node("title", f"{line.label}: at most {highest / GIB:.2f} GiB")
    found.append(node("path", title, d="".join(strokes), stroke=line.colour, class_=f"data {line.style}"))
    return found


def _add_moments(svg: Element, plot: TimePlot) -> None:
    lettered = -100.0
    for moment in plot.moments:
        share = _across(moment.time, plot)
        if not 0 <= share <= 100:
            continue
        x = _percent(share)
        title = f"{clock_text(moment.time)} {moment.text}"
        line = node("line", x1=x, x2=x, y1="2", y2=_BOTTOM, stroke=moment.colour, class_="moment")
        group = node("g", node("title", title), line)
        if share - lettered >= _MIN_LABEL_SHARE:
            lettered = share
            anchor = "end" if share > 100 - _EDGE_SHARE else "start"
            shift = -3 if anchor == "end" else 3
            add(
                group, node("text", str(moment.number), x=x, dx=shift, y="11", text_anchor=anchor, class_="halo strong")
            )
        add(svg, group)


def _across(time: float, plot: TimePlot) -> float:
    """Return a time as percent of the width."""
    return 100 * (time - plot.begin) / max(plot.end - plot.begin, 1e-9)


def _unit(time: float, plot: TimePlot) -> int:
    return round(_across(time, plot) / 100 * _UNITS)


def _down(size: int, plot: TimePlot) -> float:
    """Return the distance of a size from the top, in pixels."""
    return round(_TOP + _PLOT_HEIGHT * (1 - size / plot.top_bytes), 1)


def _level(size: int, plot: TimePlot) -> int:
    return round(_UNITS * (1 - min(size, plot.top_bytes) / plot.top_bytes))


def _percent(share: float) -> str:
    return f"{share:.3f}".rstrip("0").rstrip(".") + "%"
