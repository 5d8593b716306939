"""A process of a run held against its budget: bars on the card's scale, memory over time, why it diverges, phases."""

from functools import partial

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize

from vramtop.estimator.budget.budget import Budget
from vramtop.monitor.board.board import ProcessRow

from ...draw.labels import format_duration
from ...draw.memory_graph import Readings
from ...widgets.static_lines import StaticLines
from .rank_text import bars_content, budget_content, facts_content, legend_content, nothing_content, run_graph_data
from .run_graph import RunGraph

SPANS: tuple[float | None, ...] = (60.0, 300.0, 900.0, 3600.0, None)
"""Seconds that the graph can show; None: the whole run."""
_LEAST_WIDTH = 46
_MARGIN = 1.02
"""Left of the begin of a run, so that its mark is seen."""


class RankView(VerticalScroll):
    """One process, its memory over time, and what there is to say about it."""

    DEFAULT_CSS = """
    RankView { padding: 0 1; scrollbar-size-vertical: 1; }
    RankView StaticLines { text-wrap: wrap; }
    RankView #why { margin: 1 0 0 0; }
    RankView #budget, RankView #facts { margin: 1 0 0 0; }
    RankView RunGraph { height: 45%; min-height: 9; max-height: 24; margin: 1 0 0 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._again: partial[None] | None = None
        self._span: int | None = None
        """Position in ``SPANS`` that the user has chosen; None: what suits the run."""
        self._suits = 1

    def compose(self) -> ComposeResult:
        """From what is looked at first to what is looked up."""
        yield StaticLines(id="bars")
        yield RunGraph(id="over-time", ascii_only=bool(getattr(self.app, "ascii_only", False)))
        yield StaticLines(id="legend")
        yield StaticLines(id="why")
        yield StaticLines(id="budget")
        yield StaticLines(id="facts")

    def show(self, row: ProcessRow, *, history: Readings, now: float) -> None:
        """Show this process.

        Args:
            row: how it stands.
            history: what it has held over its whole life.
            now: the snapshot's time.
        """
        self._again = partial(self.show, row, history=history, now=now)
        graph, end = self.query_one(RunGraph), now if row.ended_at is None else row.ended_at
        graph.display = True
        begin = _begin(row, history, end)
        self._suits = _suiting(end - begin, ended=row.ended_at is not None)
        span, words = self._span_of(max(1.0, (end - begin) * _MARGIN))
        picture = run_graph_data(row, history, span_seconds=span, now=end)
        graph.show(picture, end="now" if row.ended_at is None else "end")
        self._write("bars", bars_content(row, self._width, now=now))
        self._write("legend", legend_content(row, picture, words))
        self._write("budget", budget_content(row.budget) if row.budget else Content())
        self._write("facts", facts_content(row))

    def show_nothing(self, sentence: str, budget: Budget | None) -> None:
        """Show a budget alone, and why the run is seen on no GPU."""
        self._again = partial(self.show_nothing, sentence, budget)
        self.query_one(RunGraph).display = False
        self._write("bars", nothing_content(sentence, budget, self._width))
        self._write("budget", budget_content(budget) if budget else Content())
        for name in ("legend", "why", "facts"):
            self._write(name, Content())

    def explain(self, content: Content) -> None:
        """Say why the process holds something else than its budget; nothing where there is nothing to say."""
        self._write("why", content)

    def zoom(self, by: int) -> None:
        """Show a longer stretch of time (1), or a shorter one (-1)."""
        at = self._suits if self._span is None else self._span
        self._span = min(len(SPANS) - 1, max(0, at + by))
        self._draw_again()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw_again()

    @property
    def _width(self) -> int:
        return max(_LEAST_WIDTH, self.scrollable_content_region.width)

    def _span_of(self, whole: float) -> tuple[float, str]:
        span = SPANS[self._suits if self._span is None else self._span]
        return (
            (whole, f"its whole run, {format_duration(whole)}")
            if span is None
            else (span, f"last {format_duration(span)}")
        )

    def _draw_again(self) -> None:
        if self._again is not None:
            self._again()

    def _write(self, name: str, content: Content) -> None:
        lines = self.query_one(f"#{name}", StaticLines)
        lines.display = bool(content)
        lines.show(content, layout=True)


def _begin(row: ProcessRow, history: Readings, end: float) -> float:
    """Where the whole run begins: at its start, unless most of it was before anybody looked."""
    seen = history[0][0] if history else end
    first = min([mark.time for mark in row.phase_starts], default=seen)
    return first if seen - first < end - seen else seen


def _suiting(life_seconds: float, *, ended: bool) -> int:
    """Of what was seen of a run, all in its first minutes and after its end; five minutes otherwise."""
    if ended:
        return len(SPANS) - 1
    return 0 if life_seconds <= (SPANS[0] or 0) else 1
