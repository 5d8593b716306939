"""The keys of the fit check (function keys also while a field is being typed into), and where its parts lie."""

from textual.binding import Binding, BindingType

from ...job.form_inputs import ALT_DIGIT_CHARACTERS

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
        for number, sign in enumerate(ALT_DIGIT_CHARACTERS, start=1)
    ),
]

FIT_LAYOUT = """
FitCheckScreen #title { width: 1fr; padding: 0 1; text-style: bold; background: $panel; }
FitCheckScreen #halves { height: 1fr; layout: horizontal; }
FitCheckScreen #settings { width: 2fr; max-width: 62; border-right: vkey $foreground 20%; }
FitCheckScreen #verdict { width: 3fr; }
FitCheckScreen.-narrow #halves { layout: vertical; }
FitCheckScreen.-narrow #settings {
    width: 1fr; max-width: 100%; height: 2fr; border-right: none; border-bottom: hkey $foreground 20%;
}
FitCheckScreen.-narrow #verdict { width: 1fr; height: 3fr; }
FitCheckScreen #bar { height: 1; }
FitCheckScreen #bar Button { margin: 0 1; }
FitCheckScreen #preflight-mark { width: 1fr; text-align: right; }
FitCheckScreen #machine { width: auto; }
"""
