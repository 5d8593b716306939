"""The meaning of the letters and signs of a budget's bar, in one line."""

from __future__ import annotations

from textual.content import Content

from ..draw.labels import MUTED
from ..draw.palette import COMPONENTS, OTHER_MEMORY, MemoryKind, on_colour
from .row_table import StaticLines

_BAR_SIGNS: tuple[MemoryKind, ...] = ("slack", "unattributed", "reserved")


def legend_line(width: int, *, bars: bool = True) -> Content:
    """Return the legend, with short words if there is little space; ``bars``: with the signs that only bars have."""
    slack, unattributed, reserved = (f"{mark.letter} {mark.word}" for mark in map(OTHER_MEMORY.__getitem__, _BAR_SIGNS))
    signs = f"  {slack}  ├─┤ range  {unattributed}  {reserved}" if bars else ""
    for short, extra in ((False, signs), (False, ""), (True, "")):
        parts = []
        for mark in COMPONENTS.values():
            word = mark.short_word if short else mark.word
            parts.append(Content.assemble((mark.letter, on_colour(mark.colour)), (f" {word}", MUTED)))
        line = Content.assemble(Content("  ").join(parts), (extra, MUTED))
        if line.cell_length <= width:
            break
    return line.truncate(width)


class Legend(StaticLines):
    """The legend of the budget bars."""

    DEFAULT_CSS = "Legend { height: 1; }"
