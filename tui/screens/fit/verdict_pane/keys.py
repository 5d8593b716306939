"""Keys of the suggestions."""

from textual.binding import Binding, BindingType

from ....keys import bind

SUGGESTION_KEYS: list[BindingType] = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("fit.apply", "apply", "Apply"),
]
