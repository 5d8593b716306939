"""How all that is drawn reaches the terminal: with its colours, harmless, and in its characters."""

from collections.abc import Sequence

from textual.filter import LineFilter, Monochrome, NoColor

from ..draw.capabilities import Colours
from .colour_filters import PlainFilter, ReadableFilter
from .line_filters import AsciiFilter, InertFilter


class Appearance:
    """The filters that every drawn line goes through.

    Args:
        colours: how many the terminal has.
        ascii_only: draw with ASCII characters only.
    """

    def __init__(self, colours: Colours, *, ascii_only: bool) -> None:
        self.colourless = colours == "none"
        self.colours = PlainFilter() if self.colourless else ReadableFilter(colours)
        self.ascii = AsciiFilter(ascii_only)
        self._inert = InertFilter()

    def filters(self, theirs: Sequence[LineFilter]) -> Sequence[LineFilter]:
        """Ours after Textual's own, of which those for NO_COLOR still use greys."""
        kept = [each for each in theirs if not isinstance(each, (Monochrome, NoColor))]
        return [*kept, self.colours, self._inert, *([self.ascii] if self.ascii.enabled else [])]
