"""Keys and layout of the fit check. Function keys work while a field is being typed into, letters elsewhere."""

from textual.binding import Binding, BindingType

from ...keys import ALT_DIGIT_CHARACTERS, bind

FIT_KEYS: list[BindingType] = [
    bind(
        "app.back", "app.pop_screen", "Back",
        help_text="close; the fit check opens on the same job again. Letters and digits are keys unless you type in a "
        "field",
    ),
    bind("fit.pin", "pin", "Pin"),
    bind("fit.open", "open", "Open"),
    bind("fit.choose_gpus", "choose_gpus", "GPUs", show=False),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "other_pane", "Fixes"),
    Binding(
        "1", "apply(1)", show=False, key_display="1-9",
        tooltip="apply a suggestion (Alt+digit while you type in a field); Enter applies the highlighted one",
    ),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(2, 10)),
    *(
        Binding(f"alt+{number},{sign}", f"apply({number})", show=False, priority=True)
        for number, sign in enumerate(ALT_DIGIT_CHARACTERS, start=1)
    ),
    bind("fit.what_if", "what_if", "What-if"),
    bind("fit.save", "save", "Save"),
    bind("fit.copy", "copy", "Copy"),
    bind("fit.undo", "undo", "Undo"),
    bind("fit.keep", "keep", "Keep A", show=False),
    bind("fit.swap", "swap"),
    bind("fit.preflight", "preflight", "Check"),
]  # fmt: skip

FIT_LAYOUT = """
FitCheckScreen #head { height: 1; background: $panel; }
FitCheckScreen #title { width: 1fr; padding: 0 1; text-style: bold; }
FitCheckScreen #help {
    width: 1fr; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
}
FitCheckScreen #halves { height: 1fr; layout: horizontal; }
FitCheckScreen #settings { width: 2fr; max-width: 62; border-right: vkey $foreground 20%; }
FitCheckScreen #verdict { width: 3fr; }
FitCheckScreen.-narrow #halves { layout: vertical; }
FitCheckScreen.-narrow #settings {
    width: 1fr; max-width: 100%; height: 11; border-right: none; border-bottom: hkey $foreground 20%;
}
FitCheckScreen.-narrow #verdict { width: 1fr; height: 1fr; }
FitCheckScreen #head ActionLabel { margin: 0 1; }
FitCheckScreen #preflight-mark { width: auto; }
"""
