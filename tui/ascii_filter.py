"""The whole screen in ASCII, for terminals and fonts without more: applied to what any widget draws, at the end."""

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from .palette import ASCII_SIGNS

_LINES = {
    **dict.fromkeys("─━═┄┈╌", "-"),
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
_OTHER = {"▶": ">", "►": ">", "◀": "<", "→": ">", "←": "<", "↓": "v", "↑": "^", "°": " ", "–": "-", "—": "-", "•": "*"}
_TABLE = {ord(char): ascii_char for char, ascii_char in (_LINES | _BLOCKS | _OTHER).items()} | ASCII_SIGNS


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """The text with an ASCII sign in place of every other one, as wide as before."""
    if text.isascii():
        return text
    signs = text.translate(_TABLE)
    return "".join(sign if sign.isascii() else "?" * cell_len(sign) for sign in signs)


class AsciiFilter(LineFilter):
    """Turns each drawn line into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's signature
        """The same segments with ASCII text."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
