"""An app that hosts one screen under test, and functions that return the text drawn on a screen."""

from typing import Any

from textual.app import App
from textual.screen import Screen


class ScreenHost(App[None]):
    """Opens the given screen and records notifications."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.shown = screen
        self.notices: list[str] = []

    def notify(self, message: str, **options: Any) -> None:
        """Record the message and show it."""
        self.notices.append(message)
        super().notify(message, **options)

    async def on_mount(self) -> None:
        """Push the screen."""
        await self.push_screen(self.shown)


def screen_lines(app: App[Any]) -> list[str]:
    """Return the text of each line of the current screen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def screen_text(app: App[Any]) -> str:
    """Return the text of the current screen."""
    return "\n".join(screen_lines(app))
