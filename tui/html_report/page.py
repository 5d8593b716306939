"""The page: one HTML file with everything in it, which asks no server for anything and runs no script.

Its Content-Security-Policy forbids both: only the one style sheet, named by its digest, is allowed.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.etree.ElementTree import Element, tostring

import msgspec

from vramtop.estimator.common.sizes import GIB, MIB, format_gib

from ..draw.palette import COMPONENTS, Mark, colour_of, ink_on
from ..draw.text_output import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vramtop.estimator.budget import ComponentName, Components
    from vramtop.monitor.sources.recorded import Stretch

# HTML elements, made by the standard library's ElementTree, which escapes whatever a recording contains.


Node = Element | str


def node(tag: str, *children: Node | None, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: its name.
        *children: elements and texts, in order; None is left out.
        **attributes: ``class_`` is ``class``, an underscore is a hyphen (``stroke_width``), one that is None is left
            out. Names with capitals, such as ``viewBox``, are kept.
    """
    found = Element(tag, {_name(key): _value(value) for key, value in attributes.items() if value is not None})
    add(found, *children)
    return found


def add(parent: Element, *children: Node | None) -> None:
    """Append elements and texts to an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + _plain(child)
        else:
            parent.text = (parent.text or "") + _plain(child)


def table(heads: tuple[str, ...], rows: list[tuple[Node, ...]], *, numbers: tuple[int, ...] = ()) -> Element:
    """Return a table that scrolls sideways where it is too wide.

    Args:
        heads: of its columns.
        rows: of its cells.
        numbers: columns of figures, which are aligned at the right.
    """

    def cells(tag: str, row: tuple[Node, ...]) -> list[Element]:
        return [node(tag, cell, class_="number" if at in numbers else None) for at, cell in enumerate(row)]

    head = node("thead", node("tr", *cells("th", heads)))
    body = node("tbody", *(node("tr", *cells("td", row)) for row in rows))
    return node("div", node("table", head, body), class_="scrolls", tabindex="0")


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _plain(text: str) -> str:
    """Return a text without control characters and secrets; it keeps its lines."""
    return "\n".join(printable(line) for line in text.split("\n")) if "\n" in text else printable(text)


def page(title: str, subtitle: str, sections: Sequence[Element], *, made_by: str, now: float | None = None) -> str:
    """Return a whole page.

    Args:
        title: heading and title of the page.
        subtitle: what it is about, in a sentence.
        sections: its content.
        made_by: the program and its version.
        now: Unix seconds at which it is written; None: now.
    """
    style = _style_sheet("page.css") + _style_sheet("plots.css")
    written = clock.strftime("%Y-%m-%d %H:%M", clock.localtime(now))
    body = node(
        "body",
        node("header", node("h1", title), node("p", subtitle, class_="subtitle")),
        node("main", *sections),
        node("footer", node("p", f"Written by {made_by}, {written}. This file loads nothing and runs no script.")),
    )
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_policy(style)),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", f"{title} - vramtop report"),
    )
    markup = tostring(node("html", head, body, lang="en"), encoding="unicode", method="html")
    return "<!DOCTYPE html>\n" + markup.replace("</head>", f"<style>{style}</style></head>", 1) + "\n"


def section(heading: str, *children: Element | str | None, name: str) -> Element:
    """Return a part of the page with a heading.

    Args:
        heading: its heading.
        *children: its content; None is left out.
        name: by which links find it.
    """
    return node("section", node("h2", heading, id=name), *children)


def _style_sheet(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


# Plots as plain data, drawn as SVG into the page.


LineStyle = Literal["area", "line", "thin", "dashed"]


class Line(msgspec.Struct, frozen=True):
    """Memory over time."""

    label: str
    colour: str
    stretches: tuple[Stretch, ...]
    """Between them are gaps, over which nothing is drawn."""
    style: LineStyle = "line"


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """A range of memory over the whole time, such as that of a budget."""

    label: str
    colour: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int


class Moment(msgspec.Struct, frozen=True):
    """A moment at which something happened."""

    time: float
    """Unix seconds."""
    number: int
    """Its number in the table of events."""
    colour: str
    text: str


class Gap(msgspec.Struct, frozen=True):
    """A time without readings."""

    begin: float
    end: float
    text: str


class TimePlot(msgspec.Struct, frozen=True, kw_only=True):
    """Memory over time."""

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


class Segment(msgspec.Struct, frozen=True):
    """A part of a bar."""

    label: str
    colour: str
    bytes: int


class Bar(msgspec.Struct, frozen=True):
    """One bar of stacked parts."""

    label: str
    segments: tuple[Segment, ...]
    figure: str
    """What stands at its end: ``67.2 GiB (62.0 to 70.1)``."""
    low_bytes: int | None = None
    """Lower end of its range; None: it has none."""
    high_bytes: int | None = None


class BarPlot(msgspec.Struct, frozen=True, kw_only=True):
    """Bars on one scale, one below the other."""

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


# Scales of plots: round steps of memory and of time.


_STEPS = (1, 2, 5, 10, 15, 30)
_SECONDS = (
    *_STEPS,
    *(60 * step for step in _STEPS),
    *(3600 * step for step in (1, 2, 3, 6, 12)),
    *(86_400 * step for step in (1, 2, 7, 14, 28, 91, 364)),
)


_TIME_TICKS = 8


def memory_ticks(top_bytes: int) -> list[tuple[int, str]]:
    """Return about five round sizes below the end of a scale, each with its label."""
    unit, word = (GIB, "GiB") if top_bytes >= 2 * GIB else (MIB, "MiB")
    whole = max(top_bytes / unit, 1e-9)
    rough = whole / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    return [(round(at * step * unit), f"{at * step:g} {word}") for at in range(math.floor(whole / step * 1.001) + 1)]


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


def zone_text(seconds: float) -> str:
    """Return the time zone in which clock times are stated: ``CET, UTC+01:00``."""
    moment = clock.localtime(seconds)
    offset = moment.tm_gmtoff or 0
    sign, minutes = ("-" if offset < 0 else "+"), abs(offset) // 60
    shift = f"UTC{sign}{minutes // 60:02}:{minutes % 60:02}"
    return shift if moment.tm_zone in (None, "UTC") or not moment.tm_zone.isalpha() else f"{moment.tm_zone}, {shift}"


# Plots as inline SVG without a script: they take the width of the page, its colours, and are sharp in print.
#
# Positions are percentages, so letters keep their size on a phone; only lines of data are stretched, in a coordinate
# system of their own. What a line is, and its peak, is in its title, which browsers show under the pointer.


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


def legend(entries: dict[str, str], extra: Sequence[tuple[str, str, str]] = ()) -> Element:
    """Return a legend.

    Args:
        entries: labels, each with the colour of its square.
        extra: (label, colour, style) of lines.
    """
    found = node("ul", class_="legend")
    samples = [(label, 12, node("rect", width="12", height="12", fill=colour)) for label, colour in entries.items()]
    for label, colour, style in extra:
        line = node("line", x1="0", x2="18", y1="6", y2="6", stroke=colour, class_=f"data {style}")
        samples.append((label, 18, line))
    for label, width, sample in samples:
        add(found, node("li", node("svg", sample, width=width, height="12", aria_hidden="true"), " ", label))
    return found


def _bar(bar: Bar, top: int) -> Element:
    height = _RANGE_AT + 5 if bar.low_bytes is not None else _BAR_HEIGHT
    svg = node("svg", width="100%", height=height, class_="bar", aria_hidden="true")
    at = 0
    for part in bar.segments:
        if not part.bytes:
            continue
        width, begin = 100 * part.bytes / top, 100 * at / top
        title = node("title", f"{part.label}: {format_gib(part.bytes, digits=2)} GiB")
        place = {"x": _percent(begin), "width": _percent(width), "y": "0", "height": _BAR_HEIGHT}
        add(svg, node("rect", title, **place, fill=part.colour))
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
    span = f"({format_gib(band.low_bytes)} to {format_gib(band.high_bytes)})"
    title = node("title", f"{band.label}: {format_gib(band.expected_bytes)} GiB {span}")
    place = {"x": "0", "width": _UNITS, "y": high, "height": max(0, low - high)}
    line = node("line", x1="0", x2=_UNITS, y1=expected, y2=expected, stroke=band.colour, class_="data dashed")
    add(inner, node("rect", title, **place, fill=band.colour, class_="band"), line)


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
            anchor, shift = ("end", -3) if share > 100 - _EDGE_SHARE else ("start", 3)
            place = {"x": x, "dx": shift, "y": "11", "text_anchor": anchor}
            add(group, node("text", str(moment.number), **place, class_="halo strong"))
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


def component_parts(components: Components, marks: Mapping[ComponentName, Mark] = COMPONENTS) -> tuple[Segment, ...]:
    """Return the components as parts of a bar."""
    return tuple(Segment(marks[name].word, marks[name].colour, size) for name, size in components.items())


def slack_part(size: int) -> Segment:
    """Return what the allocator keeps beyond the components."""
    return Segment("allocator slack", colour_of("neutral"), max(0, size))
