"""The dashboard's layout: panels or rows, their heights, and what is left out when there is little room."""

from collections.abc import Sequence
from dataclasses import dataclass

from .gpus import FRAME_LINES, PanelNeed, PanelPlace, place_panels

_MAX_GRAPH_HEIGHT = 8
_MIN_TABLE_HEIGHT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardLayout:
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


def plan_layout(
    *, width: int, height: int, gpus: Sequence[PanelNeed], processes: int, pending: int, budgets: bool
) -> DashboardLayout:
    """Divide ``height`` lines so that all GPUs and some processes are visible, and graphs get the rest.

    Args:
        width: columns of the terminal.
        height: lines between summary and footer.
        gpus: how much room each GPU needs.
        processes: rows of the process table.
        pending: number of pending jobs.
        budgets: a budget is on the screen, so that its letters need a legend.
    """
    table = min(max(_MIN_TABLE_HEIGHT, processes + 1), max(8, height * 35 // 100))
    waiting = min(pending, max(1, height // 8))
    legend = budgets and height >= 30
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
    left = height - gpus - _MIN_TABLE_HEIGHT
    waiting = max(0, min(waiting, left))
    left -= waiting
    titles = left >= 1
    left = height - gpus - table - waiting - titles - legend
    open_panel = left >= FRAME_LINES
    return DashboardLayout(
        panels=None,
        graph_height=min(_MAX_GRAPH_HEIGHT, left - FRAME_LINES) if open_panel else 0,
        gpu_height=max(1, min(gpus, height - _MIN_TABLE_HEIGHT)),
        titles=titles,
        open_panel=open_panel,
        pending_height=waiting,
        legend=legend and left >= 0,
    )
