"""Three themes beside Textual's own: dark, light, and high contrast."""

from textual.theme import Theme

from ..tty.terminal_app import TEXT_CONTRAST_VARIABLE

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
