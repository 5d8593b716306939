"""One setting of a job form: its label, its control, the evidence of its value, its error, and its help."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from vramtop.estimator.job.field_help import field_help

from ...widgets.choice import Choice
from .fields import MODEL, TUNING, JobField
from .model_choices import ModelChoice
from .model_input import READS_LINE, ModelInput
from .sharding import GPUS, SHARDING
from .state import FieldState

_NO, _YES = "no", "yes"


class FieldRow(Widget):
    """A setting: its label, its control, the evidence of its value, and its error.

    The row draws the label itself, beside the control: a widget for each label makes a form slow to open.

    Args:
        state: what the field holds; the form changes it.
        remark: the evidence of the value; empty: there is none.
        models: that can be chosen, for the model's field.
    """

    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow .control { width: 1fr; max-width: 46; margin: 0 0 0 24; }
    FieldRow .remark { height: auto; padding: 0 1 0 3; color: $text-muted; }
    FieldRow .error { height: auto; padding: 0 1 0 3; color: $text-error; }
    """

    @dataclass
    class Entered(Message):
        """The user has typed or chosen something, which may be wrong."""

        key: str
        entered: Any
        """The text of an input, the word of a choice, True or False for a flag."""

    def __init__(self, state: FieldState, *, remark: str = "", models: Sequence[ModelChoice] = ()) -> None:
        super().__init__(id=field_row_id(state.field.key))
        self._state = state
        self._shown_lines = {"remark": remark}
        """Text of the lines below the control, by CSS class."""
        self._models = models

    @property
    def field(self) -> JobField:
        """The setting."""
        return self._state.field

    @property
    def value(self) -> Any:
        """The last valid value; None if none was given yet."""
        return self._state.value

    def compose(self) -> ComposeResult:
        """Yield the control, the remark below."""
        state, field = self._state, self.field
        if field.kind in ("flag", "choice"):
            yield Choice(self._choices(), self._choice_word(), classes="control")
        elif field.key == MODEL:
            yield ModelInput(state.text, self._models)
        else:
            hint = "default" if field.optional else "type a value"
            yield Input(state.text, placeholder=hint, compact=True, classes="control")
        for kind, text in self._shown_lines.items():
            if text:
                yield Static(text, classes=kind, markup=False)

    def render(self) -> Content:
        """Return the label, which the control leaves room for."""
        return Content(f" {self.field.label}")

    def show_error(self, sentence: str | None) -> None:
        """Show an error below the field; None removes it."""
        self._show_line("error", f"✗ {sentence}" if sentence else "")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """Pass on what was typed."""
        event.stop()
        if isinstance(event.input, ModelInput):
            event.input.show_matches(event.value)
        if event.value != self._state.text:
            self.post_message(self.Entered(self.field.key, event.value))

    @on(Choice.Changed)
    def chosen(self, event: Choice.Changed) -> None:
        """Pass on what was chosen."""
        event.stop()
        if event.value != self._choice_word():
            self.post_message(self.Entered(self.field.key, event.value == _YES if self._is_flag else event.value))

    def show_state(self) -> None:
        """Show a value that the user has not typed."""
        self.show_error(self._state.error)
        for control in self.query(".control"):
            if isinstance(control, Input) and control.value != self._state.text:
                if isinstance(control, ModelInput):
                    control.taken = self._state.text  # it opens no list for what was not typed
                control.value = self._state.text
            elif isinstance(control, Choice):
                control.choices = self._choices()
                control.value = self._choice_word()

    def show_remark(self, remark: str) -> None:
        """Show other evidence of the value, or what Enter does with a line; empty: there is none."""
        is_line = any(control.is_line for control in self.query(ModelInput))
        self._show_line("remark", READS_LINE if is_line else remark)

    @property
    def is_being_edited(self) -> bool:
        """True if the user has typed a text that is not handled yet."""
        return any(control.value != self._state.text for control in self.query(Input))

    def set_models(self, models: Sequence[ModelChoice]) -> None:
        """Offer these models from now on."""
        self._models = models
        for control in self.query(ModelInput):
            control.set_models(models)

    @property
    def _is_flag(self) -> bool:
        return self.field.kind == "flag"

    def _choice_word(self) -> str:
        value = self._state.value
        return (_YES if value else _NO) if self._is_flag else str(value)

    def _choices(self) -> tuple[str, ...]:
        """Return the words, and the value if it is not among them: a class that a job file names."""
        if self._is_flag:
            return (_NO, _YES)
        word = self._choice_word()
        return self.field.choices if word in self.field.choices else (*self.field.choices, word)

    def _show_line(self, kind: str, text: str) -> None:
        """Show a line below the control; the widget is made when it is needed first, since forms are large."""
        if text == self._shown_lines.get(kind, ""):
            return
        self._shown_lines[kind] = text
        found = self.query(f".{kind}")
        if found:
            line = found.first(Static)
            line.update(text)
            line.display = bool(text)
        elif text and self.is_mounted:
            self.mount(Static(text, classes=kind, markup=False))


def field_row_id(key: str) -> str:
    """Return the DOM id of a setting's row."""
    return "row-" + key.replace(".", "-")


_HELP = {
    "": "Enter folds or unfolds these settings",
    "advice": "1-9 or Enter applies a change, and F10 undoes it; here, letters are keys: ? lists them.",
    TUNING: "full trains all weights; LoRA trains small adapters on frozen weights; QLoRA is LoRA on 4-bit weights.",
    "target.gpu": "The GPUs for the job: those of this machine, or a card of the catalogue; Enter searches.",
    SHARDING: (
        "DDP copies the model to every GPU; FSDP and ZeRO-3 shard weights, gradients and optimizer states; ZeRO-2 "
        "shards gradients and optimizer states."
    ),
    GPUS: "Number of data-parallel GPUs; tensor and pipeline parallelism multiply it.",
}
_MAX_CHOICES = 6


def help_line(key: str) -> str:
    """Return the help of a field in one line; the most important first, since the line may be cut."""
    if key in _HELP:
        return _HELP[key]
    found = field_help(key)
    parts = [found.sentence]
    if 0 < len(found.choices) <= _MAX_CHOICES:
        parts.append(f"One of {', '.join(found.choices)}.")
    if found.default_text is not None:
        parts.append(f"Default: {found.default_text}.")
    return " ".join(filter(None, parts))
