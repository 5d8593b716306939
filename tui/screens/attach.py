"""The attach screen: from a running process to its job, with evidence for each setting, and on to its budget."""

import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from vramtop.estimator.budget import Budget, Components
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.monitor.attach.attachment import Attachment, SavedAnswers, run_key
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.rehearse_run import find_program, with_rehearsal
from vramtop.monitor.board.board import NOT_ON_GPU_YET, Board, MissingReason, ProcessRow, RunRow, missing_reason
from vramtop.monitor.board.divergence import PeakUsage, Status, diagnose
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.processes import is_own_process
from vramtop.monitor.probe.probe_reader import STALE_SECONDS
from vramtop.monitor.snapshot.snapshot import HistoryKey, ProcessKey, WatchedJob, gpu_list

from ..background.latest_only_task import (
    AnswerWriter,
    AttachFunction,
    EstimateFunction,
    JobEstimates,
    LatestOnlyTask,
    RunReader,
)
from ..draw.bars import BarSegment, Cell, component_segments, draw_bar, split_beyond
from ..draw.labels import (
    MUTED,
    WORST_FIRST,
    CellText,
    badge,
    bar_content,
    beyond_budget_bytes,
    budget_label,
    difference_label,
    format_duration,
    gpu_labels,
    held_colour,
    high_water_label,
    phase_label,
    process_name,
    run_moments,
    severity_rank,
    shorten,
    signed_gib,
    status_tone,
    urgent_label,
    worst_row,
)
from ..draw.memory_graph import (
    EIGHTHS,
    Readings,
    TimelineMark,
    TimeMark,
    column_sizes,
    level_of,
    timeline_cells,
    timeline_marks,
)
from ..draw.palette import COMPONENTS, OTHER_MEMORY, STATUSES, blend, colour_of, ink_on
from ..draw.text_output import printable
from ..job.dialogs import BESIDE_RUN_REMARK, RehearseScreen
from ..job.form import TUNING, FormReading, JobForm, field_row_id
from ..keys import bind, shown_key
from ..reports.divergence_text import divergence_content
from ..widgets.budget_view import (
    budget_bar,
    is_better_estimate,
    model_lines,
    peak_line,
    phase_table,
    remark_lines,
    short_gpu_name,
)
from ..widgets.cell_rows import AxesGraph, AxisLines
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import ROW_BINDINGS, Column, RowTable, StaticLines, fit_columns, scroll_to_row
from .base import BoardApp, is_ascii_only, is_view_only
from .crash import open_crash_on
from .step import GPU_TOTAL, MAX_GPU_TO_PEAK, STACK_ORDER, LiveStepScreen, cell_parts, split_cell

if TYPE_CHECKING:
    from textual.timer import Timer

    from vramtop.estimator.trace.own_program import WhatRuns
    from vramtop.monitor.attach.rehearse_run import RunProgram

# Rows of the run graph as plain data: a curve of memory over time in front of the stacked components of the budget.
#
# Components are drawn in full colours below the curve and in faint ones above it; the curve is a thick line between
# them. Each is named once. What is held beyond the budget is red. Without colour, layers are told apart by patterns.


EXPECTED, BOUND = "━", "┄"
_FULL = "█"
_STEPS = 8
_CURVE_EIGHTHS = 4
"""Minimum thickness of the curve, in eighths of a row."""
_PATTERNS = (("▓", " "), ("▒", "░"))
"""Held memory and memory still to come, of every other layer: without colour they are told apart by their patterns."""
_HELD_SHARE, _COMING_SHARE = 0.62, 0.24
"""Share of a component's colour in held memory and in memory still to come; the rest is background."""


class LevelLine(msgspec.Struct, frozen=True):
    """A horizontal line, such as a bound of the budget."""

    size_bytes: int
    char: str
    colour: str | None = None


class RunGraphData(msgspec.Struct, frozen=True, kw_only=True):
    """The run and its budget."""

    history: Readings
    top_bytes: int
    """Bytes at the top of the graph; anything above is cut off."""
    span_seconds: float
    """Seconds across the full width."""
    now: float
    """Unix seconds at the right edge."""
    layers: Components | None = None
    """Components of the budget, behind the curve; None: no budget is known."""
    slack_bytes: int = 0
    """Bytes that the allocator keeps beyond the components, on top of them."""
    lines: tuple[LevelLine, ...] = ()
    """The last of two lines in the same row is drawn."""
    marks: tuple[TimeMark, ...] = ()
    high_bytes: int | None = None
    """The upper bound of the budget, beyond which the run is red; None: not known, or a guess."""
    colour: str | None = None
    """Colour of the curve."""


def run_graph_rows(
    data: RunGraphData,
    *,
    width: int,
    height: int,
    ground: str = "#000000",
    patterns: bool = False,
) -> list[list[Cell]]:
    """Draw the run, top row first; each column shows the maximum over its time.

    Args:
        data: the run and its budget.
        width: columns.
        height: rows.
        ground: the background colour, with which components are blended.
        patterns: draw patterns: there is no colour.
    """
    if width <= 0 or height <= 0 or data.top_bytes <= 0:
        return []
    sizes = column_sizes(data.history, width, data.span_seconds, data.now)
    levels = [level_of(size, height * _STEPS, data.top_bytes) for size in sizes]
    bands = _bands(data, height, ground=ground, patterns=patterns)
    lines = {_row_of(line.size_bytes, height, data.top_bytes): line for line in data.lines}
    marks = {mark.column: mark.colour or colour_of("neutral") for mark in _marks(data, width) if mark.column}
    calm, rows = data.colour or colour_of("no_budget"), []
    for y in range(height - 1, -1, -1):
        curve = colour_of("bad") if _is_beyond(data, y, height) else calm
        row = [_cell(level - y * _STEPS, bands[y], curve, mark=marks.get(x)) for x, level in enumerate(levels)]
        rows.append(_with_line(row, levels, y, bands[y], lines.get(y)))
    _write_labels(rows, levels, data)
    return rows


def _is_beyond(data: RunGraphData, y: int, height: int) -> bool:
    """Return True if everything in a row, counted from the bottom, is beyond the budget."""
    return data.high_bytes is not None and y * data.top_bytes >= data.high_bytes * height


def _write_labels(rows: list[list[Cell]], levels: Sequence[int], data: RunGraphData) -> None:
    """Write the name and size of each layer once, in its middle, where neither the curve nor a line is."""
    height, width = len(rows), len(levels)
    taken = {_row_of(line.size_bytes, height, data.top_bytes) for line in data.lines}
    layers = _stack(data)
    ends = list(accumulate(layer.size_bytes for layer in layers))
    for end, layer in sorted(zip(ends, layers, strict=True), key=lambda pair: -pair[1].size_bytes):
        low, high = (round(edge * height / data.top_bytes) for edge in (end - layer.size_bytes, end))
        free = [y for y in range(low, min(high, height)) if y not in taken]
        if not free or not layer.labels:
            continue
        y = min(free, key=lambda each: abs(2 * each + 1 - low - high))
        row = rows[height - 1 - y]
        for label in (f" {label} " for label in layer.labels):
            starts = (0, width - len(label))
            start = next(
                (at for at in starts if 0 <= at <= width - len(label) and _is_flat(levels, at, at + len(label), y)),
                None,
            )
            if start is not None:
                taken.add(y)
                for x, char in enumerate(label, start=start):
                    ground = row[x].ground
                    row[x] = Cell(char, ground and ink_on(ground), ground)
                break


def _is_flat(levels: Sequence[int], start: int, end: int, y: int) -> bool:
    """Return True if the curve does not pass through these columns of a row, counted from the bottom."""
    return all(not 0 < level - y * _STEPS < _STEPS + _CURVE_EIGHTHS for level in levels[start:end])


def axis_rows(data: RunGraphData, *, width: int, end: str = "now") -> tuple[list[Cell], str]:
    """Return the two rows below the graph: the phases of the run by name, and time labels such as ``-5 min``.

    Args:
        data: the run that is drawn above.
        width: columns.
        end: label of the right edge.
    """
    axis, names = timeline_cells(_marks(data, width), width, empty="─"), [" "] * width
    step = _tick_seconds(data.span_seconds, width)
    slot = data.span_seconds / max(1, width)
    free = max(0, width - len(end))
    names[free:] = end[-width:] if width else ""
    for count in range(1, int(data.span_seconds / step) + 1):
        column = max(0, width - 1 - round(count * step / slot))
        label = _ago(count * step)
        at = max(0, column - len(label) // 2)
        if width and axis[column].char == "─":
            axis[column] = Cell("┴")
        if at + len(label) < free:
            names[at : at + len(label)] = label
            free = at
    return axis, "".join(names)


def _marks(data: RunGraphData, width: int) -> tuple[TimelineMark, ...]:
    return timeline_marks(data.marks, width=width, span_seconds=data.span_seconds, now=data.now)


def graph_top_bytes(gpu_bytes: int | None, *sizes: int | None) -> int:
    """Return the bytes at the top of the graph: those of the GPU, if the run or its budget fills enough of it."""
    most = max((size for size in sizes if size is not None), default=0)
    if gpu_bytes is not None and (not most or gpu_bytes <= MAX_GPU_TO_PEAK * most):
        return max(gpu_bytes, most)
    return max(1, round(most * 1.2))


class _Band(msgspec.Struct, frozen=True):
    """Cells of one row below and above the curve, and the main colour above it."""

    held: Cell
    coming: Cell
    ground: str | None


def _cell(reach: int, band: _Band, curve: str, *, mark: str | None) -> Cell:
    """Return the cell of a column whose curve is ``reach`` eighths above the bottom of this row."""
    if 0 < reach < _STEPS:
        return Cell(EIGHTHS[reach], curve, band.ground)
    if _STEPS <= reach < _STEPS + _CURVE_EIGHTHS:
        return Cell(_FULL, curve)
    if reach > 0:
        return band.held
    return Cell("┊", mark, band.ground) if mark else band.coming


def _with_line(row: list[Cell], levels: Sequence[int], y: int, band: _Band, line: LevelLine | None) -> list[Cell]:
    if line is None:
        return row
    for x, level in enumerate(levels):
        reach = level - y * _STEPS
        crest = 0 < reach < _STEPS + _CURVE_EIGHTHS
        if not crest:
            row[x] = Cell(line.char, line.colour, band.held.ground or band.held.colour if reach > 0 else band.ground)
    return row


def _bands(data: RunGraphData, height: int, *, ground: str, patterns: bool) -> list[_Band]:
    """Return the look of each row, from the bottom."""
    calm = data.colour or colour_of("no_budget")
    curves = [colour_of("bad") if _is_beyond(data, y, height) else calm for y in range(height)]
    if data.layers is None:
        return [_Band(Cell(_FULL, curve), Cell(" "), None) for curve in curves]
    unit = data.top_bytes / (height * _STEPS)
    layers = _stack(data)
    ends = accumulate(layer.size_bytes for layer in layers)
    numbers = accumulate(layer.size_bytes >= unit * _STEPS / 2 for layer in layers)  # thin ones share a pattern
    edges = [((at, layer.colour), round(end / unit)) for at, end, layer in zip(numbers, ends, layers, strict=True)]
    return [
        _band(cell_parts(edges, y), blend(curve, ground, _HELD_SHARE), ground, patterns=patterns)
        for y, curve in enumerate(curves)
    ]


class _Layer(msgspec.Struct, frozen=True):
    """A component of the budget."""

    size_bytes: int
    colour: str
    labels: tuple[str, ...] = ()


def _stack(data: RunGraphData) -> list[_Layer]:
    """Return the layers, from the bottom."""
    if data.layers is None:
        return []
    segments = dict(zip((name for name, _ in data.layers.items()), component_segments(data.layers), strict=True))
    stack = [_Layer(segments[name].size_bytes, COMPONENTS[name].colour, segments[name].labels) for name in STACK_ORDER]
    return [*stack, _Layer(max(0, data.slack_bytes), OTHER_MEMORY["slack"].colour)]


_Parts = Sequence[tuple[tuple[int, str] | None, int]]
"""(Number and colour, eighths) of the layers in a row, from the bottom; None: nothing."""


def _band(parts: _Parts, beyond: str, ground: str, *, patterns: bool) -> _Band:
    most, _ = max(parts, key=lambda part: part[1])
    if patterns:
        held, coming = _PATTERNS[most[0] % len(_PATTERNS)] if most else (_FULL, " ")
        return _Band(Cell(held), Cell(coming), None)
    cells = []
    for share, blank in ((_HELD_SHARE, beyond), (_COMING_SHARE, None)):
        cells.append(
            split_cell([(blank if layer is None else blend(layer[1], ground, share), n) for layer, n in parts])
        )
    return _Band(cells[0], cells[1], blend(most[1], ground, _COMING_SHARE) if most else None)


def _row_of(size_bytes: int, height: int, top_bytes: int) -> int:
    return min(height - 1, size_bytes * height // top_bytes)


def _tick_seconds(span_seconds: float, width: int) -> float:
    """Return the shortest round interval at which labels do not overlap."""
    room = span_seconds * 12 / max(1, width)
    steps = [1, 2, 5, 10, 15, 30, *(60 * m for m in (1, 2, 5, 10, 15, 30)), *(3600 * h for h in (1, 2, 3, 6, 12, 24))]
    return next((float(step) for step in steps if step >= room), 86_400.0 * max(1, -int(-room // 86_400)))


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"-{seconds / size:.0f} {unit}"
    return f"-{seconds:.0f} s" if seconds < 60 else f"-{seconds / 60:.1f} min"


class RunGraph(AxesGraph):
    """Draws a ``RunGraphData``, and repaints only changed rows."""

    DEFAULT_CSS = "RunGraph { height: 1fr; min-height: 1; }"

    def show(self, data: RunGraphData, *, end: str = "now") -> None:
        """Draw a run.

        Args:
            data: the run and its budget.
            end: label of the right edge.
        """

        def draw(width: int, height: int) -> tuple[list[list[Cell]], AxisLines]:
            ground, patterns = self.background_colors[1].hex6, self._ascii_only or self.app.no_color
            rows = run_graph_rows(data, width=width, height=height, ground=ground, patterns=patterns)
            return rows, axis_rows(data, width=width, end=end)

        named = (GPU_TOTAL, EXPECTED)
        self.show_graph(data.top_bytes, draw, lines=[line.size_bytes for line in data.lines if line.char in named])


# One process of a run as text and bars: held memory, budget, torch's counters, and status.


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
    if row.job is not None and row.job.has_label:
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
        return Content.styled(row.problem or "The job here is unknown, so there is no budget.", "dim")
    status = badge(STATUSES[comparison.status], comparison.status)
    if row.ended_at is not None:
        after = f" after {format_duration(row.elapsed_seconds)}" if row.elapsed_seconds is not None else ""
        why = f" · {shown_key('list.open')} explains it" if comparison.status == "out_of_memory" else ""
        return Content.assemble(status, f" at {time_words(row.ended_at)}{after} · {comparison.sentence}{why}")
    size = difference_label(comparison)
    difference = f" {size} GiB" if size else ""
    named = phase_label(comparison)
    phase = f" · {named}" if named else ""
    since = next((mark.time for mark in reversed(row.phase_starts) if mark.phase == comparison.phase), None)
    phase += f" for {format_duration(max(0.0, now - since))}" if phase and since is not None else ""
    return Content.assemble(status, f"{difference}{phase} · {comparison.sentence} · {high_water_label(comparison)}")


def _clock(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))


SPANS: tuple[float | None, ...] = (60.0, 300.0, 900.0, 3600.0, None)
"""Seconds that the graph can show; None: the whole run."""
_MIN_WIDTH = 46
_TALL = 28
"""Rows in which bars, graph and divergence find room; with fewer, the divergence stands above the graph."""
_SPAN_MARGIN = 1.02
"""The graph of a whole run starts a little before the run, so that the mark of its start is visible."""


class RankView(VerticalScroll):
    """One process: bars, memory over time, divergence, budget and facts."""

    DEFAULT_CSS = """
    RankView { padding: 0 1; scrollbar-size-vertical: 1; }
    RankView StaticLines { text-wrap: wrap; }
    RankView #why { margin: 1 0 0 0; }
    RankView #budget, RankView #facts { margin: 1 0 0 0; }
    RankView RunGraph { height: 45%; min-height: 9; max-height: 24; margin: 1 0 0 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._redraw: partial[None] | None = None
        self._span: int | None = None
        """Index in ``SPANS`` that the user has chosen; None: the default for the run."""
        self._default_span = 1

    def compose(self) -> ComposeResult:
        """The bars, the graph, the divergence, the budget, and the facts."""
        yield StaticLines(id="bars")
        yield RunGraph(id="over-time", ascii_only=is_ascii_only(self))
        yield StaticLines(id="legend")
        yield StaticLines(id="why")
        yield StaticLines(id="budget")
        yield StaticLines(id="facts")

    def show(self, row: ProcessRow, *, history: Readings, now: float) -> None:
        """Show a process.

        Args:
            row: the process on its GPU.
            history: its memory over its whole life.
            now: time of the snapshot.
        """
        self._redraw = partial(self.show, row, history=history, now=now)
        graph, end = self.query_one(RunGraph), now if row.ended_at is None else row.ended_at
        graph.display = True
        start = _start_time(row, history, end)
        self._default_span = _default_span(end - start, ended=row.ended_at is not None)
        span, words = self._span_of(max(1.0, (end - start) * _SPAN_MARGIN))
        data = run_graph_data(row, history, span_seconds=span, now=end)
        graph.show(data, end="now" if row.ended_at is None else "end")
        self._write("bars", bars_content(row, self._width, now=now))
        self._write("legend", legend_content(row, data, words))
        self._write("budget", budget_content(row.budget) if row.budget else Content())
        self._write("facts", facts_content(row))

    def show_nothing(self, sentence: str, budget: Budget | None) -> None:
        """Show only a budget, and why the run is on no GPU."""
        self._redraw = partial(self.show_nothing, sentence, budget)
        self.query_one(RunGraph).display = False
        self._write("bars", nothing_content(sentence, budget, self._width))
        self._write("budget", budget_content(budget) if budget else Content())
        for name in ("legend", "why", "facts"):
            self._write(name, Content())

    def show_explanation(self, content: Content) -> None:
        """Show why the process diverges from its budget; empty: it does not."""
        self._write("why", content)

    def zoom(self, by: int) -> None:
        """Show a longer time (1), or a shorter one (-1)."""
        at = self._default_span if self._span is None else self._span
        self._span = min(len(SPANS) - 1, max(0, at + by))
        self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width, what matters most above the rest where not all is in sight."""
        above = "#bars" if self.size.height < _TALL else "#legend"
        self.move_child(self.query_one("#why"), after=self.query_one(above))
        self._draw()

    @property
    def _width(self) -> int:
        return max(_MIN_WIDTH, self.scrollable_content_region.width)

    def _span_of(self, whole: float) -> tuple[float, str]:
        span = SPANS[self._default_span if self._span is None else self._span]
        return (
            (whole, f"its whole run, {format_duration(whole)}")
            if span is None
            else (span, f"last {format_duration(span)}")
        )

    def _draw(self) -> None:
        if self._redraw is not None:
            self._redraw()

    def _write(self, name: str, content: Content) -> None:
        lines = self.query_one(f"#{name}", StaticLines)
        lines.display = bool(content)
        lines.show(content, layout=True)


def _start_time(row: ProcessRow, history: Readings, end: float) -> float:
    """Return the start of the graph: that of the run, unless most of the run was before the first reading."""
    first_reading = history[0][0] if history else end
    first = min([mark.time for mark in row.phase_starts], default=first_reading)
    return first if first_reading - first < end - first_reading else first_reading


def _default_span(life_seconds: float, *, ended: bool) -> int:
    """Return the index of the default span: the whole run after its end, 1 minute in its first, otherwise 5 minutes."""
    if ended:
        return len(SPANS) - 1
    return 0 if life_seconds <= (SPANS[0] or 0) else 1


# Rows and columns of the rank table as plain data: all ranks of a run side by side.


COLUMNS = (
    Column(name="RANK", width=4, right=True, importance=5),
    Column(name="PID", width=7, right=True),
    Column(name="GPU", width=3, right=True, importance=1),
    Column(name="HOLDS", width=6, right=True, importance=2),
    Column(name="PEAK", width=6, right=True, importance=6),
    Column(name="KNOWN BY", width=10, importance=9),
    Column(name="BUDGET", width=6, right=True, importance=10),
    Column(name="DIFF", width=6, right=True, importance=4),
    Column(name="STATUS", width=15, importance=3),
    Column(name="PHASE", width=10, importance=7),
    Column(name="STEP", width=7, right=True, importance=8),
    Column(name="S/STEP", width=6, right=True, importance=11),
)
_GAP = 2


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table."""

    key: str
    row: ProcessRow | None
    """None: this rank is on no GPU."""
    cells: dict[str, CellText]
    """By name of the column."""


class RankPlacement(msgspec.Struct, frozen=True):
    """Rank and GPU of a process."""

    rank: int | None = None
    gpu: str = "-"
    """The GPU that the process will take according to its environment."""
    missing: str = NOT_ON_GPU_YET.short
    """Why it is on no GPU, if it is on none."""


def rank_columns(width: int, *, gpu_width: int = 3) -> list[Column]:
    """Return the columns that fit, in order; the least important ones are dropped first.

    Args:
        width: cells of the table.
        gpu_width: cells of the longest GPU or MIG device name.
    """
    columns = [replace(each, width=max(3, gpu_width)) if each.name == "GPU" else each for each in COLUMNS]
    fitting = {column.name for column in fit_columns(columns, width, _GAP)}
    return [column for column in columns if column.name in fitting]


def rank_rows(rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement]) -> list[RankRow]:
    """Return a row for each process on each GPU, and for each rank on no GPU; in order of ranks.

    Args:
        rows: the processes on GPUs, including ended ones.
        ranks: the placement of each process of the run, in order.
    """
    found = [_on_gpu(row, ranks.get(row.process.key, RankPlacement()).rank) for row in rows]
    present = {row.process.key for row in rows}
    missing = [_missing_row(key, place) for key, place in ranks.items() if key not in present]
    order = {key: at for at, key in enumerate(ranks)}
    by_place = sorted(found, key=lambda each: order.get(each.row.process.key, len(order)) if each.row else 0)
    return [*by_place, *missing]


def _on_gpu(row: ProcessRow, rank: int | None) -> RankRow:
    comparison, counters = row.comparison, row.process.counters
    tone = status_tone(row)
    status = CellText("? no budget" if row.problem else "-", "muted")
    phase = peak = known = ""
    if comparison is not None:
        mark = STATUSES[comparison.status]
        status = CellText(f"{mark.letter} {mark.word}", tone)
        phase = phase_label(comparison)
        if comparison.peak_usage:
            peak, known = format_gib(comparison.peak_usage.size_bytes), _known_by(comparison.peak_usage)
    ended = row.ended_at is not None
    texts = {
        "RANK": CellText("-" if rank is None else str(rank)),
        "PID": CellText(str(row.process.pid)),
        "GPU": CellText(row.gpu.label),
        "HOLDS": CellText("-" if ended else format_gib(row.process.used_bytes)),
        "PEAK": CellText(peak or "-"),
        "KNOWN BY": CellText(known or "-", "muted"),
        "BUDGET": CellText(budget_label(row)),
        "DIFF": CellText("-" if comparison is None or ended else difference_label(comparison) or "-", tone),
        "STATUS": status,
        "PHASE": CellText(phase or "-"),
        "STEP": CellText("-" if counters is None or counters.steps is None else f"{counters.steps:,}"),
        "S/STEP": CellText(
            "-" if counters is None or counters.step_seconds is None else f"{counters.step_seconds:.2f}"
        ),
    }
    return RankRow(key="/".join(map(str, row.key)), row=row, cells=texts)


def _missing_row(key: ProcessKey, place: RankPlacement) -> RankRow:
    texts = dict.fromkeys((column.name for column in COLUMNS), CellText("-", "muted"))
    texts["RANK"] = CellText("-" if place.rank is None else str(place.rank))
    texts["PID"] = CellText(str(key[0]))
    texts["GPU"] = CellText(place.gpu, "muted")
    texts["STATUS"] = CellText(place.missing, "muted")
    return RankRow(key=f"none/{key[0]}/{key[1]}", row=None, cells=texts)


def _known_by(high: PeakUsage) -> str:
    if high.source == "seen":
        return "seen" if high.interval_seconds is None else f"seen {high.interval_seconds:.1f} s"
    return {"probe": "probe", "accounting": "driver"}[high.source]


# Table of all ranks of a run; the rank under the cursor is drawn below it.


class RankTable(RowTable[RankRow], can_focus=True):
    """The ranks; posts ``Selected`` when the user moves the cursor, ``Paged`` if all are in sight already."""

    GAP_AROUND = True
    MARGIN = 0
    BINDINGS: ClassVar[list[BindingType]] = [*ROW_BINDINGS, bind("list.open", "open")]
    DEFAULT_CSS = """
    RankTable { height: auto; max-height: 9; min-height: 1; }
    RankTable > .table--cursor { background: $primary 20%; }
    RankTable:focus > .table--cursor { background: $primary 45%; }
    """

    class Selected(Message):
        """The cursor is on another rank."""

    class Paged(Message):
        """Page Down (``by`` is 1) or Page Up (-1) was pressed, and there are no more ranks than are in sight."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    @property
    def process(self) -> ProcessRow | None:
        """The process under the cursor; None if there is none, or it holds nothing on a GPU yet."""
        return self.selected.row if self.selected else None

    def show(self, rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement], *, width: int) -> None:
        """Show these processes, and the ranks that are on no GPU yet.

        Until the user moves it, the cursor is on the rank with the worst status, or the most memory among equals.
        """
        new, followed = rank_rows(rows, ranks), self.selected
        kept = next((row for row in new if followed is not None and row.key == followed.key), None)
        self._moved = self._moved and kept is not None
        if new and not self._moved:
            worst = min(new, key=_urgency)
            self.cursor_row = new.index(worst if kept is None or _urgency(worst)[0] < _urgency(kept)[0] else kept)
        gpu_width = max((len(row.gpu.label) for row in rows), default=0)
        self.show_rows(new, rank_columns(width - self.scrollbar_size_vertical, gpu_width=gpu_width), _GAP)
        scroll_to_row(self, self.cursor_row, page=self.page)

    def key_of(self, row: RankRow) -> str:
        """Return the rank's process, and its GPU."""
        return row.key

    def cells_of(self, row: RankRow) -> list[CellText]:
        """Return the cells of the columns that are shown."""
        return [row.cells[column.name] for column in self._columns]

    def signs_of(self, row: RankRow) -> tuple[str, bool]:  # noqa: ARG002 - no rank has a sign
        """Return nothing: the first column begins at the left."""
        return "", False

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on another rank, and report that."""
        super().move_cursor(row=row)
        self.post_message(self.Selected())

    def action_move_page(self, by: int) -> None:
        """Go to the next or previous ranks; with all of them in sight, what is below the table scrolls."""
        if self.max_scroll_y:
            super().action_move_page(by)
        else:
            self.post_message(self.Paged(by))


def _urgency(row: RankRow) -> tuple[int, int]:
    """Return a sort key: the worst status first, then the most memory; a rank on no GPU comes last."""
    if row.row is None:
        return len(WORST_FIRST) + 1, 0
    return severity_rank(row.row), -(row.row.process.used_bytes or 0)


# Runs in a few lines of text: tabs for all of them, and the header of the one that is shown.


_MAX_NAME_WIDTH = 28


def run_tabs(runs: Sequence[RunRow], shown: Sequence[ProcessKey], width: int) -> Content:
    """Return the followed runs in one line, the shown one marked; those that do not fit in are counted."""
    if not runs:
        return Content("Attach: compare a running job with its budget")
    at = next((at for at, run in enumerate(runs) if not set(shown).isdisjoint(run.pids)), None)
    if len(runs) == 1 and at == 0:  # its status stands below
        return Content(_name(runs[0])).truncate(width)
    tabs = [_tab(number, run, shown=number == at) for number, run in enumerate(runs)]
    first = 0
    while at is not None and first < at and sum(tab.cell_length + 2 for tab in tabs[first : at + 1]) > width:
        first += 1
    line = Content(f"‹ {first} more  " if first else "")
    for place, tab in enumerate(tabs[first:], start=first):
        if line.cell_length + tab.cell_length > width - 10 and place not in {first, at}:
            return Content.assemble(line, f"{len(tabs) - place} more ›").truncate(width)
        line = Content.assemble(line, tab, "  ")
    return line.truncate(width)


def run_header(attachment: Attachment, rows: Sequence[ProcessRow], missing: str) -> Content:
    """Return the run in one line, and its command in another.

    Args:
        attachment: what was read of the run.
        rows: its processes on GPUs.
        missing: why there are none, if there are none.
    """
    gpus = gpu_labels(rows)
    versions = " ".join(f"{name} {version}" for name, version in sorted(attachment.versions.items()))
    count = len(attachment.ranks)
    facts = [
        f"pid {attachment.pid}" if count < 2 else f"{count} ranks",
        f"by {attachment.launcher}" if attachment.launcher else "started directly",
        *(printable(place) for place in attachment.inside),
        "with the probe" if attachment.probe else "",
        f"GPU {gpu_list(gpus)}" if gpus else missing,
        f"up {format_duration(rows[0].elapsed_seconds)}" if rows else "",
        versions,
    ]
    return _head([fact for fact in facts if fact], rows, attachment.command)


def process_header(rows: Sequence[ProcessRow]) -> Content:
    """Return a process that was not read in one line, and its command in another."""
    first = rows[0].process
    gpus = gpu_labels(rows)
    facts = [f"pid {first.pid}", printable(first.user or "user n/a"), f"GPU {gpu_list(gpus)}"]
    facts.append(f"up {format_duration(rows[0].elapsed_seconds)}")
    return _head(facts, rows, first.command or first.name or "command n/a")


def warnings_content(attachment: Attachment) -> Content:
    """Return the warnings about what could not be read or understood."""
    return Content("\n").join(
        Content.assemble(("! ", f"bold {colour_of('warning')}"), printable(text)) for text in attachment.warnings
    )


def _tab(number: int, run: RunRow, *, shown: bool) -> Content:
    row = worst_row(run.rows)
    words = Content.styled(f" {number + 1} {shorten(_name(run), _MAX_NAME_WIDTH)}", "bold reverse" if shown else "")
    if run.ended_at is not None and (row is None or row.comparison is None or row.comparison.status == "ended"):
        return Content.assemble(words, " ", Content.styled(f"■ ended {time_words(run.ended_at)}", MUTED))
    if row is None or row.comparison is None:
        return Content.assemble(
            words, Content.styled(" no budget" if run.problem else f" {NOT_ON_GPU_YET.short}", MUTED)
        )
    return Content.assemble(words, " ", badge(STATUSES[row.comparison.status], row.comparison.status))


def _name(run: RunRow) -> str:
    """Return the job's name, or else program and model, which distinguishes two runs of one script."""
    if run.job.name:
        return printable(run.job.name)
    program = [process_name(row.process) for row in run.rows[:1]]
    return printable(" ".join([*program, (run.job.model.id or "").rpartition("/")[2]]))


def _head(facts: Sequence[str], rows: Sequence[ProcessRow], command: str) -> Content:
    row = worst_row(rows)
    status = Content()
    if row is not None and row.comparison is not None:
        beside = urgent_label(row, unit=" GiB")
        size = f" {beside} · " if beside else " "
        status = Content.assemble(badge(STATUSES[row.comparison.status], row.comparison.status), size)
    return Content("\n").join(
        [Content.assemble(status, (" · ".join(facts), "bold")), Content.styled(printable(command), "dim")]
    )


# Processes of a run on the board.


def find_run(board: Board | None, keys: Sequence[ProcessKey]) -> RunRow | None:
    """Return the followed run that these processes belong to."""
    runs = board.runs if board else ()
    return next((run for run in runs if not set(keys).isdisjoint(run.pids)), None)


def known_job(watchlist: Watchlist, keys: Sequence[ProcessKey]) -> Job | None:
    """Return the job of the run that these processes belong to, unless settings of it are missing."""
    runs = (run for run in watchlist.runs() if not set(keys).isdisjoint(run.pids) and not run.missing)
    return next((run.job for run in runs), None)


def run_rows(board: Board | None, keys: Sequence[ProcessKey]) -> tuple[ProcessRow, ...]:
    """Return the processes of a run on their GPUs, including ended ones."""
    run = find_run(board, keys)
    if run is not None:
        return run.rows
    return tuple(row for row in (board.processes if board else ()) if row.process.key in keys)


def is_only_in_recording(board: Board | None, pid: int) -> bool:
    """Return True if the process is known from a recording only: a local process with its pid is another one."""
    if board is None or board.snapshot.source.is_live:
        return False
    return any(row.process.pid == pid for row in (*board.processes, *board.ended_processes))


def with_start_times(board: Board | None, keys: tuple[ProcessKey, ...]) -> tuple[ProcessKey, ...]:
    """Return the keys, with start times added for processes that are now on a GPU or in a run."""
    if board is None or all(start is not None for _, start in keys):
        return keys
    seen = [*(row.process.key for row in board.processes), *(key for run in board.runs for key in run.pids)]
    return tuple(next((other for other in seen if key[1] is None and other[0] == key[0]), key) for key in keys)


# Keys and layout of the attach screen.


ATTACH_KEYS: list[BindingType] = [
    bind("app.back", "back", "Back"),
    bind("attach.choose", "choose", "Process"),
    bind(
        "dashboard.process", "app.open_screen('process')", "Info",
        help_text="details of the process: SM, CPU, RAM, folder, container, parents, environment",
    ),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "other_pane", "Settings"),
    bind("attach.rehearse", "rehearse", "Rehearse"),
    bind("attach.forget", "forget", "Forget", show=False),
    bind("attach.zoom_in", "zoom(-1)", group="Zoom"),
    bind("attach.zoom_out", "zoom(1)", group="Zoom"),
    bind("attach.previous_run", "run(-1)", group="Runs"),
    bind("attach.next_run", "run(1)", group="Runs"),
    bind("attach.dismiss", "dismiss_run", "Dismiss"),
]  # fmt: skip

ATTACH_LAYOUT = """
AttachScreen #title { width: 1fr; height: 1; padding: 0 1; text-style: bold; background: $panel; }
AttachScreen #attached { height: 1fr; }
AttachScreen #run { padding: 0 1; text-overflow: ellipsis; }
AttachScreen #warnings { padding: 0 1; max-height: 4; overflow-y: auto; text-wrap: wrap; }
AttachScreen #halves { height: 1fr; layout: horizontal; border-top: hkey $foreground 20%; }
AttachScreen #settings { width: 2fr; max-width: 66; border-right: vkey $foreground 20%; }
AttachScreen #memory { width: 3fr; }
AttachScreen #problem { height: auto; padding: 0 1; color: $text-error; display: none; }
AttachScreen #problem.-shown { display: block; }
AttachScreen #rehearsal { height: auto; padding: 0 1; color: $text-warning; }
AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; border-right: none; display: none; }
AttachScreen.-narrow.-settings #settings { display: block; }
AttachScreen.-narrow.-settings #memory { display: none; }
AttachScreen.-unreadable #settings { display: none; }
"""


# The choice of a process: a typed pid, or one of the processes that hold GPU memory now.


class PidChooser(Vertical):
    """Asks for a process and posts ``Chosen``; shows why the last one could not be read."""

    DEFAULT_CSS = """
    PidChooser { height: 1fr; padding: 1 1 0 1; }
    PidChooser Horizontal { height: 1; margin: 0 0 1 0; }
    PidChooser Input { width: 20; }
    PidChooser #failure { height: auto; display: none; margin: 0 0 1 0; color: $text-error; }
    PidChooser #failure.-shown { display: block; }
    PidChooser OptionList { height: auto; max-height: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    @dataclass
    class Chosen(Message):
        """The user has chosen a process."""

        pid: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """The pid, a line for failures, and the processes on GPUs."""
        picks_only = is_view_only(self)  # else any process of the machine could be read
        with Horizontal():
            yield Label("PID ")
            hint = "one of these" if picks_only else "type it, then press Enter"
            yield Input(placeholder=hint, compact=True, id="pid", disabled=picks_only)
        yield Static(id="failure", markup=False)
        yield Label("or choose one of these (Tab, then Enter):", id="these")
        yield OptionList(id="running", compact=True, markup=False)

    def show_board(self, board: Board) -> None:
        """List the processes that hold GPU memory on this board."""
        rows: dict[int, ProcessRow] = {}
        for row in board.processes:
            rows.setdefault(row.process.pid, row)
        lines = [_line(row) for row in rows.values()]
        if lines == self._lines:
            return
        self._lines = lines
        options = self.query_one(OptionList)
        at = options.highlighted_option.id if options.highlighted_option else None
        options.clear_options()
        options.add_options(Option(line, id=str(pid)) for pid, line in zip(rows, lines, strict=True))
        if rows:  # Enter takes the first until another one is chosen
            options.highlighted = options.get_option_index(at) if at and int(at) in rows else 0
        self.query_one("#these").display = bool(rows)

    def show_failure(self, sentence: str) -> None:
        """Say why the process could not be read."""
        line = self.query_one("#failure", Static)
        line.update(f"✗ {sentence}" if sentence else "")
        line.set_class(bool(sentence), "-shown")

    @on(Input.Submitted, "#pid")
    def typed(self, event: Input.Submitted) -> None:
        """Post the typed pid if it is a number."""
        event.stop()
        text = event.value.strip()
        if not text.isdecimal() or len(text) > 9:
            self.show_failure(f"{text!r} is not a pid; a pid is a whole number." if text else "Enter a pid first.")
            return
        self.post_message(self.Chosen(int(text)))

    @on(OptionList.OptionSelected, "#running")
    def picked(self, event: OptionList.OptionSelected) -> None:
        """Post the selected process."""
        event.stop()
        self.post_message(self.Chosen(int(event.option.id or 0)))


def _line(row: ProcessRow) -> str:
    process = row.process
    size = f"{format_gib(process.used_bytes)} GiB"
    command = printable(process.command or process.name or "?")
    return f"{process.pid:>8}  {printable(process.user or '?'):<9} GPU {row.gpu.label:<3} {size:>10}  {command}"


_DELAY_SECONDS = 0.15
"""Time after the last key until the edits count."""
_EXPLAIN_STEP = 0.02
"""A divergence is explained again when the held memory has changed by this share of the budget."""
_Divergence = tuple[int, HistoryKey, int, bool, Status]
"""Id of the budget, process on a GPU, held memory in steps, whether torch's counters are known, and status."""


class AttachScreen(Screen[None]):
    """Asks for a process, reads its job, and follows its run; keys lead to the other runs.

    Args:
        watchlist: compares the run with its budget as soon as the job is complete.
        attach: reads a running process; called off the UI thread.
        estimate: a quick estimate, likewise.
        estimate_changed: not corrected, for the many jobs that may explain a divergence; None: ``estimate``.
        refine: a better and slower one, likewise; None: there is none.
        answers: the file of settings that the user fills in.
        attached: what was read of processes before: an ended process can no longer be read.
        board: the latest board, until ``show_board`` brings the next.
        pid: the process; None: the user is asked.
        start_time: start of that process, if known: pids are reused.
    """

    TITLE, AUTO_FOCUS = "Attach", ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (116, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = ATTACH_KEYS
    DEFAULT_CSS = ATTACH_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        attach: AttachFunction = read_run,
        estimate: EstimateFunction = estimate,
        estimate_changed: EstimateFunction | None = None,
        refine: EstimateFunction | None = None,
        answers: SavedAnswers | None = None,
        attached: MutableMapping[ProcessKey, Attachment] | None = None,
        board: Board | None = None,
        pid: int | None = None,
        start_time: float | None = None,
    ) -> None:
        super().__init__()
        self._watchlist, self._board = watchlist, board
        self._estimate_changed = estimate_changed or estimate
        self._pid: int | None = None
        """The process that was read last; None: the user is choosing one."""
        self._keys: tuple[ProcessKey, ...] = () if pid is None else ((pid, start_time),)
        """Processes of the run that is shown."""
        self._on_gpus: tuple[ProcessRow, ...] = ()
        """Processes of the run that are on GPUs."""
        self._missing: MissingReason = NOT_ON_GPU_YET
        """Why there are none, if there are none."""
        self._attachment: Attachment | None = None
        self._budget: Budget | None = None
        self._edited_field = "model.id"
        self._takes_edits = False
        self._delayed: Timer | None = None
        answers, known = answers or SavedAnswers(), {} if attached is None else attached
        self._answers = AnswerWriter(answers, self.call_later, partial(self.notify, severity="warning", markup=False))
        self._reader = RunReader(
            attach, answers, known, self.call_later, on_read=self._show_attachment, on_error=self._show_unread
        )
        self._reading = FormReading(self, on_read=self._show_read_again, on_error=self._keep_old_reading)
        self._step = LiveStepScreen(self)
        self._estimates = JobEstimates(
            estimate,
            refine,
            self.call_later,
            on_budget=self._follow_with_budget,
            on_error=self._show_estimate_error,
            on_not_refined=self._step.show_not_refined,
        )
        self._read_run = attach
        self._look_task = LatestOnlyTask("attach, program", self.call_later, self._ask_to_rehearse, self._end_rehearsal)
        self._rehearse_task = LatestOnlyTask("rehearse", self.call_later, self._show_rehearsed, self._end_rehearsal)
        self._rehearsal: str | None = None
        """How far the rehearsal of this run is; None: none is running."""
        self._not_rehearsed = ""
        """Why the run could not be rehearsed."""
        self._explain_task = LatestOnlyTask("explain", self.call_later, self._show_explanation)
        self._explained: _Divergence | None = None
        """The divergence that is explained, or that is being explained."""

    def compose(self) -> ComposeResult:
        """The choice of a process; or the whole run, and below it one of its processes."""
        yield StaticLines(id="title")
        yield PidChooser(id="choose")
        with Vertical(id="attached"):
            yield StaticLines(id="run")
            yield StaticLines(id="warnings")
            yield RankTable(id="ranks")
            yield Static(id="problem", markup=False)
            yield StaticLines(id="rehearsal")
            with Horizontal(id="halves"):
                yield Vertical(id="settings")
                yield RankView(id="memory")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the process, or ask for one."""
        if self._keys:
            self._open_run(self._keys)
        else:
            self.action_choose()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._cancel()
        self._explain_task.cancel()

    def show_board(self, board: Board) -> None:
        """Show the run as it is on this board."""
        self._board = board
        with self.app.batch_update():
            if not self._keys:
                self.query_one(PidChooser).show_board(board)
            self._show_run()

    @on(PidChooser.Chosen)
    def pid_chosen(self, event: PidChooser.Chosen) -> None:
        """Read the chosen process."""
        self._open_run(((event.pid, None),))

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate again once the typing pauses; with another model, the run is read again before."""
        attachment, on_gpu = self._attachment, self._on_gpu
        if attachment is None or not self._takes_edits:  # the form of a run that is no longer shown
            return
        form, self._edited_field = self.query_one(JobForm), event.key
        self._estimates.cancel()
        self._keep_answer(form, event.key)
        if self._delayed is not None:
            self._delayed.stop()
        if self._reading.start(form, lambda edits: self._reader.read_again(attachment, edits, on_gpu=on_gpu)):
            self._show_problem(f"Reading the run again with {form.state.model}.", mark="…")
        else:
            self._delayed = self.set_timer(_DELAY_SECONDS, lambda: self._estimate_edited(attachment))

    @on(RankTable.Paged)
    def _scroll_rank(self, event: RankTable.Paged) -> None:
        """Scroll the process below the table, where the reason of a divergence may be out of sight."""
        pane = self.query_one(RankView)
        pane.scroll_relative(y=event.by * max(1, pane.size.height - 2), animate=False)

    @on(RankTable.Opened)
    def _explain_end(self) -> None:
        """Open the explanation of a rank that ended out of memory."""
        if (row := self._selected) is not None:
            open_crash_on(cast("BoardApp", self.app), row)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable keys that would do nothing."""
        if action in ("zoom", "run", "dismiss_run") and isinstance(self.focused, Input):
            return False  # they are typed into the field
        match action:
            case "run":
                return len(self._runs) > (self._shown_run is not None)
            case "dismiss_run":
                return self._shown_run is not None
            case "rehearse":
                return self._rehearsal is not None or self._may_rehearse
            case "other_pane" | "forget":
                return self._attachment is not None and self._pid is not None
            case "step" | "zoom":
                return self._pid is not None
        return True

    def action_zoom(self, by: int) -> None:
        """Show a longer time (1) or a shorter one (-1)."""
        self.query_one(RankView).zoom(by)

    def action_run(self, by: int) -> None:
        """Show the next run (1) or the previous one (-1)."""
        runs, run = self._runs, self._shown_run
        if runs:
            self._open_run(runs[(runs.index(run) + by if run in runs else 0) % len(runs)].pids)

    def action_dismiss_run(self) -> None:
        """Follow this run no longer, whether it has ended or not."""
        run = self._shown_run
        if run is None:
            return
        self._watchlist.dismiss_runs(run.pids)
        self._reader.forget(run.pids)
        self._board = self._watchlist.rebuild_board()
        self.notify(f"{run.job.label} is detached.", markup=False)
        if self._runs:
            self._open_run(self._runs[0].pids)
        else:
            self.app.pop_screen()

    def action_other_pane(self) -> None:
        """Move the focus to the settings, or back to the run."""
        settings = self.query_one("#settings")
        in_settings = self.focused is not None and settings in self.focused.ancestors
        self._focus_on(None if in_settings else self.query_one(JobForm))

    def focus_previous(self, selector: str | type[Widget] = "*") -> Widget | None:
        """Move the focus back; on a narrow terminal from the run to the settings, to the field edited last."""
        table = self.query_one(RankTable)
        if self.focused is not table or not self.has_class("-narrow") or not self.query(JobForm):
            return super().focus_previous(selector)
        self._focus_on(self.query_one(JobForm), self._edited_field)
        return self.focused

    def action_back(self) -> None:
        """Stop the rehearsal that runs; without one, leave the screen."""
        if self._rehearsal is None:
            self.app.pop_screen()
        else:
            self._end_rehearsal()

    def action_rehearse(self) -> None:
        """Ask whether to rehearse this run, and show what would be started; stop the rehearsal that runs."""
        if self._rehearsal is not None:
            self._end_rehearsal()
            return
        pid, start_time = self._keys[0]
        on_gpu = self._on_gpu

        def look() -> "tuple[RunProgram, WhatRuns]":
            found = find_program(pid, start_time=start_time, on_gpu=on_gpu)
            return found, found.what_runs()

        self._look_task.submit(look)

    def action_forget(self) -> None:
        """Forget the settings that the user filled in for this command line, and read the process again."""
        attachment = self._attachment
        if attachment is not None:
            self._answers.remove_all()
            self._watchlist.dismiss_runs(self._keys)
            self.notify("Your settings for this command line are forgotten.")
            self._read(attachment.pid, attachment.start_time, recall=False)

    def action_step(self) -> None:
        """Open the step screen on the job."""
        row = self._selected
        budget = self._budget or (row.budget if row else None)
        if budget is None:
            self.notify("There is no budget for this process yet, so there is no step to show.", severity="warning")
        else:
            self._step.open(budget, self._estimates, gpu_bytes=row.gpu.total_bytes if row else None)

    def action_choose(self, failure: str = "") -> None:
        """Ask for another process; ``failure`` says why the last one could not be read."""
        self._cancel()
        self._pid, self._keys, self._attachment = None, (), None
        chooser = self.query_one(PidChooser)
        self._show_run()
        if self._board:
            chooser.show_board(self._board)
        chooser.show_failure(failure)
        chooser.query_one(Input).focus()
        self.refresh_bindings()

    @property
    def _may_rehearse(self) -> bool:
        """Whether this user runs it, on this machine and in no container."""
        pid = self._pid
        if pid is None or is_view_only(self) or is_only_in_recording(self._board, pid):
            return False
        if not any(map(self._watchlist.is_running, self._keys)):
            return False
        return is_own_process(pid) if self._attachment is None else self._attachment.worker_python is not None

    def _ask_to_rehearse(self, looked_at: "tuple[RunProgram, WhatRuns]") -> None:
        (found, what), pid = looked_at, self._pid

        def answered(agreed: bool | None) -> None:
            if agreed and self._pid == pid:
                self._rehearse(found)

        self.app.push_screen(RehearseScreen(what, BESIDE_RUN_REMARK), answered)

    def _rehearse(self, found: "RunProgram") -> None:
        """Run the program of a run, to which the user has agreed."""
        (pid, start_time), on_gpu, gpu = self._keys[0], self._on_gpu, self._watchlist.gpu_type

        def tell(text: str) -> None:
            self.call_later(self._show_rehearsal, text)

        def rehearse() -> tuple[Attachment, Budget]:
            budget = found.rehearse(gpu=gpu, progress=tell)
            return with_rehearsal(self._read_run(pid, start_time=start_time, on_gpu=on_gpu), budget), budget

        self._not_rehearsed, self._rehearsal = "", "rehearsing this run"
        self._rehearse_task.submit(rehearse)
        self._show_rehearsal(self._rehearsal)
        self.refresh_bindings()

    async def _show_rehearsed(self, rehearsed: tuple[Attachment, Budget]) -> None:
        """Take what was rehearsed as the job of the run, and its budget."""
        attachment, budget = rehearsed
        self._end_rehearsal()
        self._watchlist.dismiss_runs(self._keys)
        await self._show_attachment(attachment)
        if attachment.reading.value("program.kept") is None:
            self._estimates.cancel()
            self._follow_with_budget(budget)

    def _end_rehearsal(self, failure: str = "") -> None:
        """End the rehearsal, if one runs; ``failure`` says why there is none."""
        self._cancel_rehearsal()
        self._not_rehearsed = failure
        self._draw_rehearsal()
        self.refresh_bindings()

    def _cancel_rehearsal(self) -> None:
        self._look_task.cancel()
        self._rehearse_task.cancel()
        self._rehearsal, self._not_rehearsed = None, ""

    def _show_rehearsal(self, text: str) -> None:
        """Show how far the rehearsal is, unless it was stopped."""
        if self._rehearsal is not None:
            self._rehearsal = text
            self._draw_rehearsal()

    def _draw_rehearsal(self) -> None:
        """Show the progress or the failure of the rehearsal; offer one if the run was not read, or read with doubts."""
        line, key, attachment = (
            self.query_one("#rehearsal", StaticLines),
            shown_key("attach.rehearse"),
            self._attachment,
        )
        is_read = attachment is not None and not attachment.reading.missing and not attachment.warnings
        text = ""
        if self._rehearsal is not None:
            text = f"… {self._rehearsal}; {key} stops it"
        elif self._not_rehearsed:
            text = f"✗ {self._not_rehearsed}"
        elif not is_read and (attachment or self.has_class("-unreadable")) and self._may_rehearse:
            text = f"{key} rehearses this run: about 20 s of one core; its files are not touched"
        line.show_if_any([Content(printable(text))] if text else [])

    async def replace_form(self, form: JobForm) -> None:
        """Show the settings of the run in this form."""
        settings = self.query_one("#settings")
        await settings.remove_children()
        form.disabled = is_view_only(self)
        await settings.mount(form)

    @property
    def shown_process(self) -> ProcessKey | None:
        """The process under the cursor of the table; before the run is on a GPU, its first."""
        row = self._selected
        return (row.process.key if row else self._keys[0]) if self._keys else None

    @property
    def _selected(self) -> ProcessRow | None:
        """The process under the cursor, which is drawn; None: it holds nothing on a GPU."""
        return self.query_one(RankTable).process

    @property
    def _runs(self) -> tuple[RunRow, ...]:
        return self._board.runs if self._board else ()

    @property
    def _on_gpu(self) -> set[int] | None:
        return {row.process.pid for row in self._board.processes} or None if self._board else None

    @property
    def _shown_run(self) -> RunRow | None:
        return find_run(self._board, self._keys)

    def _open_run(self, keys: tuple[ProcessKey, ...]) -> None:
        """Show this run, and read the first of its processes."""
        self._keys, self._attachment, self._budget = keys, None, None
        self.query_one("#settings").remove_children()
        self._show_problem(None)
        self._show_run()
        self._read(*self._keys[0])

    def _read(self, pid: int, start_time: float | None, *, recall: bool = True) -> None:
        self._pid = pid
        self._cancel()
        if is_only_in_recording(self._board, pid):
            is_known = self._shown_run is not None  # the recording says what it runs
            sentence = f"Process {pid} is in the open recording, not on this machine."
            self.call_later(lambda: self._show_unread("" if is_known else sentence) if self._pid == pid else None)
            return
        self._reader.read(pid, start_time, on_gpu=self._on_gpu, recall=recall)

    async def _show_attachment(self, attachment: Attachment) -> None:
        """Show the job of a process that was read, and estimate it."""
        keys = self._reader.remember(attachment)
        known = known_job(self._watchlist, keys)
        try:
            job = known or attachment.reading.job()
        except VramtopError as error:
            self._show_unreadable(error.message)
            return
        self._keys, self._attachment, reading = keys, attachment, attachment.reading
        self._budget = self._shown_run.budget if known and self._shown_run else None
        missing = () if known else reading.missing
        form = JobForm(job, origins=_origins(attachment), missing=missing)
        await self.replace_form(form)
        self._answers.start_run(run_key(attachment))
        self._takes_edits = True
        self.remove_class("-unreadable")
        self._show_run()
        is_no_known_model = "model.id" in missing and self._may_rehearse  # a rehearsal needs none of the fields
        self._focus_on(form if missing and not is_no_known_model else None)
        self._estimate_job()

    def _show_read_again(self, attachment: Attachment) -> None:
        """Show what was read with another model, and the user's edits of it."""
        if not self._takes_edits:
            return
        form, reading = self.query_one(JobForm), attachment.reading
        try:
            job = reading.job()
        except VramtopError as error:
            self._show_estimate_error(error.message)
            return
        form.show_reading(job, _origins(attachment), reading.missing)
        for key in form.state.edited:
            self._keep_answer(form, key)
        self._reader.remember(attachment)
        self._estimate_edited(attachment)

    def _keep_old_reading(self, sentence: str) -> None:
        """Keep what was read with another model, and say why."""
        if (old := self._attachment) is not None and self._takes_edits:
            note = f"Settings derived from the model are for the previous model: {sentence}"
            self._estimate_edited(replace(old, warnings=tuple(dict.fromkeys([note, *old.warnings]))))

    def _keep_answer(self, form: JobForm, key: str) -> None:
        if answer := form.state.setting(key):
            self._answers.set_answer(*answer)
        elif form.state.is_cleared(key):
            self._answers.remove_answer(TUNING if key.startswith(f"{TUNING}.") else key)

    async def _show_unread(self, sentence: str) -> None:
        """Show what was read of the run earlier; if that is nothing, say why it cannot be read now."""
        attachment = self._reader.remembered(self._keys)
        if attachment is None:
            self._show_unreadable(sentence)
        else:
            await self._show_attachment(attachment)

    def _show_unreadable(self, sentence: str) -> None:
        """Show the run without its settings, or ask for another process if there is nothing to show."""
        if not self._on_gpus:
            self.action_choose(sentence)
            return
        self.add_class("-unreadable")
        self._show_problem(sentence)
        self._draw_rehearsal()
        self._focus_on(None)

    def _cancel(self) -> None:
        """Discard what is being read and estimated; further edits are of another run."""
        self._takes_edits = False
        self._reading.cancel()
        if self._delayed is not None:
            self._delayed.stop()
        self._reader.cancel()
        self._estimates.cancel()
        self._cancel_rehearsal()

    def _estimate_edited(self, attachment: Attachment) -> None:
        """Show the run with the user's edits, and estimate its job."""
        self._attachment = attachment
        self._show_run()
        self._estimate_job()

    def _estimate_job(self) -> None:
        attachment = self._attachment
        if attachment is None:  # the form of a run that is no longer shown
            return
        form = self.query_one(JobForm)
        if job := form.job:
            options = {"environ": attachment.estimate_environ, "python": attachment.worker_python}
            self._estimates.estimate(job, **options)
            self._estimates.refine(job, **options)
        else:
            self._show_problem(form.problem)

    def _follow_with_budget(self, budget: Budget) -> None:
        """Compare the run with this budget from now on, unless a better one of the same job is known."""
        if self._budget is not None and not is_better_estimate(budget, self._budget):
            budget = self._budget
        self._budget = budget
        self.query_one(JobForm).clear_errors()
        self._show_problem(None)
        self._answers.save()
        self._step.update(budget, self._estimates)
        self._watchlist.set_budget(budget)
        self._watchlist.add_run(WatchedJob(job=budget.job, pids=self._keys))
        self._board = self._watchlist.rebuild_board() or self._board
        self._show_run()

    def _show_estimate_error(self, sentence: str) -> None:
        self.query_one(JobForm).show_error(self._edited_field, sentence)
        self._show_problem(sentence)

    def _show_problem(self, sentence: str | None, *, mark: str = "✗") -> None:
        """Say why the job is incomplete or invalid, or what is awaited; None or empty: it is neither."""
        note = " Until then, the previous settings apply." if self._budget else ""
        line = self.query_one("#problem", Static)
        line.update(f"{mark} {sentence}{note}" if sentence else "")
        line.set_class(bool(sentence), "-shown")

    def _focus_on(self, form: JobForm | None, key: str | None = None) -> None:
        """Move the focus to the form or one of its fields, or to the run; narrow terminals show only one of them."""
        self.set_class(form is not None, "-settings")
        fields = form.query(f"#{field_row_id(key)} Input, #{field_row_id(key)} Choice") if form and key else ()
        field = next(iter(fields), None)
        (field or form.query("Input, Choice").first() if form else self.query_one(RankTable)).focus()
        self.refresh_bindings()

    @on(Resize)
    def _show_run(self) -> None:
        """Draw the names of the runs, and the run that is shown or the choice of a process."""
        if not self.query("#facts"):  # a size, or a board, may come before the widgets
            return
        board, attachment = self._board, self._attachment
        keys = self._keys = with_start_times(board, self._keys)
        self.query_one(PidChooser).display = not keys
        self.query_one("#attached").display = bool(keys)
        self.query_one("#title", StaticLines).show(run_tabs(self._runs, keys, self.size.width - 2))
        if not keys:
            return
        rows = self._on_gpus = run_rows(board, keys)
        self._missing = NOT_ON_GPU_YET if rows else missing_reason(board, keys, self._watchlist.is_running)
        header = Content.styled(f"… reading process {keys[0][0]}", MUTED)
        if attachment:
            header = run_header(attachment, rows, self._missing.short)
        elif rows:
            header = process_header(rows)
        self.query_one("#run", StaticLines).show(header, layout=True)
        warnings = self.query_one("#warnings", StaticLines)
        warnings.display = bool(attachment and attachment.warnings)
        if attachment:
            warnings.show(warnings_content(attachment), layout=True)
        self._draw_rehearsal()
        placements = self._placements() or dict.fromkeys(keys, RankPlacement(missing=self._missing.short))
        self.query_one(RankTable).show(rows, placements, width=self.size.width)
        self._draw_process()

    def _placements(self) -> dict[ProcessKey, RankPlacement]:
        """Return the rank of each process; those on no GPU yet with the GPU they will take, or why they are on none."""
        board, attachment = self._board, self._attachment
        if attachment is None:
            return {}
        present = {row.process.key for row in self._on_gpus}
        if board and any((rank.pid, rank.start_time) not in present for rank in attachment.ranks):
            attachment = attachment.with_gpu_assignments([gpu.reading for gpu in board.gpus])
        placements: dict[ProcessKey, RankPlacement] = {}
        for rank in attachment.ranks:
            key = rank.pid, rank.start_time
            missing = NOT_ON_GPU_YET if key in present else missing_reason(board, (key,), self._watchlist.is_running)
            gpu = "-" if rank.gpu_assignment.gpu is None else str(rank.gpu_assignment.gpu)
            placements[key] = RankPlacement(rank.rank, gpu, missing.short)
        return placements

    @on(RankTable.Selected)
    def _draw_process(self) -> None:
        """Draw the process under the cursor."""
        row, view, board = self._selected, self.query_one(RankView), self._board
        if row is None:
            view.show_nothing(self._missing.sentence, self._budget)
            return
        now = board.snapshot.time if board else 0.0
        view.show(row, history=self._watchlist.history.lifetime(row.key), now=now)
        self._explain(row)

    def _explain(self, row: ProcessRow) -> None:
        """Explain the process's divergence, if it has one that is not explained yet."""
        attachment, budget, comparison = self._attachment, row.budget, row.comparison
        if budget is None or comparison is None or not comparison.diverges:
            self._explained = None
            self._explain_task.cancel()
            self.query_one(RankView).show_explanation(Content())
            return
        high = comparison.peak_usage
        held = (high.size_bytes if high else comparison.observed_bytes) or 0
        steps = round(held / max(1.0, _EXPLAIN_STEP * budget.peak.device_bytes))
        divergence = (id(budget), row.key, steps, row.process.counters is not None, comparison.status)
        if divergence == self._explained:
            return
        self._explained = divergence
        assumed = [f.key for f in attachment.reading.findings if not f.written] if attachment else []
        estimate = partial(self._estimate_changed, environ=attachment.estimate_environ if attachment else None)
        self._explain_task.submit(lambda: diagnose(budget, comparison, row.process, estimate, assumed=assumed))

    def _show_explanation(self, divergence: Divergence) -> None:
        self.query_one(RankView).show_explanation(divergence_content(divergence))


def _origins(attachment: Attachment) -> dict[str, str]:
    return {**attachment.reading.evidence(), **attachment.reading.refused}


# Opens the attach screen: on the latest run, on a given process, or to ask for a process.


def open_attach(app: BoardApp) -> None:
    """Show the latest run, or ask for a process if no run is followed."""
    runs = app.board.runs if app.board else ()
    pid, start_time = runs[-1].pids[0] if runs and runs[-1].pids else (None, None)
    open_attach_on(app, pid, start_time)


def open_attach_on(app: BoardApp, pid: int | None, start_time: float | None = None) -> None:
    """Open the screen on this process; None: ask for one."""
    screen = AttachScreen(
        app.watchlist,
        estimate=app.estimate or estimate,
        estimate_changed=estimate,
        refine=app.refine,
        attached=app.attachments,
        board=app.board,
        pid=pid,
        start_time=start_time,
    )
    app.push_once(screen)
