"""The report on measured runs: what was predicted of each beside what was seen, and how far apart they are."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from vramtop.estimator.common import format_gib

from ..draw import COMPONENTS, colour_of
from .markup import add, node, table
from .page import page, section
from .plots import Bar, BarPlot, Segment
from .scale import clock_text, zone_text
from .svg import bar_plot, legend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from xml.etree.ElementTree import Element

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.learning import Measurement, Predicted

MAX_BARS = 60
"""Runs with bars, the newest; the table has all."""
_SOURCES = {
    "readings": "readings of NVML",
    "accounting": "the driver",
    "probe": "the probe",
    "measure": "vramtop measure",
}
_STATES = {"out_of_memory": "OUT OF MEMORY", "growing": "GROWING"}
_SHOWN_RUN_DIGITS = 8
_OFF_SHARE = 0.1
"""Errors beyond this share of the prediction stand out."""


def history_page(
    found: Sequence[Measurement], name: str, *, corrected: Mapping[str, Budget], made_by: str, now: float | None = None
) -> str:
    """Return the report as HTML.

    Args:
        found: the measured runs, the newest first.
        name: of their file.
        corrected: for a run the estimate of its job, corrected by the other runs; runs without one are left out.
        made_by: the program and its version.
        now: Unix seconds at which it is written; None: now.
    """
    plot = history_plot(found)
    bars = section("Predicted beside seen", name="bars")
    if plot.bars:
        add(bars, legend(plot.legend), node("figure", bar_plot(plot)))
    if len(found) > MAX_BARS:
        add(bars, node("p", f"The newest {MAX_BARS} of {len(found)} runs; the table has all.", class_="note"))
    sections = [_overview(found), bars if plot.bars else None, _table(found), _corrections(found, corrected)]
    times = [each.time for each in found]
    subtitle = (
        f"{clock_text(min(times), date=True)} to {clock_text(max(times), date=True)} ({zone_text(max(times))})"
        if times
        else "no run has been measured yet"
    )
    shown = [each for each in sections if each is not None]
    return page(f"Measured runs: {name}", subtitle, shown, made_by=made_by, now=now)


def history_plot(found: Sequence[Measurement]) -> BarPlot:
    """Return the newest runs as pairs of bars: the predicted components with their range, and what was seen."""
    bars: list[Bar] = []
    for each in found[:MAX_BARS]:
        predicted, seen = last_prediction(each), each.observed.device_bytes
        if predicted is None or seen is None:
            continue
        span = predicted.device_range
        slack = max(0, predicted.device_bytes - predicted.components.total_bytes)
        figure = (
            f"predicted {format_gib(predicted.device_bytes)} GiB ({format_gib(span.low_bytes)} to "
            f"{format_gib(span.high_bytes)})"
        )
        parts = [
            Segment(label=COMPONENTS[name].word, colour=COMPONENTS[name].colour, bytes=size)
            for name, size in predicted.components.items()
        ]
        parts.append(Segment(label="allocator slack", colour=colour_of("neutral"), bytes=slack))
        bars.append(
            Bar(
                label=f"{each.run[:_SHOWN_RUN_DIGITS]} {_job_words(each)}",
                segments=tuple(parts),
                figure=figure,
                low_bytes=span.low_bytes,
                high_bytes=span.high_bytes,
            )
        )
        outside = not span.low_bytes <= seen <= span.high_bytes
        word = "seen, outside of the range" if outside else "seen"
        segment = Segment(label=word, colour=colour_of("bad") if outside else colour_of("no_budget"), bytes=seen)
        text = f"{format_gib(seen)} GiB ({_error(predicted.device_bytes, seen)})"
        bars.append(Bar(label="seen", segments=(segment,), figure=text))
    title = "Measured runs: predicted components, and what was seen"
    return BarPlot(name="measured-runs", title=title, summary=f"{len(bars) // 2} measured runs.", bars=tuple(bars))


def last_prediction(measurement: Measurement) -> Predicted | None:
    """Return the prediction of the method that was used last."""
    return measurement.predicted[-1] if measurement.predicted else None


def _overview(found: Sequence[Measurement]) -> Element:
    pairs = [(each, last_prediction(each)) for each in found if each.is_complete]
    known = [(p, each.observed.device_bytes) for each, p in pairs if p is not None and each.observed.device_bytes]
    lines = [f"{len(found)} measured run{'' if len(found) == 1 else 's'}, {len(known)} of them complete and predicted"]
    if known:
        errors = [abs(seen - p.device_bytes) / p.device_bytes for p, seen in known]
        within = sum(p.device_range.low_bytes <= seen <= p.device_range.high_bytes for p, seen in known)
        lines.append(f"median error of the prediction, before any correction: {100 * median(errors):.1f} %")
        lines.append(f"seen within the predicted range: {within} of {len(known)}")
    return section("Overview", node("ul", *(node("li", line) for line in lines), class_="lines"), name="overview")


def _table(found: Sequence[Measurement]) -> Element:
    heads = ("RUN", "LAST SEEN", "STATE", "JOB", "CARD", "METHOD", "PREDICTED GiB", "RANGE", "SEEN GiB", "ERROR", "BY")
    rows: list[tuple[Element | str, ...]] = []
    for each in found:
        predicted, seen = last_prediction(each), each.observed.device_bytes
        span = predicted.device_range if predicted else None
        off = bool(predicted and seen and abs(seen - predicted.device_bytes) > _OFF_SHARE * predicted.device_bytes)
        error = node(
            "span", _error(predicted.device_bytes if predicted else None, seen), class_="sign warning" if off else None
        )
        rows.append(
            (
                node("code", each.run[:_SHOWN_RUN_DIGITS]),
                node("span", clock_text(each.time, date=True), class_="nowrap"),
                _STATES.get(each.state, each.state),
                node("span", _job_words(each), class_="words"),
                node("span", (each.card or "n/a").removeprefix("NVIDIA "), class_="nowrap"),
                predicted.method if predicted else "n/a",
                format_gib(predicted.device_bytes) if predicted else "n/a",
                f"{format_gib(span.low_bytes)} to {format_gib(span.high_bytes)}" if span else "n/a",
                format_gib(seen),
                error,
                node("span", _SOURCES.get(each.observed.device_source or "", "n/a"), class_="nowrap"),
            )
        )
    return section("Runs", table(heads, rows, numbers=(6, 7, 8, 9)), name="runs")


def _corrections(found: Sequence[Measurement], corrected: Mapping[str, Budget]) -> Element | None:
    rows: list[tuple[Element | str, ...]] = []
    for each in found:
        budget, seen = corrected.get(each.run), each.observed.device_bytes
        if budget is None or budget.learned is None:
            continue
        before, after = budget.learned.uncorrected.device_bytes, budget.peak.device_bytes
        rows.append(
            (
                node("code", each.run[:_SHOWN_RUN_DIGITS]),
                node("span", _job_words(each), class_="words"),
                format_gib(before),
                format_gib(after),
                format_gib(seen),
                _error(before, seen),
                _error(after, seen),
                node("span", budget.learned.sentence, class_="words"),
            )
        )
    if not rows:
        return None
    sentence = (
        "The closed form's estimate of each run, corrected by the other runs on the same card: what it would be today."
    )
    heads = ("RUN", "JOB", "ESTIMATE GiB", "CORRECTED", "SEEN", "ERROR", "CORRECTED", "WHY")
    table_of_runs = table(heads, rows, numbers=(2, 3, 4, 5, 6))
    return section("Correction", node("p", sentence, class_="note"), table_of_runs, name="correction")


def _job_words(measurement: Measurement) -> str:
    training, parallel = measurement.job.training, measurement.job.parallel
    words = [measurement.model, f"{training.micro_batch} x {training.sequence_length}", str(training.precision)]
    if parallel.world_size > 1:
        words.append(f"{parallel.strategy} on {parallel.world_size}")
    return ", ".join(words)


def _error(expected: int | None, seen: int | None) -> str:
    """Return how far from the prediction a run was: positive if it held more."""
    return "n/a" if not expected or seen is None else f"{100 * (seen - expected) / expected:+.1f} %"
