"""The dashboard's layout: panels or rows, their heights, and what is left out when there is little room."""

from dataclasses import dataclass
from math import ceil

from .gpus import FRAME_LINES

_MIN_PANEL_WIDTH = 78
_MIN_PANEL_WITH_GRAPH = FRAME_LINES + 2
_MAX_GRAPH_HEIGHT = 8
_MIN_TABLE_HEIGHT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardLayout:
    """Heights of the parts between header and footer."""

    panels: bool
    """A panel for each GPU; otherwise one row each."""
    columns: int = 1
    """Number of panels side by side."""
    graph_height: int
    """Height of the graph in each panel, or in the open one."""
    gpu_height: int
    """Height of all panels or of all rows, without the open panel."""
    titles: bool = False
    """Show a line of titles above the rows."""
    open_panel: bool = False
    """Show the panel of the selected GPU below the rows."""
    pending_height: int
    legend: bool


def plan_layout(*, width: int, height: int, gpus: int, processes: int, pending: int, budgets: bool) -> DashboardLayout:
    """Divide ``height`` lines so that all GPUs and some processes are visible, and graphs get the rest.

    Args:
        width: columns of the terminal.
        height: lines between summary and footer.
        gpus: number of GPUs.
        processes: rows of the process table.
        pending: number of pending jobs.
        budgets: a budget is on the screen, so that its letters need a legend.
    """
    table = min(max(_MIN_TABLE_HEIGHT, processes + 1), max(8, height * 35 // 100))
    waiting = min(pending, max(1, height // 8))
    legend = budgets and height >= 30
    room = height - table - waiting - legend
    columns = _columns(width, gpus, room)
    if columns:
        each = min(room // ceil(gpus / columns), FRAME_LINES + _MAX_GRAPH_HEIGHT) if gpus else 0
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
    """Return how many panels fit side by side, with graphs if possible; 0: no panels fit."""
    possible = range(1, max(1, min(gpus, width // _MIN_PANEL_WIDTH)) + 1)
    for enough in (_MIN_PANEL_WITH_GRAPH, FRAME_LINES):
        for columns in possible:
            if room >= enough * ceil(gpus / columns):
                return columns
    return 0


def _rows(height: int, gpus: int, table: int, waiting: int, *, legend: bool) -> DashboardLayout:
    left = height - gpus - _MIN_TABLE_HEIGHT
    waiting = max(0, min(waiting, left))
    left -= waiting
    titles = left >= 1
    left = height - gpus - table - waiting - titles - legend
    open_panel = left >= FRAME_LINES
    return DashboardLayout(
        panels=False,
        graph_height=min(_MAX_GRAPH_HEIGHT, left - FRAME_LINES) if open_panel else 0,
        gpu_height=max(1, min(gpus, height - _MIN_TABLE_HEIGHT)),
        titles=titles,
        open_panel=open_panel,
        pending_height=waiting,
        legend=legend and left >= 0,
    )
