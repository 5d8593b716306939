"""The graphs of utilisation and memory bandwidth over the last minutes, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...draw.bars import Cell
from ...draw.memory_graph import graph_levels, level_rows
from ...draw.palette import colour_of
from ...widgets.cell_rows import CellRows

if TYPE_CHECKING:
    from vramtop.monitor.snapshot.memory_history import GpuFigure
    from vramtop.monitor.snapshot.snapshot import GpuReading

    from .activity import Histories


MIN_GRAPH_LINES = 5
"""Rows below which nothing can be read from the graphs."""
_GAP = 4
_AXIS_WIDTH = 6


class _Graph(msgspec.Struct, frozen=True):
    """One of the graphs."""

    figure: GpuFigure
    name: str
    meaning: str
    colour_name: str

    def rows(self, gpu: GpuReading, histories: Histories, *, width: int, height: int) -> list[list[Cell]]:
        """Return title, graph with its scale, and time axis as cells, each row as wide as asked."""
        inner = width - _AXIS_WIDTH
        levels = graph_levels(
            histories.figure(gpu, self.figure),
            width=inner,
            height=height,
            top_bytes=100,
            span_seconds=histories.span_seconds,
            now=histories.now,
        )
        scale = {height // 2: " 50 %", height - 1: "  0 %", 0: "100 %"}
        rows = [
            [*_text(f"{scale.get(at, ''):{_AXIS_WIDTH - 1}}{'┤' if at in scale else '│'}", _AXIS_WIDTH), *row]
            for at, row in enumerate(level_rows(levels, height, colour_of(self.colour_name)))
        ]
        before = f"{histories.span_seconds / 60:.0f} min ago"
        axis = f"{'':{_AXIS_WIDTH}}{before}{'now':>{max(3, inner - len(before))}}"
        title = f"{self.name}: {self.meaning}"
        return [_text(title if len(title) <= width else self.name, width), *rows, _text(axis, width)]


_GRAPHS = (
    _Graph("utilisation_percent", "compute", "share of time with a running kernel", "compute"),
    _Graph("memory_utilisation_percent", "bandwidth", "share of time with memory reads or writes", "bandwidth"),
)


class ActivityGraph(CellRows):
    """Draws both graphs, and repaints only when they have changed."""

    DEFAULT_CSS = "ActivityGraph { height: 1fr; }"

    _shown: tuple[GpuReading, Histories] | None = None

    def show(self, gpu: GpuReading, histories: Histories) -> None:
        """Draw the history of a whole GPU."""
        if self._shown != (gpu, histories):
            self._shown = gpu, histories
            self._draw()

    def _draw(self) -> None:
        height = self.size.height - 2  # a title above, the time below
        width = (self.size.width - _GAP) // 2
        if self._shown is None or height < 1 or width <= _AXIS_WIDTH:
            return
        gpu, histories = self._shown
        left, right = (graph.rows(gpu, histories, width=width, height=height) for graph in _GRAPHS)
        gap = [Cell(" ")] * _GAP
        self._show_rows([[*one, *gap, *other] for one, other in zip(left, right, strict=True)])


def _text(words: str, width: int) -> list[Cell]:
    return [Cell(char) for char in words[:width].ljust(width)]
