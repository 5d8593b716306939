"""Stacked bars as plain data: rows of cells, with a label in each segment that has room for one.

No terminal library is used, so that the dashboard and the command line draw the same bar.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from .palette import COMPONENTS, OTHER_MEMORY, MemoryKind, colour_of, component_mark, ink_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.budget import Budget, Components

PAINTED = " "
"""The fill of a segment whose ground has its colour."""
HATCHED = "╱"
"""The fill of a segment that is uncertain: its job's settings are guessed."""
SEPARATING_LINE = "▏"
"""At the left edge of a painted segment, in the colour of its letters."""


class BarSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a bar."""

    size_bytes: int
    colour: str | None = None
    fill: str = PAINTED
    """The character that fills it; ``PAINTED``: its colour."""
    labels: tuple[str, ...] = ()
    """What is written in it, in characters of one cell: the first for which there is room."""
    end_label: str = ""
    """Written at its right end if there is room."""
    min_one_cell: bool = False
    """It gets at least one cell unless it is empty, which may move the segments after it."""

    @property
    def is_labelled(self) -> bool:
        """True if lines separate it from its neighbours; other segments differ in their fill."""
        return self.fill in (PAINTED, HATCHED)


class Cell(msgspec.Struct, frozen=True):
    """One character of a drawing; a colour of None is the terminal's own."""

    char: str
    colour: str | None = None
    """The colour of the character."""
    ground: str | None = None
    """The colour behind the character."""


def inked(char: str, ground: str | None) -> Cell:
    """Return a cell with a character that is readable on its ground."""
    return Cell(char, ground and ink_on(ground), ground)


BarRange = tuple[int, int]
"""The lowest and the highest bytes of a budget, drawn over its bar: ``├──┤``."""
_OUTLINE = "│"


def draw_bar(
    segments: Iterable[BarSegment],
    *,
    scale_bytes: int,
    width: int,
    empty: str = " ",
    marked: BarRange | None = None,
    label_end: int | None = None,
    outlined: bool = False,
) -> list[Cell]:
    """Draw the segments end to end.

    Each segment ends where the sum so far ends on the scale, rounded to a cell, so that rounding errors do not add up.
    A segment of less than half a cell may get none. The bar is cut at the end of the scale.

    Args:
        segments: from left to right.
        scale_bytes: bytes of the full width.
        width: in cells.
        empty: the character of the cells after the last segment.
        marked: a range to draw over the bar; labels stand left of it.
        label_end: the cell at which labels end; None: the last one.
        outlined: there is no colour, so that lines are needed around the segments.
    """
    text_end = width if label_end is None else label_end
    text_end = text_end if marked is None else min(text_end, _range_cells(marked, scale_bytes, width)[0])
    cells: list[Cell] = []
    total, open_outline, touches = 0, False, False
    for segment in segments:
        if segment.size_bytes <= 0:
            continue
        total += segment.size_bytes
        min_end = len(cells) + 1 if segment.min_one_cell else 0
        start, end = len(cells), min(width, max(min_end, round(total * width / scale_bytes)))
        if end <= start:
            continue
        line = SEPARATING_LINE if touches and end - start > 1 else ""
        if outlined or segment.fill == HATCHED or open_outline:
            line = _OUTLINE
        cells += _filled(segment, start, end, text_end, line if segment.is_labelled else "")
        if open_outline and not segment.is_labelled:
            cells[start] = Cell(_OUTLINE)
        touches, open_outline = segment.fill == PAINTED, segment.is_labelled and (outlined or segment.fill == HATCHED)
    rest = [Cell(empty)] * (width - len(cells))
    if rest and open_outline:
        rest[0] = Cell(_OUTLINE)
    return _with_range([*cells, *rest], marked, scale_bytes)


def component_segments(
    components: Components, *, budget: Budget | None = None, uncertain: bool = False
) -> list[BarSegment]:
    """Return one segment for each component.

    Args:
        components: of a budget, or a sum.
        budget: whose words they have; None: those of training.
        uncertain: settings of a job are guessed.
    """
    segments = []
    for name, size in components.items():
        gib = format_gib(size)
        mark = COMPONENTS[name] if budget is None else component_mark(name, budget)
        labels = (f"{mark.word} {gib}", f"{mark.short_word} {gib}", mark.short_word, mark.letter)
        fill = HATCHED if uncertain else PAINTED
        segments.append(BarSegment(size_bytes=size, colour=mark.colour, fill=fill, labels=labels))
    return segments


def memory_segment(kind: MemoryKind, size_bytes: int, *, min_one_cell: bool = False) -> BarSegment:
    """Return a segment of memory that is no component of a budget."""
    mark = OTHER_MEMORY[kind]
    if kind == "held":
        words = (f"{mark.word} {format_gib(size_bytes)}", mark.word)
        return BarSegment(size_bytes=size_bytes, colour=mark.colour, labels=words, min_one_cell=min_one_cell)
    return BarSegment(size_bytes=size_bytes, colour=mark.colour, fill=mark.letter, min_one_cell=min_one_cell)


def split_beyond(segments: Iterable[BarSegment], limit_bytes: int, end_label: str = "") -> list[BarSegment]:
    """Return the segments up to a limit, and everything beyond it as one segment in the colour for that."""
    kept, left, beyond = [], limit_bytes, 0
    for segment in segments:
        within = min(max(0, left), segment.size_bytes)
        left -= segment.size_bytes
        beyond += segment.size_bytes - within
        kept.append(segment if within == segment.size_bytes else replace(segment, size_bytes=within))
    return [*kept, beyond_segment(beyond, end_label)] if beyond else kept


def beyond_segment(size_bytes: int, end_label: str = "") -> BarSegment:
    """Return memory beyond a budget, with its size at its end."""
    return BarSegment(size_bytes=size_bytes, colour=colour_of("bad"), end_label=end_label, min_one_cell=True)


_colours = attrgetter("colour", "ground")


def cell_runs(cells: Sequence[Cell]) -> list[tuple[str, str | None, str | None]]:
    """Join neighbouring cells of the same colours: (text, colour, ground)."""
    return [("".join([cell.char for cell in run]), *colours) for colours, run in groupby(cells, key=_colours)]


def _filled(segment: BarSegment, start: int, end: int, text_end: int, line: str) -> list[Cell]:
    """Return the cells of a segment: a line at its left, its label, its fill, and the label at its end."""
    size = end - start - len(line)
    room = min(end, text_end) - start - len(line)
    margin = 0 if line in {"|", _OUTLINE} else 1
    text = next((label for label in segment.labels if len(label) + margin * (len(label) > 1) <= room), "")
    text = f" {text}" if text and not line and len(text) + 1 < room else text
    text = f"{text} " if text and segment.fill == HATCHED and len(text) < size else text
    gap = size - len(text) - len(segment.end_label)
    tail = segment.end_label if segment.end_label and gap >= bool(text) else ""
    chars = f"{line}{text}{segment.fill * (size - len(text) - len(tail))}{tail}"
    if segment.fill != PAINTED or segment.colour is None:
        return [Cell(char, segment.colour) for char in chars]
    return [inked(char, segment.colour) for char in chars]


def _range_cells(marked: BarRange, scale_bytes: int, width: int) -> tuple[int, int]:
    low, high = (round(size * width / scale_bytes) for size in marked)
    first = max(0, min(width - 1, low))
    return first, min(width - 1, max(first, high - 1))


def _with_range(cells: list[Cell], marked: BarRange | None, scale_bytes: int) -> list[Cell]:
    """Draw the range over a bar, whose colours stay visible; it ends in an arrow if it goes beyond the scale."""
    if marked is None or not cells:
        return cells
    first, last = _range_cells(marked, scale_bytes, len(cells))
    end = "▶" if marked[1] > scale_bytes else "┤"
    for at, char in enumerate(["├", *"─" * (last - first - 1), end] if last > first else [end], start=first):
        cells[at] = inked(char, cells[at].ground)
    return cells
