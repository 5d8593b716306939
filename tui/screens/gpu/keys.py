"""Keys of the GPU screen."""

from textual.binding import Binding, BindingType

GPU_KEYS: list[BindingType] = [
    Binding("escape,g", "app.pop_screen", "Back", key_display="Esc"),
    Binding(
        "left", "step(-1)", "GPU", key_display="←/→", priority=True,
        tooltip="the previous GPU, the next GPU; MIG devices come after their GPU",
    ),
    Binding("right", "step(1)", show=False, priority=True),
    Binding(
        "tab", "app.focus_next", show=False, key_display="Tab",
        tooltip="to the figures (↑ ↓ scroll them) and back to the processes",
    ),
]  # fmt: skip
