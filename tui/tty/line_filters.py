"""What is done to every drawn line at the end, whatever widget drew it: made harmless, and turned into ASCII."""

from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor

from vramtop.monitor.host.plain_text import INVISIBLE_CHARACTERS

from ..draw.capabilities import ColourDepth
from ..draw.palette import ASCII_SIGNS
from .colour_filters import PlainFilter, ReadableFilter

_LINES = {
    **dict.fromkeys("─┄┈╌", "-"),
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
_OTHER = {"━": "=", "═": "=", "°": " ", "–": "-", "—": "-", "•": "*"}
_TABLE = {ord(char): ascii_char for char, ascii_char in (_LINES | _BLOCKS | _ARROWS | _OTHER).items()} | ASCII_SIGNS


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """The text with an ASCII sign in place of every other one, as wide as before."""
    if text.isascii():
        return text
    signs = text.translate(_TABLE)
    return "".join(sign if sign.isascii() else "?" * cell_len(sign) for sign in signs)


@lru_cache(maxsize=4096)
def to_inert(text: str) -> str:
    """The text without what a terminal could take for a command or a change of direction, as wide as before."""
    if text.isprintable() and (text.isascii() or not INVISIBLE_CHARACTERS.search(text)):
        return text
    return set_cell_size(
        "".join(sign for sign in INVISIBLE_CHARACTERS.sub("", text) if sign.isprintable()), cell_len(text)
    )


class InertFilter(LineFilter):
    """Takes control characters out of each drawn line: commands, names and typed text come from strangers."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's signature
        """The same segments, harmless."""
        return [Segment(to_inert(text), style, control) for text, style, control in segments]


class AsciiFilter(LineFilter):
    """Turns each drawn line into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's signature
        """The same segments with ASCII text."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


class OutputFilters:
    """The filters that every drawn line goes through.

    Args:
        colours: how many the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    def __init__(self, colours: ColourDepth, *, ascii_only: bool) -> None:
        self.colourless = colours == "none"
        self.colour_filter = PlainFilter() if self.colourless else ReadableFilter(colours)
        self.ascii_filter = AsciiFilter(ascii_only)
        self._inert = InertFilter()

    def filters(self, theirs: Sequence[LineFilter]) -> Sequence[LineFilter]:
        """Ours after Textual's own, of which those for NO_COLOR still use greys."""
        kept = [each for each in theirs if not isinstance(each, (Monochrome, NoColor))]
        return [*kept, self.colour_filter, self._inert, *([self.ascii_filter] if self.ascii_filter.enabled else [])]
