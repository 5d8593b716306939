"""Keys of the what-if screen."""

from textual.binding import BindingType

from ...keys import bind

WHAT_IF_KEYS: list[BindingType] = [
    bind("app.back", "dismiss(None)", "Back"),
    bind("fit.what_if", "dismiss(None)", help_text=""),
    bind("what_if.axis", "next_setting", "Axis", priority=True),
    bind("what_if.less", "step(-1)", "Less"),
    bind("what_if.more", "step(1)", "More"),
    bind("what_if.much_less", "step(-8)"),
    bind("what_if.much_more", "step(8)"),
    bind("what_if.largest", "largest", "Largest"),
    bind("what_if.reset", "reset", "Now"),
    bind("what_if.apply", "apply", "Apply"),
]
