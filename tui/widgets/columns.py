"""Columns of a table, and which of them fit into a width."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from vramtop.estimator.common.records import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    width: int
    """Cells; the last column of text takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""
    importance: int = 0
    """Columns are taken from the lowest number on, until the line is full; those of 0 always."""


_Column = TypeVar("_Column", bound=Column)


def fit_columns(columns: Sequence[_Column], width: int, gap: int) -> list[_Column]:
    """Return the columns that fit, in order; each takes its width and a gap, and the last text takes the rest."""
    left = width
    chosen = set()
    for column in sorted(columns, key=lambda column: column.importance):
        if column.importance and column.width + gap > left:
            break
        chosen.add(column.name)
        left -= column.width + gap
    shown = [column for column in columns if column.name in chosen]
    widest = next((column for column in reversed(shown) if not column.right), shown[-1])
    return [replace(each, width=max(1, each.width + left)) if each is widest else each for each in shown]
