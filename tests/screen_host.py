"""An app that shows one screen, and what is drawn on a screen, for tests."""

from typing import Any

from textual.app import App
from textual.screen import Screen


class ScreenHost(App[None]):
    """Opens the given screen, and records its notifications."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.shown = screen
        self.notices: list[str] = []

    def notify(self, message: str, **options: Any) -> None:
        """Record the message, and show it."""
        self.notices.append(message)
        super().notify(message, **options)

    async def on_mount(self) -> None:
        """Open the screen."""
        await self.push_screen(self.shown)


def screen_lines(app: App[Any]) -> list[str]:
    """Return the lines that are drawn."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def screen_text(app: App[Any]) -> str:
    """Return all that is drawn."""
    return "\n".join(screen_lines(app))
