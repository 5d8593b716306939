"""Keys and layout of the attach screen."""

from textual.binding import Binding, BindingType

ATTACH_KEYS: list[BindingType] = [
    Binding("escape", "app.pop_screen", "Back", key_display="Esc"),
    Binding("f3", "choose", "Process", key_display="F3", tooltip="attach to one more process"),
    Binding(
        "i", "app.open_screen('process')", "Info",
        tooltip="the process itself: SM, CPU, RAM, environment, open files, folder, parents, limits",
    ),
    Binding("f5,t", "step", "Step", key_display="F5", tooltip="the training step of this job"),
    Binding(
        "f6", "other_pane", "Settings", key_display="F6",
        tooltip="go to the settings and back; Tab goes from field to field",
    ),
    Binding(
        "f8", "forget", "Forget", key_display="F8", show=False,
        tooltip="forget what you filled in for this command line; clearing a field forgets it, too",
    ),
    Binding(
        "plus,equals_sign", "zoom(-1)", "Zoom", key_display="+/-",
        tooltip="show a shorter or longer time: 1, 5, 15, 60 minutes, the whole run",
    ),
    Binding("minus,underscore", "zoom(1)", "Zoom out", show=False),
    Binding(
        "right_square_bracket", "run(1)", "Runs", key_display="[/]",
        tooltip="the previous run, the next run; ↑ ↓ choose the rank that is drawn, PgUp PgDn scroll what is below",
    ),
    Binding("left_square_bracket", "run(-1)", "Previous run", show=False),
    Binding("x", "dismiss_run", "Dismiss", tooltip="dismiss this run; an ended run stays until then"),
]  # fmt: skip

ATTACH_LAYOUT = """
AttachScreen #title { width: 1fr; height: 1; padding: 0 1; text-style: bold; background: $panel; }
AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; border-right: none; display: none; }
AttachScreen.-narrow.-settings #settings { display: block; }
AttachScreen.-narrow.-settings #memory { display: none; }
AttachScreen.-unreadable #settings { display: none; }
"""
