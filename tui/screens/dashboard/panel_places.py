"""Arranges the panels of the GPUs in columns; those with graphs have graphs of one height."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from vramtop.monitor.board.board import GpuRow

from ...draw.labels import worst_row
from .panel_shape import FRAME_LINES, JOBLESS_LINES, PanelShape

MIN_WIDTH = 78
_MIN_GRAPH, _MAX_GRAPH = 2, 9
"""Heights of graphs: the lowest, and the highest in a terminal that is not tall."""
_MAX_GRAPH_SHARE = 0.35
"""Share of a tall terminal that one graph may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlace(PanelShape):
    """Where a GPU's panel stands, in cells of the area of the GPUs; one with a job has a frame."""

    x: int
    y: int


def framed_panels(gpus: Sequence[GpuRow]) -> list[bool]:
    """Return for each GPU whether its panel has a frame and a graph; without any budget, those with processes have."""
    if all(gpu.expected_bytes is None for gpu in gpus):
        return [bool(gpu.rows) for gpu in gpus]
    worst = [(gpu, worst_row(gpu.rows)) for gpu in gpus]
    return [
        gpu.expected_bytes is not None or bool(row and row.comparison and row.comparison.diverges) for gpu, row in worst
    ]


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
    most = max(1, min(len(framed), width // MIN_WIDTH))
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
            left = room - count * FRAME_LINES - (len(column) - count) * JOBLESS_LINES
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
