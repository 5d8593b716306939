"""The dashboard's layout: panels or rows, their places and heights, and what is left out when there is little room."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import msgspec

from vramtop.monitor.board.board import GpuRow

from ...draw.labels import worst_row

FRAME_LINES = 4
"""Lines of a panel without a graph: two borders and two bars."""
_JOBLESS_LINES = 2
"""Lines of a panel without a job: a rule and a bar."""
LABEL_WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape:
    """Size of a panel."""

    width: int
    graph_height: int = 0
    framed: bool = True
    """It has a frame, and a bar for the budget."""

    @property
    def height(self) -> int:
        """Its lines."""
        return FRAME_LINES + self.graph_height if self.framed else _JOBLESS_LINES

    @property
    def figures_width(self) -> int:
        """Cells for the figures right of each bar."""
        return min(46, max(22, round(self.width * 0.3)))

    @property
    def bar_width(self) -> int:
        """Cells of each bar, without 4 for the frame, 1 for the bar's end, and 1 for the gap before the figures."""
        return max(8, self.width - 4 - LABEL_WIDTH - self.figures_width - 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlace(PanelShape):
    """Where a GPU's panel stands, in cells of the area of the GPUs; one with a job has a frame."""

    x: int
    y: int


class DashboardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Heights of the parts between header and footer."""

    panels: tuple[PanelPlace, ...] | None
    """The place of each GPU's panel; None: one row each."""
    graph_height: int
    """Height of the graph in the open panel."""
    gpu_height: int
    """Height of all panels or of all rows, without the open panel."""
    titles: bool = False
    """Show a line of titles above the rows."""
    open_panel: bool = False
    """Show the panel of the selected GPU below the rows."""
    pending_height: int
    legend: bool


_MAX_GRAPH_HEIGHT = 8
_MIN_TABLE_HEIGHT = 5


def plan_layout(
    *,
    width: int,
    height: int,
    gpus: Sequence[bool],
    processes: int,
    pending: int,
    budgets: bool,
    hosts: bool = False,
) -> DashboardLayout:
    """Divide ``height`` lines so that all GPUs and some processes are visible, and graphs get the rest.

    Args:
        width: columns of the terminal.
        height: lines between summary and footer.
        gpus: of each GPU, whether its panel has a frame and a graph.
        processes: rows of the process table.
        pending: number of pending jobs.
        budgets: a budget is on the screen, so that its letters need a legend.
        hosts: the GPUs are of many hosts: they get rows, and processes at least half of the lines.
    """
    table = min(max(_MIN_TABLE_HEIGHT, processes + 1), max(8, height * 35 // 100))
    waiting = min(pending, max(1, height // 8))
    legend = budgets and height >= 30 and not hosts
    if hosts:
        return _rows(height, min(len(gpus), height // 2), table, waiting, legend=legend)
    places = place_panels(tuple(gpus), width=width, room=height - table - waiting - legend)
    if places is None:
        return _rows(height, len(gpus), table, waiting, legend=legend)
    return DashboardLayout(
        panels=places,
        graph_height=0,
        gpu_height=max((place.y + place.height for place in places), default=0),
        pending_height=waiting,
        legend=legend,
    )


def _rows(height: int, gpus: int, table: int, waiting: int, *, legend: bool) -> DashboardLayout:
    waiting = max(0, min(waiting, height - gpus - _MIN_TABLE_HEIGHT - 1))
    titles = height > _MIN_TABLE_HEIGHT  # of the table's lines, if there are no others
    left = height - gpus - table - waiting - titles - legend
    open_panel = left >= FRAME_LINES and gpus > 0
    return DashboardLayout(
        panels=None,
        graph_height=min(_MAX_GRAPH_HEIGHT, left - FRAME_LINES) if open_panel else 0,
        gpu_height=max(1, min(gpus, height - _MIN_TABLE_HEIGHT)),
        titles=titles,
        open_panel=open_panel,
        pending_height=waiting,
        legend=legend and left >= 0,
    )


def framed_panels(gpus: Sequence[GpuRow]) -> list[bool]:
    """Return for each GPU whether its panel has a frame and a graph; without any budget, those with processes have."""
    if all(gpu.expected_bytes is None for gpu in gpus):
        return [bool(gpu.rows) for gpu in gpus]
    worst = [(gpu, worst_row(gpu.rows)) for gpu in gpus]
    return [
        gpu.expected_bytes is not None or bool(row and row.comparison and row.comparison.diverges) for gpu, row in worst
    ]


_MIN_WIDTH = 78
_MIN_GRAPH, _MAX_GRAPH = 2, 9
"""Heights of graphs: the lowest, and the highest in a terminal that is not tall."""
_MAX_GRAPH_SHARE = 0.35
"""Share of a tall terminal that one graph may take."""
_MIN_WIDTH_OF_TWO = 160
"""From this width on panels stand side by side."""


@lru_cache(maxsize=4)
def place_panels(framed: tuple[bool, ...], *, width: int, room: int) -> tuple[PanelPlace, ...] | None:
    """Place all panels in columns, one below the other; None: they do not fit.

    Whether they fit depends on their number alone, so that rows do not become panels when a job starts or ends.

    Args:
        framed: of each GPU, whether its panel has a frame.
        width: cells of the terminal.
        room: lines for all panels.
    """
    most = max(1, min(len(framed), width // _MIN_WIDTH))
    fewest = min(2 if width >= _MIN_WIDTH_OF_TWO else 1, most)
    for graph in (_MIN_GRAPH, 0):
        for columns in range(fewest, most + 1):
            each = max(1, ceil(len(framed) / columns))
            if each * (FRAME_LINES + graph) <= room:
                parts = [framed[start : start + each] for start in range(0, len(framed), each)]
                return _placed(parts, width=width, room=room)
    return None


def _placed(columns: Sequence[Sequence[bool]], *, width: int, room: int) -> tuple[PanelPlace, ...]:
    graph = max(_MAX_GRAPH, int(room * _MAX_GRAPH_SHARE))
    for column in columns:
        if count := sum(column):
            left = room - count * FRAME_LINES - (len(column) - count) * _JOBLESS_LINES
            graph = min(graph, left // count)
    graph = graph if graph >= _MIN_GRAPH else 0
    places, x = [], 0
    for at, column in enumerate(columns, start=1):
        y, after = 0, width * at // len(columns)
        for has_frame in column:
            shape = {"width": after - x, "graph_height": graph if has_frame else 0}
            places.append(PanelPlace(x=x, y=y, framed=has_frame, **shape))
            y += places[-1].height
        x = after
    return tuple(places)
