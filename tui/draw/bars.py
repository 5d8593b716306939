"""Stacked bars on the scale of a card, as plain data: a row of cells, each with a character and a colour.

Pure and free of any terminal library, so that the dashboard and the command line draw the very same bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .palette import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.budget.budget import Components


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A stretch of a bar."""

    size_bytes: int
    char: str
    """The character that fills it; with colour absent it tells the parts apart."""
    colour: str | None = None
    min_one_cell: bool = False
    """It gets a cell however small it is, unless it is nothing; that moves the ends of those after it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One character of a drawn bar; ``colour`` None: the terminal's own."""

    char: str
    colour: str | None = None
    ground: str | None = None
    """The colour behind the character."""


def draw_bar(parts: Iterable[BarSegment], *, scale_bytes: int, width: int, empty: str = " ") -> list[Cell]:
    """Draw the parts end to end.

    Each part ends where the sum so far ends on the scale, rounded to a cell, so the error never adds up; parts of less
    than half a cell may not be seen, unless they are kept. What goes beyond the scale is cut at its end.

    Args:
        parts: from left to right.
        scale_bytes: what the full width stands for.
        width: cells.
        empty: the character of the cells after the last part.
    """
    cells: list[Cell] = []
    total = 0
    for part in parts:
        if part.size_bytes <= 0:
            continue
        total += part.size_bytes
        least = len(cells) + 1 if part.min_one_cell else 0
        end = min(width, max(least, round(total * width / scale_bytes)))
        cells.extend(Cell(part.char, part.colour) for _ in range(end - len(cells)))
    cells.extend(Cell(empty) for _ in range(width - len(cells)))
    return cells


def component_segments(components: Components) -> list[BarSegment]:
    """A budget's components as parts, each with its letter and colour."""
    return [BarSegment(size, COMPONENTS[name].letter, COMPONENTS[name].colour) for name, size in components.items()]


def mark_range(
    cells: Sequence[Cell], *, low_bytes: int, high_bytes: int, scale_bytes: int, ascii_only: bool = False
) -> list[Cell]:
    """Draw ``├──┤`` from low to high over a bar's empty end and over its last part.

    Where the range ends beyond the scale, its end is an arrow.
    """
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
    """Neighbouring cells of one colour joined: (text, colour)."""
    joined: list[tuple[str, str | None]] = []
    for cell in cells:
        if joined and joined[-1][1] == cell.colour:
            joined[-1] = (joined[-1][0] + cell.char, cell.colour)
        else:
            joined.append((cell.char, cell.colour))
    return joined
