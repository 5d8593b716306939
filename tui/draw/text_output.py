"""Text for plain terminals and pipes: colours if there are any, ASCII if there is nothing else, aligned tables."""

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from textwrap import wrap

import msgspec

from vramtop.estimator.common.secrets import displayed
from vramtop.monitor.host.plain_text import strip_invisible

from .bars import Cell, cell_runs
from .colours import nearest_of_16, nearest_of_256, parse_hex
from .terminal_capabilities import ColourDepth, colour_depth, is_dumb_terminal, locale_is_utf8, use_colour

_GROUNDS_FOR_WHITE_TEXT = (1, 4, 5)
"""Red, blue and magenta, on which black is not readable."""
_MIN_SECRET_CHARACTERS = 12
"""A cell of a table is shorter, and need not be examined: command lines are masked when they are read."""


class TextOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of an output stream, and text made for it."""

    colour_depth: ColourDepth
    ascii_only: bool
    width: int
    unlimited_width: bool = False
    """It is not a terminal, so rows of a table may be of any length."""

    def text(self, text: str) -> str:
        """Return the text as this output can show it, without control characters."""
        text = printable(text)
        return to_ascii(text) if self.ascii_only else text

    def wrapped(self, text: str, *, indent: str = "", further: str | None = None) -> list[str]:
        """Wrap a text to the width of the output; a size stays with its unit.

        Args:
            text: one or more sentences.
            indent: of the first line.
            further: indent of the other lines; None: that of the first.
        """
        whole = wrap(
            self.text(text).replace(" GiB", "\xa0GiB"),
            self.width,
            initial_indent=indent,
            subsequent_indent=indent if further is None else further,
            break_long_words=False,
            break_on_hyphens=False,  # flags stay whole
        )
        return [line.replace("\xa0", " ") for line in whole]

    def paint(self, text: str, colour: str | None, *, bold: bool = False) -> str:
        """Return the text in a colour (``#rrggbb``), if there are colours.

        The nearest of the terminal's own eight colours is used, which the user has chosen to be readable.
        """
        text = self.text(text)
        if self.colour_depth == "none" or (colour is None and not bold):
            return text
        codes = ["1"] if bold else []
        if colour and (number := nearest_of_16(parse_hex(colour))) not in (0, 7):
            codes.append(str(30 + number))
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text

    def bar(self, cells: Sequence[Cell]) -> str:
        """Return a drawn bar, in colours if there are any."""
        return "".join(self._coloured(*run) for run in cell_runs(cells))

    def _coloured(self, text: str, colour: str | None, ground: str | None) -> str:
        text = self.text(text)
        if self.colour_depth == "none" or (colour is None and ground is None):
            return text
        if ground is None or colour is None:
            return self.paint(text, colour)
        if self.colour_depth == "16":
            number = nearest_of_16(parse_hex(ground))
            return f"\x1b[{97 if number in _GROUNDS_FOR_WHITE_TEXT else 30};{40 + number}m{text}\x1b[0m"
        return f"\x1b[{self._code(38, colour)};{self._code(48, ground)}m{text}\x1b[0m"

    def _code(self, kind: int, colour: str) -> str:
        if self.colour_depth == "256":
            return f"{kind};5;{nearest_of_256(parse_hex(colour))}"
        return f"{kind};2;" + ";".join(map(str, parse_hex(colour)))


@lru_cache(maxsize=4096)
def printable(text: str) -> str:
    """Return the text in one line, without control characters and secrets."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(char if char.isprintable() else " " for char in strip_invisible(text))
    return displayed(text) if len(text) >= _MIN_SECRET_CHARACTERS else text


def detect_output(*, ascii_only: bool | None = None) -> TextOutput:
    """Find out if standard output is a terminal, and what it can show by NO_COLOR, FORCE_COLOR, TERM and the locale.

    Args:
        ascii_only: the user's choice; None: as the locale has it.
    """
    stream = sys.stdout
    tty = stream.isatty() and not is_dumb_terminal()
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    width = 100
    if tty:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns
    if ascii_only is None:
        ascii_only = not locale_is_utf8()
    depth: ColourDepth = "none"
    if use_colour(tty=tty):  # it may be forced on a terminal without any
        depth = "16" if (depth := colour_depth()) == "none" else depth
    return TextOutput(
        colour_depth=depth,
        ascii_only=ascii_only or not encoding.startswith("utf"),
        width=max(60, min(width, 160)),
        unlimited_width=not stream.isatty(),
    )


def format_table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return the lines of a table: ``align`` has ``<`` or ``>`` for each column."""
    sizes = [[_width(cell) for cell in row] for row in rows]
    widths = [max(row[column] for row in sizes) for column in range(len(align))] if rows else []
    lines = []
    for row, taken in zip(rows, sizes, strict=True):
        gaps = [" " * (width - size) for width, size in zip(widths, taken, strict=True)]
        cells = (cell + gap if side == "<" else gap + cell for cell, gap, side in zip(row, gaps, align, strict=True))
        lines.append("  ".join(cells).rstrip())
    return lines


def truncate(line: str, width: int) -> str:
    """Cut the line to a width in cells."""
    if line.isascii():
        return line[:width]
    from rich.cells import set_cell_size

    return line if _width(line) <= width else set_cell_size(line, width).rstrip()


def _width(text: str) -> int:
    """Return the cells that a text takes: Chinese characters take two each."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # importing it takes a tenth of the start-up time

    return cell_len(text)


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
_ARROWS = {"▶": ">", "►": ">", "◀": "<", "→": ">", "←": "<", "↓": "v", "↑": "^", "↗": "/"}
_OTHER = dict(zip("┄━═°–—•✓✗▲▼■…×−·≥▸▾╱", "~== --*+x^v#.x-->+-/", strict=True))
_TABLE = str.maketrans(_LINES | _BLOCKS | _ARROWS | _OTHER)


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Replace every non-ASCII character by ASCII characters of the same width."""
    if text.isascii():
        return text
    from rich.cells import cell_len  # what Textual has at hand, and most commands need not

    return "".join(char if char.isascii() else "?" * cell_len(char) for char in text.translate(_TABLE))
