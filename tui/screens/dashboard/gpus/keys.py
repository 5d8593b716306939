"""Keys of the GPUs of the dashboard, where they are rows."""

from textual.binding import Binding

from ....keys import bind

GPU_ROW_KEYS = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("list.first", "move(-1000)"),
    bind("list.last", "move(1000)"),
    bind("list.open", "open", "Open"),
]
