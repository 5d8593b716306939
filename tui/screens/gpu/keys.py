"""Keys of the GPU screen."""

from textual.binding import Binding, BindingType

from ...keys import bind
from ..dashboard.processes import PROCESS_KEYS

GPU_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("dashboard.gpu", "app.pop_screen", help_text=""),
    bind("gpu.previous", "step(-1)", group="GPU", priority=True),
    bind("gpu.next", "step(1)", group="GPU", priority=True),
    Binding(
        "tab", "app.focus_next", show=False, key_display="Tab",
        tooltip="to the figures (↑ ↓ scroll them) and back to the processes",
    ),
]  # fmt: skip
GPU_SCREEN_KEYS: list[BindingType] = [
    *GPU_KEYS,
    *(key for key in PROCESS_KEYS if key.action != "view"),
    bind("dashboard.process", "app.open_screen('process')", "Info", show=False),
]
"""With those that act on the processes of the GPU."""
