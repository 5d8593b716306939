"""Keys of the preflight screen."""

from textual.binding import BindingType

from ...keys import bind

PREFLIGHT_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("fit.preflight", "dismiss", help_text=""),
    bind("preflight.again", "run_again", "Again"),
]
