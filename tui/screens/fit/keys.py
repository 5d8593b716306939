"""Keys and layout of the fit check. Function keys work while a field is being typed into, letters elsewhere."""

from textual.binding import Binding, BindingType

from ...job.form import ALT_DIGIT_CHARACTERS

FIT_KEYS: list[BindingType] = [
    Binding(
        "escape", "app.pop_screen", "Back", key_display="Esc",
        tooltip="close; f opens the same job again. Letters and digits are keys unless you type in a field",
    ),
    Binding("f1", "app.help", show=False),
    Binding(
        "f2", "pin", "Pin", key_display="F2",
        tooltip="pin the job as pending: the dashboard shows whether it fits; replaces an earlier version of it",
    ),
    Binding("p", "pin", show=False),
    Binding(
        "f3", "open", "Open", key_display="F3",
        tooltip="open a job file, a configuration of another tool, or a launch line; both can be pasted",
    ),
    Binding("o", "open", show=False),
    Binding(
        "f4", "choose_gpus", "GPUs", key_display="F4", show=False,
        tooltip="choose the GPUs: those of this machine, or any number of a model from the catalogue",
    ),
    Binding("g", "choose_gpus", show=False),
    Binding("f5", "step", "Step", key_display="F5", tooltip="memory over one training step, by component"),
    Binding("t", "step", show=False),
    Binding(
        "f6", "other_pane", "Fixes", key_display="F6",
        tooltip="go to the suggestions or the verdict, and back to the settings",
    ),
    Binding(
        "1", "apply(1)", show=False, key_display="1-9",
        tooltip="apply a suggestion (Alt+digit while you type in a field); Enter applies the highlighted one",
    ),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(2, 10)),
    *(
        Binding(f"alt+{number},{sign}", f"apply({number})", show=False, priority=True)
        for number, sign in enumerate(ALT_DIGIT_CHARACTERS, start=1)
    ),
    Binding(
        "f7", "what_if", "What-if", key_display="F7",
        tooltip="what-if: memory over micro-batch or sequence length; l: the largest that fits, Enter applies it",
    ),
    Binding("i", "what_if", show=False),
    Binding("f8", "save", "Save", key_display="F8", tooltip="save as a job file, for vramtop fit FILE"),
    Binding("w", "save", show=False),
    Binding(
        "f9", "copy", "Copy", key_display="F9",
        tooltip="copy the changed settings, as flags of vramtop fit and as edits of the tool's own file",
    ),
    Binding("y", "copy", show=False),
    Binding(
        "f10", "undo", "Undo", key_display="F10", priority=True,
        tooltip="undo a suggestion, an opened file, or the edits of one field",
    ),
    Binding("u", "undo", show=False),
    Binding(
        "f11", "keep", "Keep A", key_display="F11", show=False,
        tooltip="keep this job as candidate A and compare changes with it; again: drop it (a, where F11 is taken)",
    ),
    Binding("a", "keep", show=False),
    Binding("b", "swap", show=False, tooltip="go back to candidate A; the job as it is now becomes A"),
    Binding(
        "f12", "preflight", "Check", key_display="F12",
        tooltip="preflight: check the driver, model, access tokens, disk, libraries and network that the job needs",
    ),
    Binding("c", "preflight", show=False),
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
