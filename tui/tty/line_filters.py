"""Filters of every drawn line, whatever widget drew it: harmless text, ASCII, and the order of all filters."""

import re
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.color import Color as RichColor, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from vramtop.monitor.host.plain_text import INVISIBLE_CHARACTERS

from ..draw.colours import BLACK, MIN_DRAWING_CONTRAST, MIN_TEXT_CONTRAST, WHITE, Rgb, contrast, readable
from ..draw.text_output import to_ascii

_WORDS = re.compile(r"\w|[^\W\u2500-\u259f]|[!-~]")
"""A letter, digit or punctuation mark, not a line or block character."""


@lru_cache(maxsize=8192)
def is_text(text: str) -> bool:
    """Return True if there is something to read, not only lines, blocks and blanks."""
    return _WORDS.search(text) is not None


class ReadableFilter(LineFilter):
    """Gives text a contrast of 4.5, and drawings on the plain ground one of 3.

    Where the terminal has fewer colours, Textual sends the nearest ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fitted = lru_cache(maxsize=8192)(self._fit)
        self.dark = True
        """True if the ground is taken for dark where the theme leaves it to the terminal."""
        self.text_contrast = MIN_TEXT_CONTRAST
        """The contrast that text gets, where its ground allows it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with readable colours."""
        ground, dark, contrast_of_text = background.rich_color, self.dark, self.text_contrast
        return [
            segment
            if segment.style is None or segment.control
            else Segment(
                segment.text,
                self._fitted(segment.style, ground, dark, contrast_of_text if is_text(segment.text) else None),
            )
            for segment in segments
        ]

    def _fit(self, style: Style, around: RichColor, dark: bool, text_contrast: float | None) -> Style:
        least = text_contrast or MIN_DRAWING_CONTRAST
        plain = BLACK if dark else WHITE
        behind = around if style.bgcolor is None else style.bgcolor
        ground = plain if behind.is_default else _rgb(behind)
        if style.color is None or _is_named(style.color):
            return style
        if text_contrast is None and style.bgcolor is not None and style.bgcolor != around:
            return style  # parts of a bar are told apart by letters
        fitted = readable(_rgb(style.color), ground, least)
        if behind.is_default:  # a light theme may stand on a dark terminal, which is not known
            on_either = readable(fitted, WHITE if dark else BLACK, MIN_DRAWING_CONTRAST)
            fitted = on_either if contrast(on_either, ground) >= least else fitted
        return style + Style.from_color(RichColor.from_rgb(*fitted))


class ColourlessFilter(LineFilter):
    """Removes all colours, for NO_COLOR and terminals without them; text on a visible ground is reversed."""

    dark = True
    text_contrast = MIN_TEXT_CONTRAST

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without colours."""
        ground = background.rich_color
        return [
            segment
            if segment.style is None
            else Segment(segment.text, _without_colour(segment.style, ground), segment.control)
            for segment in segments
        ]


_MIN_VISIBLE_GROUND_CONTRAST = 1.3
"""Contrast from which a ground stands out: bars, badges and the cursor do, a table's head does not."""
_PLAIN = Style.from_color(RichColor.default(), RichColor.default())


@lru_cache(maxsize=4096)
def _without_colour(style: Style, around: RichColor) -> Style:
    marked = (
        style.bgcolor is not None
        and not _is_named(style.bgcolor)
        and not _is_named(around)
        and contrast(_rgb(style.bgcolor), _rgb(around)) >= _MIN_VISIBLE_GROUND_CONTRAST
    )
    plain = style + _PLAIN
    return plain + Style(reverse=True) if marked else plain


def _is_named(colour: RichColor | None) -> bool:
    """Return True if the colour is left to the terminal: its default, or one of its own 16."""
    return colour is None or colour.type in (ColorType.DEFAULT, ColorType.STANDARD)


def _rgb(colour: RichColor) -> Rgb:
    red, green, blue = colour.get_truecolor()
    return red, green, blue


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
