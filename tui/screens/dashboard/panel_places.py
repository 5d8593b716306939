"""Arranges the panels of the GPUs: the jobs that diverge get the room."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import ceil
from typing import TYPE_CHECKING, Literal

from ...draw.labels import worst_row
from .panel_shape import FRAME_LINES, JOBLESS_LINES, PanelShape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vramtop.monitor.board.board import GpuRow


PanelNeed = Literal["jobless", "calm", "diverging"]
"""A GPU without a budget; one whose jobs are within their budgets; one with a job that is not."""
MIN_WIDTH = 78
_MIN_GRAPH, _CALM_GRAPH, _MAX_GRAPH = 2, 4, 9
"""Heights of graphs: the lowest, the highest of a calm job above or below one that diverges, and the highest of all."""
_WANTED: Mapping[PanelNeed, int] = {
    "jobless": JOBLESS_LINES,
    "calm": FRAME_LINES + _CALM_GRAPH,
    "diverging": FRAME_LINES + _MAX_GRAPH,
}
"""Lines without graphs, and with graphs of good size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlace(PanelShape):
    """Where a GPU's panel stands, in cells of the area of the GPUs; one with a job has a frame."""

    x: int
    y: int


def panel_needs(gpus: Sequence[GpuRow]) -> list[PanelNeed]:
    """Return how much room each GPU needs; where no GPU has a budget, those with processes get graphs."""
    if all(gpu.expected_bytes is None for gpu in gpus):
        return ["calm" if gpu.rows else "jobless" for gpu in gpus]
    needs: list[PanelNeed] = []
    for gpu in gpus:
        row = worst_row(gpu.rows)
        diverges = row is not None and row.comparison is not None and row.comparison.diverges
        needs.append("diverging" if diverges else "jobless" if gpu.expected_bytes is None else "calm")
    return needs


_MIN_WIDTH_OF_TWO = 160
"""From this width on panels stand side by side."""


@lru_cache(maxsize=4)
def place_panels(needs: tuple[PanelNeed, ...], *, width: int, room: int) -> tuple[PanelPlace, ...] | None:
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
            if ceil(len(needs) / columns) * (FRAME_LINES + graph) <= room:
                return _placed(_columns(needs, columns, room), width=width, room=room)
    return None


_LEAST: Mapping[PanelNeed, int] = {"jobless": JOBLESS_LINES, "calm": FRAME_LINES, "diverging": FRAME_LINES}
_WANTED_WHERE_ROOM_IS_SHORT: Mapping[PanelNeed, int] = {**_WANTED, "calm": FRAME_LINES}


def _columns(needs: tuple[PanelNeed, ...], count: int, room: int) -> list[tuple[PanelNeed, ...]]:
    """Return the panels of each column, from the top, so that the highest column is as low as possible."""
    each = max(1, ceil(len(needs) / count))
    even = [needs[start : start + each] for start in range(0, len(needs), each)]
    ends = combinations(range(1, len(needs)), count - 1)
    splits = ([needs[start:end] for start, end in pairwise((0, *cuts, len(needs)))] for cuts in ends)
    fitting = [split for split in splits if all(_sum(_LEAST, column) <= room for column in split)]
    wanted = _WANTED if _sum(_WANTED, needs) <= room * count else _WANTED_WHERE_ROOM_IS_SHORT
    return min([even, *fitting], key=lambda split: max((_sum(wanted, column) for column in split), default=0))


def _sum(heights: Mapping[PanelNeed, int], column: Sequence[PanelNeed]) -> int:
    return sum(heights[need] for need in column)


_MAX_GRAPH_SHARE = 0.35
"""Share of a tall terminal that one graph may take."""


def _placed(columns: Sequence[Sequence[PanelNeed]], *, width: int, room: int) -> tuple[PanelPlace, ...]:
    most = max(_MAX_GRAPH, int(room * _MAX_GRAPH_SHARE))
    tall = [_diverging_graphs(column, room, most) for column in columns]
    calm_most = min((height for graphs in tall for height in graphs.values()), default=most)
    places, x = [], 0
    for at, (column, graphs) in enumerate(zip(columns, tall, strict=True)):
        left = room - _sum(_LEAST, column) - sum(graphs.values())
        count = sum(need == "calm" for need in column)  # their graphs are equal
        calm = min(calm_most, _CALM_GRAPH if graphs else calm_most, left // max(1, count))
        calm = calm if count and calm >= _MIN_GRAPH else 0
        y, after = 0, width * (at + 1) // len(columns)
        for number, need in enumerate(column):
            height = 0 if need == "jobless" else graphs.get(number, calm)
            place = PanelPlace(x=x, y=y, width=after - x, graph_height=height, framed=need != "jobless")
            places.append(place)
            y += place.height
        x = after
    return tuple(places)


def _diverging_graphs(column: Sequence[PanelNeed], room: int, most: int) -> dict[int, int]:
    """Return the heights of the graphs of what diverges, by its place in the column."""
    left = room - _sum(_LEAST, column)
    graphs = {at: 0 for at, need in enumerate(column) if need == "diverging"}
    for at in graphs:
        if left >= _MIN_GRAPH:
            graphs[at], left = _MIN_GRAPH, left - _MIN_GRAPH
    for _ in range(_MIN_GRAPH, most):
        for at, height in graphs.items():
            if left and height:
                graphs[at], left = graphs[at] + 1, left - 1
    return graphs
