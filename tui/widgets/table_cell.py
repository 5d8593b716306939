"""A cell of a table: cut to its column, coloured by its tone, without markup."""

from dataclasses import dataclass

from rich.text import Text

from ..draw import CellText, Tone, shorten

_TONE_STYLES: dict[Tone, tuple[str, str]] = {
    "plain": ("", ""),
    "muted": ("dim", "dim"),
    "good": ("#22c55e", "#15803d"),
    "over": ("bold #f87171", "bold #b91c1c"),
    "under": ("bold #fbbf24", "bold #92400e"),
}
"""Styles on dark and on light ground, by tone."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A drawn cell."""

    text: str
    style: str

    def __rich__(self) -> Text:
        return Text(self.text, self.style, no_wrap=True, overflow="ellipsis", end="")


def table_cell(cell: CellText, width: int, *, right: bool, dark: bool) -> TableCell:
    """Return the cell for a column of this width, on dark or light ground."""
    text = shorten(cell.text, width)
    return TableCell(f"{text:>{width}}" if right else text, _TONE_STYLES[cell.tone][not dark])
