"""One rank compared with its budget: bars on the scale of the GPU, memory over time, divergence, and phases."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import NOT_ON_GPU_YET, ProcessRow
from vramtop.monitor.board.divergence import PeakUsage
from vramtop.monitor.probe.probe_reader import STALE_SECONDS
from vramtop.monitor.snapshot.snapshot import ProcessKey

from ...draw.bars import BarSegment, draw_bar, split_beyond
from ...draw.labels import (
    MUTED,
    WORST_FIRST,
    CellText,
    badge,
    bar_content,
    beyond_budget_bytes,
    difference_label,
    format_duration,
    held_colour,
    high_water_label,
    run_moments,
    severity_rank,
    signed_gib,
    status_tone,
)
from ...draw.memory_graph import Readings
from ...draw.palette import COMPONENTS, PHASES, STATUSES, colour_of
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.budget_view import budget_bar, model_lines, peak_line, phase_table, remark_lines, short_gpu_name
from ...widgets.row_table import ROW_BINDINGS, Column, RowTable, StaticLines, fit_columns, scroll_to_row
from ..base import is_ascii_only
from ..step import GPU_TOTAL
from .run_graph import BOUND, EXPECTED, LevelLine, RunGraph, RunGraphData, graph_top_bytes

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A line of the table."""

    key: str
    row: ProcessRow | None
    """None: this rank is on no GPU."""
    cells: dict[str, CellText]
    """By name of the column."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
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
        phase = PHASES[comparison.phase] if comparison.phase else ""
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
        "BUDGET": CellText(format_gib(row.budget.steady_device_bytes) if row.budget else "-"),
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
