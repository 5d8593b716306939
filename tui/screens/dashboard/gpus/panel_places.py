"""Where each GPU's panel stands and how high it is: the room goes to the jobs that diverge."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from vramtop.monitor.board import GpuRow

from ....draw import worst_row
from .panel_shape import FRAME_LINES, JOBLESS_LINES, PanelShape

PanelNeed = Literal["jobless", "calm", "diverging"]
"""A GPU without a budget; one whose jobs are within their budgets; one with a job that is not."""

MIN_WIDTH = 78
_MIN_WIDTH_OF_TWO = 160
"""From this width on panels stand side by side."""
_MIN_GRAPH, _CALM_GRAPH, _MAX_GRAPH = 2, 4, 9
"""Heights of graphs: the lowest, the highest of a calm job above or below one that diverges, and the highest of all."""
_MAX_GRAPH_SHARE = 0.35
"""Share of a tall terminal that one graph may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlace:
    """The place of a panel."""

    x: int
    y: int
    width: int
    graph_height: int
    framed: bool
    """It has a job, and therefore a frame."""

    @property
    def shape(self) -> PanelShape:
        """Its size."""
        return PanelShape(width=self.width, graph_height=self.graph_height, framed=self.framed)

    @property
    def height(self) -> int:
        """Its lines."""
        return self.shape.height


def panel_need(gpu: GpuRow) -> PanelNeed:
    """Return how much room a GPU needs."""
    if gpu.expected_bytes is None:
        return "jobless"
    row = worst_row(gpu.rows)
    return "diverging" if row and row.comparison and row.comparison.diverges else "calm"


def place_panels(needs: Sequence[PanelNeed], *, width: int, room: int) -> tuple[PanelPlace, ...] | None:
    """Place all panels in columns, one below the other; None: they do not fit.

    Whether they fit depends on their number alone, so that rows do not become panels when a job starts or ends.

    Args:
        needs: of each GPU.
        width: cells of the terminal.
        room: lines for all panels.
    """
    most = max(1, min(len(needs), width // MIN_WIDTH))
    fewest = min(2 if width >= _MIN_WIDTH_OF_TWO else 1, most)
    for graph in (_MIN_GRAPH, 0):
        for columns in range(fewest, most + 1):
            split = _columns(needs, columns)
            if all(len(column) * (FRAME_LINES + graph) <= room for column in split):
                return _placed(split, width=width, room=room)
    return None


def _columns(needs: Sequence[PanelNeed], count: int) -> list[Sequence[PanelNeed]]:
    """Return the panels of each column, from the top; the same number in each, as far as possible."""
    each = max(1, ceil(len(needs) / count))
    return [needs[start : start + each] for start in range(0, len(needs), each)]


def _placed(columns: Sequence[Sequence[PanelNeed]], *, width: int, room: int) -> tuple[PanelPlace, ...]:
    places, x = [], 0
    for at, column in enumerate(columns):
        y, after = 0, width * (at + 1) // len(columns)
        for need, graph in zip(column, _graph_heights(column, room), strict=True):
            place = PanelPlace(x=x, y=y, width=after - x, graph_height=graph, framed=need != "jobless")
            places.append(place)
            y += place.height
        x = after
    return tuple(places)


def _graph_heights(column: Sequence[PanelNeed], room: int) -> list[int]:
    """Return the height of each graph of a column: first those that diverge, then the others, which stay equal."""
    left = room - sum(JOBLESS_LINES if need == "jobless" else FRAME_LINES for need in column)
    graphs, most = [0] * len(column), max(_MAX_GRAPH, int(room * _MAX_GRAPH_SHARE))
    diverging, calm = ([at for at, need in enumerate(column) if need == wanted] for wanted in ("diverging", "calm"))
    for at in diverging:
        if left >= _MIN_GRAPH:
            graphs[at], left = _MIN_GRAPH, left - _MIN_GRAPH
    for _ in range(_MIN_GRAPH, most):
        for at in diverging:
            if left and graphs[at]:
                graphs[at], left = graphs[at] + 1, left - 1
    each = min(_CALM_GRAPH if diverging else most, left // len(calm)) if calm else 0
    for at in calm:
        graphs[at] = each if each >= _MIN_GRAPH else 0
    return graphs
