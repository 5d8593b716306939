"""The keys of the fit check: function keys work while a field is being typed into, letters elsewhere."""

from textual.binding import Binding, BindingType

from ..widgets.model_input import WITH_ALT

FIT_KEYS: list[BindingType] = [
    Binding("escape", "app.pop_screen", "Back", key_display="Esc"),
    Binding("f1", "app.help", show=False),
    Binding("f2", "pin", "Pin", key_display="F2"),
    Binding("p", "pin", show=False),
    Binding("f3", "open", "Open", key_display="F3"),
    Binding("o", "open", show=False),
    Binding("f4", "focus_machine", "Card", key_display="F4"),
    Binding("g", "focus_machine", show=False),
    Binding("f5", "step", "Step", key_display="F5"),
    Binding("t", "step", show=False),
    Binding("f6", "other_pane", "Fix", key_display="F6"),
    Binding("f7", "what_if", "If", key_display="F7"),
    Binding("i", "what_if", show=False),
    Binding("f8", "save", "Save", key_display="F8"),
    Binding("w", "save", show=False),
    Binding("f9", "copy", "Copy", key_display="F9"),
    Binding("y", "copy", show=False),
    Binding("f10", "undo", "Undo", key_display="F10", priority=True),
    Binding("u", "undo", show=False),
    Binding("f12", "preflight", "Checks", key_display="F12"),
    Binding("c", "preflight", show=False),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(1, 10)),
    *(
        Binding(f"alt+{number},{sign}", f"apply({number})", show=False, priority=True)
        for number, sign in enumerate(WITH_ALT, start=1)
    ),
]
