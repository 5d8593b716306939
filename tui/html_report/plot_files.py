"""Plots as PNG or SVG files, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.common.sizes import GIB

from ..draw.text_output import printable
from .page import BarPlot, TimePlot, outline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .page import Plot

PlotFormat = Literal["png", "svg"]
_INCHES = 9.0
_DOTS_PER_INCH = 150
_WIDTHS = {"area": 1.4, "line": 1.4, "thin": 0.7, "dashed": 1.2}
_MIN_NUMBER_SHARE = 0.015
"""Numbers of events are drawn at least this share of the width apart."""
_MAX_LEGEND = 9


def require_matplotlib() -> None:
    """Check that plots can be drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InputError(
            "--plots needs matplotlib, which is not installed: pip install 'vramtop-budget[report]'; the HTML file "
            "itself has its plots without it"
        ) from None


def save_plots(plots: Sequence[Plot], folder: Path, kind: PlotFormat, *, overwrite: bool = False) -> list[Path]:
    """Write each plot to a file of its own; returns the files.

    Args:
        plots: the plots.
        folder: made if it does not exist.
        kind: format of the files, and their ending.
        overwrite: replace existing files.

    Raises:
        InputError: a file exists, or cannot be written.
    """
    paths = [folder / f"{plot.name}.{kind}" for plot in plots]
    existing = next((path for path in paths if path.exists()), None)
    if existing is not None and not overwrite:
        raise InputError(f"--plots {folder}: {existing.name} already exists there; give another folder, or --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot, path in zip(plots, paths, strict=True):
            _save(plot, path, kind)
    except OSError as error:
        raise InputError(f"--plots {folder}: cannot be written: {error.strerror or error}") from None
    return paths


def _save(plot: Plot, path: Path, kind: PlotFormat) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # without pyplot: no window, and nothing is kept

    settings = {"svg.hashsalt": "vramtop", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(settings):
        figure = Figure(figsize=(_INCHES, _height(plot)), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(_text(plot.title), loc="left", fontsize="medium", fontweight="bold", pad=14)
        if isinstance(plot, TimePlot):
            _draw_times(axes, plot)
        else:
            _draw_bars(axes, plot)
        metadata = {"Software": "vramtop"} if kind == "png" else {"Creator": "vramtop", "Date": None}
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata, facecolor="white")
        write_private(path, data.getvalue())


def _height(plot: Plot) -> float:
    return 3.4 if isinstance(plot, TimePlot) else 1.4 + 0.42 * len(plot.bars)


def _draw_times(axes: Any, plot: TimePlot) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    zone = datetime.now().astimezone().tzinfo

    def moment(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, zone)

    for gap in plot.gaps:
        axes.axvspan(moment(gap.begin), moment(gap.end), color="#9aa0ad", alpha=0.3, linewidth=0)
    if plot.band is not None:
        band = plot.band
        axes.axhspan(band.low_bytes / GIB, band.high_bytes / GIB, color=band.colour, alpha=0.18, linewidth=0)
        axes.axhline(
            band.expected_bytes / GIB, color=band.colour, linestyle="--", linewidth=1.2, label=_text(band.label)
        )
    for line in plot.lines:
        for at, stretch in enumerate(line.stretches):
            corners = outline(stretch)
            times, sizes = [moment(time) for time, _ in corners], [size / GIB for _, size in corners]
            axes.plot(
                times,
                sizes,
                color=line.colour,
                linewidth=_WIDTHS[line.style],
                linestyle="--" if line.style == "dashed" else "-",
                marker="." if len(corners) == 1 else None,
                label=None if at else _text(line.label),
            )
            if line.style == "area":
                axes.fill_between(times, sizes, color=line.colour, alpha=0.22, linewidth=0)
    if plot.limit_bytes is not None:
        axes.axhline(plot.limit_bytes / GIB, color="#16181d", linestyle=":", linewidth=1.2, label="size of the GPU")
    numbered: float | None = None
    for event in plot.moments:
        at_time = moment(event.time)
        axes.axvline(at_time, color=event.colour, linewidth=1)
        if numbered is not None and event.time - numbered < _MIN_NUMBER_SHARE * (plot.end - plot.begin):
            continue
        numbered = event.time
        axes.annotate(str(event.number), (at_time, 1), xycoords=("data", "axes fraction"), fontsize=7, ha="left")
    axes.set_ylim(0, plot.top_bytes / GIB)
    axes.set_xlim(moment(plot.begin), moment(max(plot.end, plot.begin + 1)))
    axes.set_ylabel("GiB")
    locator = AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
    axes.grid(visible=True, axis="y", linewidth=0.4)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        shown = slice(0, _MAX_LEGEND)
        axes.legend(handles[shown], labels[shown], fontsize="x-small", loc="lower right", framealpha=0.85)


def _draw_bars(axes: Any, plot: BarPlot) -> None:
    places = range(len(plot.bars))
    named: set[str] = set()
    for place, bar in zip(places, plot.bars, strict=True):
        at = 0.0
        for part in bar.segments:
            if not part.bytes:
                continue
            label = None if part.label in named else _text(part.label)
            named.add(part.label)
            axes.barh(place, part.bytes / GIB, left=at, height=0.62, color=part.colour, label=label)
            at += part.bytes / GIB
        if bar.low_bytes is not None and bar.high_bytes is not None:
            middle = (bar.low_bytes + bar.high_bytes) / 2 / GIB
            half = (bar.high_bytes - bar.low_bytes) / 2 / GIB
            axes.errorbar(middle, place, xerr=half, fmt="none", ecolor="#16181d", capsize=5, linewidth=1.4)
        axes.annotate(f" {_text(bar.figure)}", (plot.top_bytes / GIB, place), va="center", fontsize="x-small")
    axes.set_yticks(places, [_text(bar.label) for bar in plot.bars], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, plot.top_bytes / GIB * 1.32)  # with room for the figures
    axes.set_xlabel("GiB")
    axes.grid(visible=True, axis="x", linewidth=0.4)
    axes.set_axisbelow(True)
    if named:
        axes.legend(fontsize="x-small", ncols=5, loc="upper center", bbox_to_anchor=(0.45, -0.18), frameon=False)


def _text(text: str) -> str:
    """Return a text that matplotlib does not take for mathematics, and that is one line."""
    return printable(text).replace("$", r"\$")
