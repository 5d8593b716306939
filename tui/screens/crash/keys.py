"""Keys of the screen that explains a run that ended out of memory."""

from textual.binding import BindingType

from ...keys import bind

CRASH_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("crash.open_file", "open_file", "Open"),
    bind("job.step", "step", "Step", help_text="the predicted step, beside an opened snapshot"),
]
