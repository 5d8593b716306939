"""A cell of a table: cut to its column, coloured by its tone, without markup."""

from dataclasses import dataclass

from rich.text import Text

from ..draw import CellText, Tone, chosen_colour, shorten

_TONE_STYLES: dict[Tone, tuple[str, str]] = {
    "plain": ("", ""),
    "muted": ("dim", "dim"),
    "good": ("#22c55e", "#15803d"),
    "over": ("bold #f87171", "bold #b91c1c"),
    "under": ("bold #fbbf24", "bold #92400e"),
}
"""Styles on dark and on light ground, by tone."""
_NAMES: dict[Tone, tuple[str, str]] = {
    "good": ("on_budget", "good"),
    "over": ("over", "bad"),
    "under": ("under", "warning"),
}
"""Names of the user's colours that a tone has in place of its own."""


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
    style = _TONE_STYLES[cell.tone][not dark]
    if chosen := chosen_colour(*_NAMES.get(cell.tone, ())):
        style = f"{style.rpartition(' ')[0]} {chosen}".strip()
    return TableCell(f"{text:>{width}}" if right else text, style)
