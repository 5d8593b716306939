"""Stacked bars as plain data: a row of cells, each with a character and a colour.

No terminal library is used, so that the dashboard and the command line draw the same bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .palette import COMPONENTS, OTHER_MEMORY, MemoryKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.budget import Components


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of a bar."""

    size_bytes: int
    char: str
    """The character that fills it, and tells it from others where there is no colour."""
    colour: str | None = None
    min_one_cell: bool = False
    """It gets at least one cell unless it is empty, which may move the segments after it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One character of a drawing; a colour of None is the terminal's own."""

    char: str
    colour: str | None = None
    ground: str | None = None
    """The colour behind the character."""


def draw_bar(segments: Iterable[BarSegment], *, scale_bytes: int, width: int, empty: str = " ") -> list[Cell]:
    """Draw the segments end to end.

    Each segment ends where the sum so far ends on the scale, rounded to a cell, so that rounding errors do not add up.
    A segment of less than half a cell may get none. The bar is cut at the end of the scale.

    Args:
        segments: from left to right.
        scale_bytes: bytes of the full width.
        width: in cells.
        empty: the character of the cells after the last segment.
    """
    cells: list[Cell] = []
    total = 0
    for segment in segments:
        if segment.size_bytes <= 0:
            continue
        total += segment.size_bytes
        min_end = len(cells) + 1 if segment.min_one_cell else 0
        end = min(width, max(min_end, round(total * width / scale_bytes)))
        cells.extend(Cell(segment.char, segment.colour) for _ in range(end - len(cells)))
    cells.extend(Cell(empty) for _ in range(width - len(cells)))
    return cells


def component_segments(components: Components) -> list[BarSegment]:
    """Return one segment for each component of a budget, with its letter and colour."""
    return [BarSegment(size, COMPONENTS[name].letter, COMPONENTS[name].colour) for name, size in components.items()]


def memory_segment(kind: MemoryKind, size_bytes: int, *, min_one_cell: bool = False) -> BarSegment:
    """Return a segment of memory that is no component of a budget."""
    mark = OTHER_MEMORY[kind]
    return BarSegment(size_bytes, mark.letter, mark.colour, min_one_cell)


def mark_range(
    cells: Sequence[Cell], *, low_bytes: int, high_bytes: int, scale_bytes: int, ascii_only: bool = False
) -> list[Cell]:
    """Draw the range ``├──┤`` over a bar; it ends in an arrow if it goes beyond the scale."""
    drawn = list(cells)
    if not drawn:
        return drawn
    width = len(drawn)
    left, line, right, beyond = "[-]>" if ascii_only else "├─┤▶"
    first = min(width - 1, round(low_bytes * width / scale_bytes))
    last = min(width - 1, max(first, round(high_bytes * width / scale_bytes) - 1))
    for at in range(first, last + 1):
        drawn[at] = Cell(line, None)
    drawn[first] = Cell(left, None)
    drawn[last] = Cell(beyond if high_bytes > scale_bytes else right, None)
    return drawn


def colour_runs(cells: Sequence[Cell]) -> list[tuple[str, str | None]]:
    """Join neighbouring cells of the same colour: (text, colour)."""
    joined: list[tuple[str, str | None]] = []
    for cell in cells:
        if joined and joined[-1][1] == cell.colour:
            joined[-1] = (joined[-1][0] + cell.char, cell.colour)
        else:
            joined.append((cell.char, cell.colour))
    return joined
