"""A run held against its budget: bars on the card's scale, memory over time with the budget's lines, and the phases."""

from collections.abc import Callable, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import format_gib
from vramtop.monitor.board import ProcessRow

from ..bars import Part, bar
from ..gpu_bars import bar_content
from ..palette import STATUSES
from ..words import badge, most_words, signed_gib, span_words, worst
from .budget_view import budget_bar, model_lines, peak_line, phase_table, remark_lines, short_name
from .lines import Lines
from .memory_graph import Line, MemoryGraph, Readings

_PLAIN = "#60a5fa"
_LABEL, _TAIL = 10, 28
_LEAST_SPAN_SECONDS = 60.0
_EXPECTED, _BOUND = "━", "┄"


class RunView(VerticalScroll):
    """The processes of one run, largest first, against the budget of their job."""

    DEFAULT_CSS = """
    RunView { padding: 0 1; scrollbar-size-vertical: 1; }
    RunView Lines { text-wrap: wrap; }
    RunView MemoryGraph { height: 1fr; min-height: 6; max-height: 16; margin: 1 0 0 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._again: Callable[[], None] | None = None

    def compose(self) -> ComposeResult:
        """Bars, graph, its legend, and what the budget says."""
        yield Lines(id="bars")
        yield MemoryGraph(axis=True, id="over-time")
        yield Lines(id="legend")
        yield Lines(id="budget")

    def show(self, rows: Sequence[ProcessRow], *, history_of: Callable[[ProcessRow], Readings], now: float) -> None:
        """Show these processes; the first one's memory is drawn over time."""
        self._again = partial(self.show, rows, history_of=history_of, now=now)
        if not rows:
            self._show_nothing(Content("It holds no memory on a GPU yet."), Content())
            return
        first, graph = rows[0], self.query_one(MemoryGraph)
        history = history_of(first)
        span = max(_LEAST_SPAN_SECONDS, now - history[0][0]) if history else _LEAST_SPAN_SECONDS
        graph.display = True
        graph.show(
            history,
            top_bytes=_scale(first),
            lines=_lines(first.budget),
            span_seconds=span,
            now=now,
            colour=STATUSES[first.comparison.status].colour if first.comparison else _PLAIN,
        )
        self._write(_bars(rows, self._width), _legend(first, span), _budget(first))

    def show_budget(self, budget: Budget) -> None:
        """Show a budget alone: the run holds nothing on a GPU yet."""
        self._again = partial(self.show_budget, budget)
        parts = budget_bar(budget, scale_bytes=budget.peak.high_bytes, width=self._width - _LABEL)
        line = Content.assemble("It holds no memory on a GPU yet.\n", f"{'budget':<{_LABEL}}", bar_content(parts))
        self._show_nothing(line, _budget_text(budget))

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        if self._again is not None:
            self._again()

    @property
    def _width(self) -> int:
        return max(_LABEL + _TAIL + 8, self.scrollable_content_region.width)

    def _show_nothing(self, bars: Content, budget: Content) -> None:
        self.query_one(MemoryGraph).display = False
        self._write(bars, Content(), budget)

    def _write(self, *contents: Content) -> None:
        for name, content in zip(("bars", "legend", "budget"), contents, strict=True):
            self.query_one(f"#{name}", Lines).show(content, layout=True)


def _scale(row: ProcessRow) -> int:
    sizes = [row.gpu.total_bytes, row.process.used_bytes, row.budget.peak.high_bytes if row.budget else None]
    return row.gpu.total_bytes or max(size for size in (*sizes, 1) if size is not None)


def _bars(rows: Sequence[ProcessRow], width: int) -> Content:
    lines = [_held_line(row, width) for row in rows]
    first = rows[0]
    if first.budget is not None:
        peak = first.budget.peak
        cells = budget_bar(first.budget, scale_bytes=_scale(first), width=width - _LABEL - _TAIL)
        tail = f"│ {format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
        lines.append(Content.assemble(f"{'budget':<{_LABEL}}", bar_content(cells), tail))
    lines.append(_status_line(worst(rows) or first, several=len(rows) > 1))
    return Content("\n").join(lines)


def _held_line(row: ProcessRow, width: int) -> Content:
    colour = STATUSES[row.comparison.status].colour if row.comparison else _PLAIN
    used = row.process.used_bytes
    held = [Part(used or 0, "█", colour)]
    cells = bar(held, scale_bytes=_scale(row), width=width - _LABEL - _TAIL, empty=" " if used is not None else "?")
    tail = f"│ {format_gib(used)} of {format_gib(row.gpu.total_bytes)} GiB"
    return Content.assemble(f"{f'GPU {row.gpu.index}':<{_LABEL}}", bar_content(cells), tail)


def _status_line(row: ProcessRow, *, several: bool) -> Content:
    comparison = row.comparison
    if comparison is None:
        return Content.styled(row.problem or "No job is known to run here, so there is no budget.", "dim")
    where = f"GPU {row.gpu.index}: " if several else ""
    difference = signed_gib(comparison.difference_bytes)
    words = f" {difference} GiB · {comparison.sentence} · {most_words(comparison)}"
    return Content.assemble(where, badge(STATUSES[comparison.status], comparison.status), words)


def _lines(budget: Budget | None) -> list[Line]:
    if budget is None:
        return []
    bounds = (Line(budget.peak.low_bytes, _BOUND), Line(budget.peak.high_bytes, _BOUND))
    return [*bounds, Line(budget.steady_device_bytes, _EXPECTED)]


def _legend(row: ProcessRow, span_seconds: float) -> Content:
    name = f"GiB on {short_name(row.gpu.name)}, {span_words(span_seconds)}"
    lines = f"  {_EXPECTED} expected  {_BOUND} low and high" if row.budget else ""
    return Content.styled(name + lines, "dim")


def _budget(row: ProcessRow) -> Content:
    return _budget_text(row.budget) if row.budget else Content()


def _budget_text(budget: Budget) -> Content:
    lines = [Content(), peak_line(budget), *model_lines(budget), Content(), *phase_table(budget), Content()]
    return Content("\n").join([*lines, *remark_lines(budget)])
