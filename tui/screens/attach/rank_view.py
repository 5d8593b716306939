"""One rank compared with its budget: bars on the scale of the GPU, memory over time, divergence, and phases."""

from functools import partial

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize

from vramtop.estimator.budget import Budget
from vramtop.monitor.board import ProcessRow

from ...draw import Readings, format_duration
from ...widgets import StaticLines
from ..base import is_ascii_only
from .rank_text import bars_content, budget_content, facts_content, legend_content, nothing_content, run_graph_data
from .run_graph import RunGraph

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
