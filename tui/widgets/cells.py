"""Cells of drawn bars and graphs as what Textual shows: a strip for ``render_line``, content for a ``Static``."""

from collections.abc import Sequence
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip

from ..bars import Cell, runs


def cells_content(cells: Sequence[Cell]) -> Content:
    """The cells as one line of content, to be assembled with words around it."""
    return Content.assemble(*(text if colour is None else (text, colour) for text, colour in runs(cells)))


def cells_strip(cells: Sequence[Cell], ground: Style | None = None) -> Strip:
    """The cells as one line of a widget.

    Args:
        cells: from left to right.
        ground: the widget's own style, under the cells' colours.
    """
    base = ground or Style.null()
    segments = (Segment(text, base if colour is None else base + _foreground(colour)) for text, colour in runs(cells))
    return Strip(segments, len(cells))


@lru_cache(maxsize=64)
def _foreground(colour: str) -> Style:
    return Style(color=colour)
