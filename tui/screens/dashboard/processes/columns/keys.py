"""Keys of the choice of columns."""

from .....keys import bind

COLUMN_KEYS = [
    bind("columns.keep", "keep", "Keep"),
    bind("processes.columns", "keep", help_text=""),
    bind("app.back", "cancel", "Cancel"),
    bind("columns.switch", "switch", "On/off"),
    bind("columns.more_important", "shift(-1)", "More important"),
    bind("columns.less_important", "shift(1)", "Less important"),
    bind("columns.default", "default", "Default"),
    bind("list.up", "cursor(-1)"),
    bind("list.down", "cursor(1)"),
]
