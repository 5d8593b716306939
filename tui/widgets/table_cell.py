"""A cell of a table as a table holds it: cut to its column, coloured by how it is meant, no markup."""

from dataclasses import dataclass

from rich.text import Text

from ..draw.cell_text import CellText, Tone
from ..draw.labels import shorten

_TONES: dict[Tone, tuple[str, str]] = {
    "plain": ("", ""),
    "muted": ("dim", "dim"),
    "good": ("#22c55e", "#15803d"),
    "over": ("bold #f87171", "bold #b91c1c"),
    "under": ("bold #fbbf24", "bold #92400e"),
}
"""Styles on dark and on light ground."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A drawn cell."""

    text: str
    style: str

    def __rich__(self) -> Text:
        return Text(self.text, self.style, no_wrap=True, overflow="ellipsis", end="")


def table_cell(cell: CellText, width: int, *, right: bool, dark: bool) -> TableCell:
    """The cell for a column of this width, on dark or light ground."""
    text = shorten(cell.text, width)
    return TableCell(f"{text:>{width}}" if right else text, _TONES[cell.tone][not dark])
