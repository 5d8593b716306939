"""One process of a run: bars of held memory and budget, memory over time, the divergence, and the budget."""

import time
from collections.abc import Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import ProcessRow
from vramtop.monitor.probe.probe_reader import STALE_SECONDS

from ...draw.bars import BarSegment, Cell, draw_bar, split_beyond
from ...draw.gpu_bars import bar_content, beyond_budget_bytes, held_colour
from ...draw.labels import MUTED, badge, difference_label, format_duration, phase_label, run_moments
from ...draw.memory_graph import GPU_TOTAL, Readings
from ...draw.palette import COMPONENTS, STATUSES, colour_of
from ...draw.run_graph import BOUND, EXPECTED, LevelLine, RunGraphData, axis_rows, graph_top_bytes, run_graph_rows
from ...draw.text_output import printable
from ...keys import shown_key
from ...widgets.budget_view import budget_bar, model_lines, peak_line, phase_table, remark_lines, short_gpu_name
from ...widgets.cell_rows import AxesGraph, AxisLines
from ...widgets.content_lines import StaticLines
from ..base import is_ascii_only

_MINUTE = 60.0
SPANS: tuple[float | None, ...] = (_MINUTE, 300.0, 900.0, 3600.0, None)
"""Seconds that the graph can show; None: the whole run."""
_MIN_WIDTH = 46
_TALL = 28
"""Rows in which bars, graph and divergence find room; with fewer, the divergence stands above the graph."""
_SPAN_MARGIN = 1.02
"""The graph of a whole run starts a little before the run, so that the mark of its start is visible."""


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
            ground, patterns = self.background_colors[1].hex6, self.app.no_color or is_ascii_only(self)
            rows = run_graph_rows(data, width=width, height=height, ground=ground, patterns=patterns)
            return rows, axis_rows(data, width=width, end=end)

        named = (GPU_TOTAL, EXPECTED)
        self.show_graph(data.top_bytes, draw, lines=[line.size_bytes for line in data.lines if line.char in named])


class RankView(VerticalScroll):
    """One process: bars, memory over time, divergence and budget."""

    DEFAULT_CSS = """
    RankView { padding: 0 1; scrollbar-size-vertical: 1; }
    RankView StaticLines { text-wrap: wrap; }
    RankView #why { margin: 1 0 0 0; }
    RankView #budget { margin: 1 0 0 0; }
    RankView RunGraph { height: 45%; min-height: 9; max-height: 24; margin: 1 0 0 0; }
    """

    _redraw: partial[None] | None = None
    _span: int | None = None
    """Index in ``SPANS`` that the user has chosen; None: the default for the run."""
    _default_span = 1

    def compose(self) -> ComposeResult:
        """The bars, the graph, the divergence, and the budget."""
        yield StaticLines(id="bars")
        yield RunGraph(id="over-time")
        yield StaticLines(id="legend")
        yield StaticLines(id="why")
        yield StaticLines(id="budget")

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
        first_reading = history[0][0] if history else end
        first = min([mark.time for mark in row.phase_starts], default=first_reading)
        # that of the run, unless most of the run was before the first reading
        start = first if first_reading - first < end - first_reading else first_reading
        whole = max(1.0, (end - start) * _SPAN_MARGIN)
        # the whole run after its end, 1 minute in its first, otherwise 5 minutes
        self._default_span = len(SPANS) - 1 if row.ended_at is not None else int(end - start > _MINUTE)
        span = SPANS[self._default_span if self._span is None else self._span]
        words = f"its whole run, {format_duration(whole)}" if span is None else f"last {format_duration(span)}"
        data = run_graph_data(row, history, span_seconds=whole if span is None else span, now=end)
        graph.show(data, end="now" if row.ended_at is None else "end")
        self._write("bars", bars_content(row, self._width, now=now))
        legend = [f"GiB on GPU {row.gpu.label}, {short_gpu_name(row.gpu.name)}; {words}"]
        legend += [f"{EXPECTED} expected  {BOUND} low and high"] if row.budget else []
        legend += [f"{GPU_TOTAL} the GPU"] if data.lines and data.lines[0].char == GPU_TOTAL else []
        self._write("legend", Content.styled("  ".join(legend), MUTED))
        self._write("budget", budget_content(row.budget) if row.budget else Content())

    def show_nothing(self, sentence: str, budget: Budget | None) -> None:
        """Show only a budget, and why the run is on no GPU."""
        self._redraw = partial(self.show_nothing, sentence, budget)
        self.query_one(RunGraph).display = False
        words = Content(sentence)
        if budget is not None:
            cells = budget_bar(budget, scale_bytes=budget.peak.high_bytes, width=self._width - _LABEL_WIDTH)
            words = Content.assemble(words, "\n", f"{'budget':<{_LABEL_WIDTH}}", bar_content(cells))
        self._write("bars", words)
        self._write("budget", budget_content(budget) if budget else Content())
        for name in ("legend", "why"):
            self._write(name, Content())

    def show_explanation(self, divergence: Divergence | None) -> None:
        """Show why the process diverges from its budget; None: it does not."""
        self._write("why", Content() if divergence is None else divergence_content(divergence))

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

    def _draw(self) -> None:
        if self._redraw is not None:
            self._redraw()

    def _write(self, name: str, content: Content) -> None:
        self.query_one(f"#{name}", StaticLines).show_if_any([content] if content else [])


def run_graph_data(row: ProcessRow, history: Readings, *, span_seconds: float, now: float) -> RunGraphData:
    """Return the graph of the process's memory over time in front of its budget."""
    budget, total = row.budget, row.gpu.total_bytes
    most = max((size for _, size in history if size is not None), default=None)
    top = graph_top_bytes(total, most, row.process.used_bytes, budget.peak.high_bytes if budget else None)
    lines = [LevelLine(total, GPU_TOTAL, colour_of("bad"))] if total is not None and total <= top else []
    if budget is not None:
        lines += [LevelLine(budget.peak.low_bytes, BOUND), LevelLine(budget.peak.high_bytes, BOUND)]
        lines.append(LevelLine(budget.steady_device_bytes, EXPECTED))
    is_guess = row.comparison is not None and row.comparison.is_guess
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


_LABEL_WIDTH, _FIGURES_WIDTH = 10, 28


def bars_content(row: ProcessRow, width: int, *, now: float) -> Content:
    """Return held memory and budget on one scale, torch's counters, and the status."""
    sizes = [row.process.used_bytes, row.budget.peak.high_bytes if row.budget else None]
    scale = row.gpu.total_bytes or max(size for size in (*sizes, 1) if size is not None)
    cells = width - _LABEL_WIDTH - _FIGURES_WIDTH
    lines = [_held_line(row, scale, cells)]
    if row.budget is not None:
        peak = row.budget.peak
        uncertain = row.comparison is not None and row.comparison.is_guess
        drawn = bar_content(budget_bar(row.budget, scale_bytes=scale, width=cells, uncertain=uncertain))
        tail = f"│ {format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
        lines.append(Content.assemble(f"{'budget':<{_LABEL_WIDTH}}", drawn, tail))
    return Content("\n").join([*lines, *_counter_lines(row, now), _status_line(row, now)])


def budget_content(budget: Budget) -> Content:
    """Return the budget: its peak, its phases, and its assumptions."""
    lines = [peak_line(budget), *model_lines(budget), Content(), *phase_table(budget), Content()]
    return Content("\n").join([*lines, *remark_lines(budget)])


def _held_line(row: ProcessRow, scale: int, cells: int) -> Content:
    used = row.process.used_bytes
    drawn = draw_bar(_held_parts(row), scale_bytes=scale, width=cells, empty=" " if used is not None else "?")
    size = f"{format_gib(used)} of {format_gib(row.gpu.total_bytes)} GiB"
    tail = f"│ {format_gib(used)} at its end" if row.ended_at is not None else f"│ {size}"
    return Content.assemble(f"{f'GPU {row.gpu.label}':<{_LABEL_WIDTH}}", bar_content(drawn), tail)


_CACHED = "▒"


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
    return split_beyond(parts, (used or 0) - beyond, format_gib(row.comparison.difference_bytes, signed=True))


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
        clock = time.strftime("%H:%M:%S", time.localtime(row.ended_at))
        return Content.assemble(status, f" at {clock}{after} · {comparison.sentence}{why}")
    size = difference_label(comparison)
    difference = f" {size} GiB" if size else ""
    named = phase_label(comparison)
    phase = f" · {named}" if named else ""
    since = next((mark.time for mark in reversed(row.phase_starts) if mark.phase == comparison.phase), None)
    phase += f" for {format_duration(max(0.0, now - since))}" if phase and since is not None else ""
    high, most = comparison.peak_usage, "n/a"  # who measured it is told: most 60.6 (seen every 1.0 s)
    if high is not None:
        interval = "" if high.interval_seconds is None else f" every {high.interval_seconds:.1f} s"
        how = {"probe": "by torch's counters", "accounting": "by the driver", "seen": f"seen{interval}"}[high.source]
        most = f"{format_gib(high.size_bytes)} ({how})"
    return Content.assemble(status, f"{difference}{phase} · {comparison.sentence} · most {most}")


def divergence_content(divergence: Divergence) -> Content:
    """Return the sentence, and below it the components that differ and the most likely explanations.

    Of a trend, the status above has the sentence already.
    """
    head, below = divergence.sentence, divergence.lines
    if divergence.is_trend:
        head = "causes of endless growth:"
    repeated = next((line for line in below if head.endswith(f"; {line}")), None)
    if repeated is not None:  # the sentence ends in the first of the lines below
        head = head.removesuffix(f"; {repeated}")
    lines = [Content.assemble(("Why? ", "bold"), printable(head))]
    lines += [Content.assemble(("  · ", MUTED), printable(line)) for line in below]
    return Content("\n").join(lines)
