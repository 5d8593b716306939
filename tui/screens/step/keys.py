"""Keys of the step screen."""

from textual.binding import BindingType

from ...keys import bind

STEP_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("dashboard.step", "dismiss", help_text=""),
    bind("step.open_snapshot", "open_snapshot", "Snapshot"),
]
