"""The meaning of the letters and signs of a bar, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from .labels import MUTED
from .palette import COMPONENTS, OTHER_MEMORY, MemoryKind, on_colour

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget


_BAR_SIGNS: tuple[MemoryKind, ...] = ("slack", "unattributed", "reserved")
_OF_PROGRAMS = ("other_models", "inputs")
"""Components that only rehearsed programs have."""


def legend_line(width: int, *, bars: bool = True, budget: Budget | None = None) -> Content:
    """Return the legend, with short words if there is little space.

    Args:
        width: in cells.
        bars: with the signs that only bars have.
        budget: of a rehearsed program, whose own components are named; None: of described jobs.
    """
    phases = budget.phases if budget is not None else ()
    marks = [
        mark
        for name, mark in COMPONENTS.items()
        if name not in _OF_PROGRAMS or any(getattr(phase.components, name) for phase in phases)
    ]
    slack, unattributed, reserved = (f"{mark.letter} {mark.word}" for mark in map(OTHER_MEMORY.__getitem__, _BAR_SIGNS))
    signs = f"  {slack}  ├─┤ range  {unattributed}  {reserved}" if bars else ""
    for short, extra in ((False, signs), (False, ""), (True, "")):
        parts = []
        for mark in marks:
            word = mark.short_word if short else mark.word
            parts.append(Content.assemble((mark.letter, on_colour(mark.colour)), (f" {word}", MUTED)))
        line = Content.assemble(Content("  ").join(parts), (extra, MUTED))
        if line.cell_length <= width:
            break
    return line.truncate(width)
