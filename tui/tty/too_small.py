"""What is shown where the terminal has no room for anything else."""

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Static

MIN_SIZE = Size(40, 10)
"""With less, no screen has room for its first line and what can be done."""


class TooSmallScreen(Screen[None]):
    """One sentence, as much of it as there is room for."""

    DEFAULT_CSS = """
    TooSmallScreen { overflow: hidden; }
    TooSmallScreen Static { width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """The sentence."""
        yield Static(id="sentence", markup=False)

    def on_resize(self) -> None:
        """Say how much is missing."""
        width, height = self.size
        needed = f"{MIN_SIZE.width} x {MIN_SIZE.height}"
        self.query_one(Static).update(f"too small: {width} x {height} here, vramtop needs {needed}; q quits")
