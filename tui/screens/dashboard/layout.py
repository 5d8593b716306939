"""What goes where on the dashboard: panels or rows, how tall, and what must give way when there is little room."""

from dataclasses import dataclass
from math import ceil

from .gpu_panel_text import FRAME_LINES

_MIN_PANEL_WIDTH = 78
_GOOD_PANEL = FRAME_LINES + 2
_MAX_GRAPH = 8
_MIN_TABLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardLayout:
    """How the space between header and footer is shared."""

    panels: bool
    """A panel for each GPU; otherwise one line each."""
    columns: int = 1
    """Panels side by side."""
    graph_height: int
    """Rows of graph in each panel, or in the open one."""
    gpu_height: int
    """Lines of all panels or of all rows, the open panel left out."""
    titles: bool = False
    """A line of titles over the rows."""
    open_panel: bool = False
    """The chosen GPU's panel is shown under the rows."""
    pending_height: int
    legend: bool


def plan_layout(*, width: int, height: int, gpus: int, processes: int, pending: int, budgets: bool) -> DashboardLayout:
    """Share ``height`` lines so that no GPU is lost, the processes stay visible, and graphs get what is left.

    Args:
        width: columns of the terminal.
        height: lines between summary and footer.
        gpus: how many there are.
        processes: rows of the process table.
        pending: jobs that wait.
        budgets: a budget is on the screen, so its letters need a legend.
    """
    table = min(max(_MIN_TABLE, processes + 1), max(8, height * 35 // 100))
    waiting = min(pending, max(1, height // 8))
    legend = budgets and height >= 30
    room = height - table - waiting - legend
    columns = _columns(width, gpus, room)
    if columns:
        each = min(room // ceil(gpus / columns), FRAME_LINES + _MAX_GRAPH) if gpus else 0
        return DashboardLayout(
            panels=True,
            columns=columns,
            graph_height=max(0, each - FRAME_LINES),
            gpu_height=each * ceil(gpus / columns),
            pending_height=waiting,
            legend=legend,
        )
    return _rows(height, gpus, table, waiting, legend=legend)


def _columns(width: int, gpus: int, room: int) -> int:
    """How many panels side by side show graphs, else at least both bars; 0: panels do not fit."""
    possible = range(1, max(1, min(gpus, width // _MIN_PANEL_WIDTH)) + 1)
    for enough in (_GOOD_PANEL, FRAME_LINES):
        for columns in possible:
            if room >= enough * ceil(gpus / columns):
                return columns
    return 0


def _rows(height: int, gpus: int, table: int, waiting: int, *, legend: bool) -> DashboardLayout:
    left = height - gpus - _MIN_TABLE
    waiting = max(0, min(waiting, left))
    left -= waiting
    titles = left >= 1
    left = height - gpus - table - waiting - titles - legend
    open_panel = left >= FRAME_LINES
    return DashboardLayout(
        panels=False,
        graph_height=min(_MAX_GRAPH, left - FRAME_LINES) if open_panel else 0,
        gpu_height=max(1, min(gpus, height - _MIN_TABLE)),
        titles=titles,
        open_panel=open_panel,
        pending_height=waiting,
        legend=legend and left >= 0,
    )
