"""One process of a run as text and bars: held memory, budget, torch's counters, and status."""

import time
from collections.abc import Sequence

from textual.content import Content

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import format_gib
from vramtop.monitor.board import ProcessRow
from vramtop.monitor.probe.probe_reader import STALE_SECONDS

from ...draw import (
    COMPONENTS,
    MUTED,
    PHASES,
    STATUSES,
    BarSegment,
    Readings,
    badge,
    bar_content,
    beyond_budget_bytes,
    colour_of,
    difference_label,
    draw_bar,
    format_duration,
    held_colour,
    high_water_label,
    printable,
    run_moments,
    signed_gib,
    split_beyond,
)
from ...keys import shown_key
from ...widgets import budget_bar, model_lines, peak_line, phase_table, remark_lines, short_gpu_name
from ..step import GPU_TOTAL
from .run_graph_rows import BOUND, EXPECTED, LevelLine, RunGraphData, graph_top_bytes

_LABEL_WIDTH, _FIGURES_WIDTH = 10, 28
_CACHED = "▒"


def run_graph_data(row: ProcessRow, history: Readings, *, span_seconds: float, now: float) -> RunGraphData:
    """Return the graph of the process's memory over time in front of its budget."""
    budget, total = row.budget, row.gpu.total_bytes
    most = max((size for _, size in history if size is not None), default=None)
    top = graph_top_bytes(total, most, row.process.used_bytes, budget.peak.high_bytes if budget else None)
    lines = [LevelLine(total, GPU_TOTAL, colour_of("bad"))] if total is not None and total <= top else []
    if budget is not None:
        lines += [LevelLine(budget.peak.low_bytes, BOUND), LevelLine(budget.peak.high_bytes, BOUND)]
        lines.append(LevelLine(budget.steady_device_bytes, EXPECTED))
    is_guess = row.comparison is not None and row.comparison.status == "incomplete"
    return RunGraphData(
        history=history,
        top_bytes=top,
        span_seconds=span_seconds,
        now=now,
        layers=budget.peak.components if budget else None,
        slack_bytes=budget.peak.device_bytes - budget.peak.components.total_bytes if budget else 0,
        lines=tuple(lines),
        marks=run_moments(row),
        high_bytes=budget.peak.high_bytes if budget is not None and not is_guess else None,
        colour=held_colour(row),
    )


def legend_content(row: ProcessRow, graph: RunGraphData, span_label: str) -> Content:
    """Return the legend: GPU and time span, and lines."""
    words = [f"GiB on GPU {row.gpu.label}, {short_gpu_name(row.gpu.name)}; {span_label}"]
    if row.budget:
        words.append(f"{EXPECTED} expected  {BOUND} low and high")
    if graph.lines and graph.lines[0].char == GPU_TOTAL:
        words.append(f"{GPU_TOTAL} the GPU")
    return Content.styled("  ".join(words), MUTED)


def bars_content(row: ProcessRow, width: int, *, now: float) -> Content:
    """Return held memory and budget on one scale, torch's counters, and the status."""
    scale = _scale(row)
    cells = width - _LABEL_WIDTH - _FIGURES_WIDTH
    lines = [_held_line(row, scale, cells)]
    if row.budget is not None:
        peak = row.budget.peak
        uncertain = row.comparison is not None and row.comparison.status == "incomplete"
        drawn = bar_content(budget_bar(row.budget, scale_bytes=scale, width=cells, uncertain=uncertain))
        tail = f"│ {format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
        lines.append(Content.assemble(f"{'budget':<{_LABEL_WIDTH}}", drawn, tail))
    return Content("\n").join([*lines, *_counter_lines(row, now), _status_line(row, now)])


def nothing_content(sentence: str, budget: Budget | None, width: int) -> Content:
    """Return why a run is on no GPU, and its budget."""
    words = Content(sentence)
    if budget is None:
        return words
    parts = budget_bar(budget, scale_bytes=budget.peak.high_bytes, width=width - _LABEL_WIDTH)
    return Content("\n").join([words, Content.assemble(f"{'budget':<{_LABEL_WIDTH}}", bar_content(parts))])


def budget_content(budget: Budget) -> Content:
    """Return the budget: its peak, its phases, and its assumptions."""
    lines = [peak_line(budget), *model_lines(budget), Content(), *phase_table(budget), Content()]
    return Content("\n").join([*lines, *remark_lines(budget)])


def facts_content(row: ProcessRow) -> Content:
    """Return the facts about a process, with its full command."""
    process = row.process
    facts = [
        f"pid {process.pid}",
        process.user or "user n/a",
        f"GPU {row.gpu.label} {short_gpu_name(row.gpu.name)}",
        ", ".join(process.kinds),
        "start n/a" if process.start_time is None else f"started {_clock(process.start_time)}",
        f"up {format_duration(row.elapsed_seconds)}",
    ]
    lines = [
        Content.styled(" · ".join(facts), "bold"),
        Content(printable(process.command or process.name or "command n/a")),
    ]
    if row.job is not None:
        lines.append(Content(f"job {printable(row.job.label)}"))
    if process.note:
        lines.append(Content.styled(printable(process.note), "$text-warning"))
    return Content("\n").join(lines)


def time_words(unix_seconds: float) -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_seconds))


def _scale(row: ProcessRow) -> int:
    sizes = [row.process.used_bytes, row.budget.peak.high_bytes if row.budget else None]
    return row.gpu.total_bytes or max(size for size in (*sizes, 1) if size is not None)


def _held_line(row: ProcessRow, scale: int, cells: int) -> Content:
    used = row.process.used_bytes
    drawn = draw_bar(_held_parts(row), scale_bytes=scale, width=cells, empty=" " if used is not None else "?")
    size = f"{format_gib(used)} of {format_gib(row.gpu.total_bytes)} GiB"
    tail = f"│ {format_gib(used)} at its end" if row.ended_at is not None else f"│ {size}"
    return Content.assemble(f"{f'GPU {row.gpu.label}':<{_LABEL_WIDTH}}", bar_content(drawn), tail)


def _held_parts(row: ProcessRow) -> Sequence[BarSegment]:
    """Return what it holds: one segment, or three if torch's counters are known; then what is beyond its budget."""
    used, counters, colour = row.process.used_bytes, row.process.counters, held_colour(row)
    if used is None or counters is None or counters.allocated_bytes is None or counters.reserved_bytes is None:
        held = (f"in use {format_gib(used)}", "in use")
        parts = [BarSegment(size_bytes=used or 0, colour=colour, labels=held, min_one_cell=True)]
    else:
        context, size = COMPONENTS["context"], counters.allocated_bytes
        words = (f"allocated {format_gib(size)}", "allocated", format_gib(size))
        cached, beside = counters.reserved_bytes - size, used - counters.reserved_bytes
        parts = [
            BarSegment(size_bytes=size, colour=colour, labels=words, min_one_cell=True),
            BarSegment(size_bytes=cached, colour=colour, fill=_CACHED),
            BarSegment(size_bytes=beside, colour=context.colour, labels=(context.short_word, context.letter)),
        ]
    beyond = beyond_budget_bytes(row)
    if not beyond or row.comparison is None:
        return parts
    return split_beyond(parts, (used or 0) - beyond, signed_gib(row.comparison.difference_bytes))


def _counter_lines(row: ProcessRow, now: float) -> list[Content]:
    counters, used = row.process.counters, row.process.used_bytes
    if counters is None or counters.allocated_bytes is None or counters.reserved_bytes is None:
        return []
    allocated = f"█ {format_gib(counters.allocated_bytes)} allocated"
    if counters.allocated_peak_bytes is not None:
        allocated += f" (most {format_gib(counters.allocated_peak_bytes)}"
        allocated += f", budget {format_gib(row.budget.peak.allocated_bytes)})" if row.budget else ")"
    words = [allocated, f"{_CACHED} {format_gib(counters.reserved_bytes - counters.allocated_bytes)} cached and free"]
    if used is not None:
        context = COMPONENTS["context"].letter
        beside = format_gib(max(0, used - counters.reserved_bytes))
        expected = f" (budget {format_gib(row.budget.peak.components.context)})" if row.budget else ""
        words.append(f"{context} {beside} context and libraries{expected}")
    if counters.retries:
        words.append(f"cache flushed {counters.retries} times")
    if now - counters.time > STALE_SECONDS:
        words.append(f"as of {format_duration(now - counters.time)} ago")
    return [Content.assemble(f"{'torch':<{_LABEL_WIDTH}}", (" · ".join(words), MUTED))]


def _status_line(row: ProcessRow, now: float) -> Content:
    comparison = row.comparison
    if comparison is None:
        return Content.styled(row.problem or "No known job runs here, so there is no budget.", "dim")
    status = badge(STATUSES[comparison.status], comparison.status)
    if row.ended_at is not None:
        after = f" after {format_duration(row.elapsed_seconds)}" if row.elapsed_seconds is not None else ""
        why = f" · {shown_key('list.open')} explains it" if comparison.status == "out_of_memory" else ""
        return Content.assemble(status, f" at {time_words(row.ended_at)}{after} · {comparison.sentence}{why}")
    size = difference_label(comparison)
    difference = f" {size} GiB" if size else ""
    phase = f" · {PHASES[comparison.phase]}" if comparison.phase else ""
    since = next((mark.time for mark in reversed(row.phase_starts) if mark.phase == comparison.phase), None)
    phase += f" for {format_duration(max(0.0, now - since))}" if phase and since is not None else ""
    return Content.assemble(status, f"{difference}{phase} · {comparison.sentence} · {high_water_label(comparison)}")


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))
