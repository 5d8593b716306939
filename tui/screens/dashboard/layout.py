"""The dashboard's layout: panels or rows, their heights, and what is left out when there is little room."""

from collections.abc import Sequence

import msgspec

from .panel_places import PanelPlace, place_panels
from .panel_shape import FRAME_LINES


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
