"""Cells of drawn graphs as a strip, which is what a widget's ``render_line`` gives to Textual."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ..draw.bars import Cell


def cells_strip(cells: Sequence[Cell], ground: Style | None = None) -> Strip:
    """The cells as one line of a widget.

    Args:
        cells: from left to right.
        ground: the widget's own style, under the cells' colours.
    """
    base = ground or Style.null()
    runs = groupby(cells, key=lambda cell: (cell.colour, cell.ground))
    segments = (Segment("".join(cell.char for cell in run), base + _style(*colours)) for colours, run in runs)
    return Strip(segments, len(cells))


@lru_cache(maxsize=64)
def _style(colour: str | None, ground: str | None) -> Style:
    return Style(color=colour, bgcolor=ground)
