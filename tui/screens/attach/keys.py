"""Keys and layout of the attach screen."""

from textual.binding import BindingType

from ...keys import bind

ATTACH_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("attach.choose", "choose", "Process"),
    bind(
        "dashboard.process", "app.open_screen('process')", "Info",
        help_text="the process itself: SM, CPU, RAM, environment, open files, folder, parents, limits",
    ),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "other_pane", "Settings"),
    bind("attach.forget", "forget", "Forget", show=False),
    bind("attach.zoom_in", "zoom(-1)", group="Zoom"),
    bind("attach.zoom_out", "zoom(1)", group="Zoom"),
    bind("attach.previous_run", "run(-1)", group="Runs"),
    bind("attach.next_run", "run(1)", group="Runs"),
    bind("attach.dismiss", "dismiss_run", "Dismiss"),
]  # fmt: skip

ATTACH_LAYOUT = """
AttachScreen #title { width: 1fr; height: 1; padding: 0 1; text-style: bold; background: $panel; }
AttachScreen.-narrow #settings { width: 1fr; max-width: 100%; border-right: none; display: none; }
AttachScreen.-narrow.-settings #settings { display: block; }
AttachScreen.-narrow.-settings #memory { display: none; }
AttachScreen.-unreadable #settings { display: none; }
"""
