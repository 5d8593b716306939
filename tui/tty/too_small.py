"""The screen of a terminal that is too small for any other screen."""

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Static

from ..keys import shown_key

MIN_SIZE = Size(40, 10)
"""In a smaller terminal no screen has room for its first line and its keys."""


class TooSmallScreen(Screen[None]):
    """One sentence with the size that is needed."""

    DEFAULT_CSS = """
    TooSmallScreen { overflow: hidden; }
    TooSmallScreen Static { width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """The sentence."""
        yield Static(id="sentence", markup=False)

    def on_resize(self) -> None:
        """Write the size that is there and the size that is needed."""
        width, height = self.size
        needed = f"{MIN_SIZE.width} x {MIN_SIZE.height}"
        self.query_one(Static).update(
            f"too small: {width} x {height} here, vramtop needs {needed}; {shown_key('app.quit')} quits"
        )
