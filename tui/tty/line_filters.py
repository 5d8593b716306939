"""Filters of every drawn line, whatever widget drew it: harmless text, ASCII, and the order of all filters."""

from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor

from vramtop.monitor.host import INVISIBLE_CHARACTERS

from ..draw import ASCII_SIGNS, ColourDepth
from .colour_filters import ColourlessFilter, ReadableFilter

_LINES = {
    **dict.fromkeys("─┈╌", "-"),
    **dict.fromkeys("│┃║┆┊▏▎▍▌▐▕▊▋▉", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛", "+"),
}
_BLOCKS = {
    **dict.fromkeys("█▇▆", "#"),
    **dict.fromkeys("▅▄▃", ":"),
    **dict.fromkeys("▂▁▔▀", "."),
    "▓": "%",
    "▒": "=",
    "░": ".",
}
_ARROWS = {"▶": ">", "►": ">", "◀": "<", "→": ">", "←": "<", "↓": "v", "↑": "^"}
_OTHER = {"┄": "~", "━": "=", "═": "=", "°": " ", "–": "-", "—": "-", "•": "*"}
_TABLE = {ord(char): ascii_char for char, ascii_char in (_LINES | _BLOCKS | _ARROWS | _OTHER).items()} | ASCII_SIGNS


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Replace every non-ASCII character by ASCII characters of the same width."""
    if text.isascii():
        return text
    chars = text.translate(_TABLE)
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in chars)


@lru_cache(maxsize=4096)
def to_harmless(text: str) -> str:
    """Remove control characters and changes of direction; the text stays as wide as before."""
    if text.isprintable() and (text.isascii() or not INVISIBLE_CHARACTERS.search(text)):
        return text
    visible = "".join(char for char in INVISIBLE_CHARACTERS.sub("", text) if char.isprintable())
    return set_cell_size(visible, cell_len(text))


class ControlCharacterFilter(LineFilter):
    """Removes control characters: process names, command lines and pasted text are untrusted."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's signature
        """Return the segments with harmless text."""
        return [Segment(to_harmless(text), style, control) for text, style, control in segments]


class AsciiFilter(LineFilter):
    """Draws with ASCII characters only."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's signature
        """Return the segments with ASCII text."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


class OutputFilters:
    """The filters that every drawn line goes through.

    Args:
        colours: number of colours that the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    def __init__(self, colours: ColourDepth, *, ascii_only: bool) -> None:
        self.colourless = colours == "none"
        self.colour_filter = ColourlessFilter() if self.colourless else ReadableFilter(colours)
        self.ascii_filter = AsciiFilter(ascii_only)
        self._control_characters = ControlCharacterFilter()

    def combine(self, textual_filters: Sequence[LineFilter]) -> Sequence[LineFilter]:
        """Return Textual's filters, then these; Textual's own for NO_COLOR are left out, since they still use greys."""
        kept = [each for each in textual_filters if not isinstance(each, (Monochrome, NoColor))]
        ascii_filters = [self.ascii_filter] if self.ascii_filter.enabled else []
        return [*kept, self.colour_filter, self._control_characters, *ascii_filters]
