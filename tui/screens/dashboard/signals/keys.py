"""Keys of the question which signal to send."""

from ....keys import bind

SIGNAL_KEYS = [
    bind("app.back", "leave", "Leave it"),
    bind("signal.leave", "leave"),
    bind("signal.terminate", "send('terminate')", "TERM"),
    bind("signal.interrupt", "send('interrupt')", "INT"),
    bind("signal.kill", "send('kill')", "KILL"),
    bind("list.fold", "app.focus_previous"),
    bind("list.unfold", "app.focus_next", help_text=""),
    bind("list.up", "scroll(-1)"),
    bind("list.down", "scroll(1)"),
]
