"""Three themes beside Textual's own: dark, light, and high contrast."""

import os
from collections.abc import Iterable
from functools import partial

from textual.app import SystemCommand
from textual.screen import Screen
from textual.theme import Theme

from ..keys import shown_key
from ..tty.terminal_app import TEXT_CONTRAST_VARIABLE, TerminalApp

DEFAULT_THEME = "vramtop-dark"
THEMES = (
    Theme(
        name=DEFAULT_THEME,
        primary="#4c8df0",
        secondary="#2d4f80",
        accent="#f2ab42",
        warning="#e59a2c",
        error="#e5534b",
        success="#45ad72",
        foreground="#dde4ee",
        background="#0c1016",
        surface="#0f151d",
        panel="#1a2431",
        variables={"footer-key-foreground": "#f2ab42", "border": "#4c5d73"},
    ),
    Theme(
        name="vramtop-light",
        dark=False,
        primary="#1f62c4",
        secondary="#a9c5ec",
        accent="#a1560a",
        warning="#a15c00",
        error="#b3211c",
        success="#1f7047",
        foreground="#16202c",
        background="#fbfcfd",
        surface="#f4f6f9",
        panel="#dfe6ef",
        variables={"footer-key-foreground": "#9a4f06", "border": "#8090a5"},
    ),
    Theme(
        name="vramtop-high-contrast",
        primary="#6cb0ff",
        secondary="#1c4b8f",
        accent="#ffe14d",
        warning="#ffc233",
        error="#ff7b72",
        success="#5ee89a",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#1b1b1b",
        text_alpha=1.0,
        variables={"footer-key-foreground": "#ffe14d", "border": "#ffffff", TEXT_CONTRAST_VARIABLE: "7"},
    ),
)
"""Their grounds are those on which ``tui/draw/palette.py`` stands out. In high contrast all text has a contrast of 7
(WCAG 2.1, level AAA) where the ground allows it."""


class ThemedApp(TerminalApp):
    """An app with these themes."""

    @property
    def available_themes(self) -> dict[str, Theme]:
        """The themes by name: vramtop's, then Textual's. Read before ``__init__`` could register any."""
        return {**{theme.name: theme for theme in THEMES}, **super().available_themes}

    @property
    def current_theme(self) -> Theme:
        """The chosen theme; Textual asks for it with every line that it draws."""
        if self._current_theme is None or self._current_theme.name != self.theme:
            self._current_theme = super().current_theme
        return self._current_theme

    _current_theme: Theme | None = None
    _unknown_theme: str | None = None

    def choose_theme(self, name: str | None) -> None:
        """Use the theme of this name; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
        wanted = self.get_theme(name or os.environ.get("TEXTUAL_THEME") or DEFAULT_THEME)
        self._unknown_theme = name if wanted is None else None
        self.theme = DEFAULT_THEME if wanted is None else wanted.name

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the commands of the command palette: vramtop's themes by name, and Textual's own."""
        for theme in THEMES:
            words = theme.name.removeprefix("vramtop-").capitalize()
            yield SystemCommand(f"{words} theme", f"Draw in {theme.name}", partial(self.choose_theme, theme.name))
        others = super().get_system_commands(screen)  # what covers figures, Escape does not close; ? shows the keys
        yield from (each for each in others if each.title not in ("Keys", "Maximize", "Minimize"))

    def on_mount(self) -> None:
        """Say that there is no theme of the name that was asked for; an app's own ``on_mount`` runs as well."""
        if self._unknown_theme:
            palette = f"the command palette ({shown_key('app.palette')})"
            sentence = f"There is no theme {self._unknown_theme}; {palette} lists the themes."
            self.notify(sentence, severity="warning", markup=False)
