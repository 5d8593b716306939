"""One setting of a job form: its label, its control, the evidence of its value, and its error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from vramtop.estimator.common import InputError

from ..widgets import Choice
from .form_fields import MODEL, JobField, parse_text, value_text
from .form_inputs import FieldInput, ModelInput, ModelSuggester

_MAX_SUGGESTIONS = 6
_NO, _YES = "no", "yes"


class FieldRow(Widget):
    """A setting: its label, its control, the evidence of its value, and its error.

    Args:
        field: the setting.
        value: at first; None: none is given yet.
        remark: the evidence of the value; empty: there is none.
        models: names to suggest for the model.
    """

    DEFAULT_CSS = """
    FieldRow { layout: grid; grid-size: 2; grid-columns: 26 1fr; grid-rows: auto; height: auto; }
    FieldRow Label { padding: 0 1; }
    FieldRow .control { width: 1fr; max-width: 46; }
    FieldRow .remark { column-span: 2; height: auto; padding: 0 1 0 3; color: $text-muted; }
    FieldRow .error { column-span: 2; height: auto; padding: 0 1 0 3; color: $text-error; }
    """

    @dataclass
    class Edited(Message):
        """The user has typed or chosen another value, or something that is not a valid value."""

        key: str

    def __init__(self, field: JobField, value: Any, *, remark: str = "", models: Sequence[str] = ()) -> None:
        super().__init__(id=field_row_id(field.key))
        self.field = field
        self.value = value
        """The last valid value; None if none was given yet."""
        self.error: str | None = None
        """Why the typed text is not valid, in one sentence."""
        self._remark = remark
        self._shown_lines = {"remark": remark}
        """Text of the lines below the control, by CSS class."""
        self._models = models

    def compose(self) -> ComposeResult:
        """Yield label and control in one line, the remark below."""
        yield Label(self.field.label)
        yield self._control()
        if self._remark:
            yield Static(self._remark, classes="remark", markup=False)

    def show_error(self, sentence: str | None) -> None:
        """Show an error below the field; None removes it."""
        self._show_line("error", f"✗ {sentence}" if sentence else "")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """Parse the typed text."""
        event.stop()
        if event.value == value_text(self.value) and self.error is None:
            return
        self._suggest(event.value)
        try:
            self._set_value(parse_text(self.field, event.value))
        except InputError as error:
            self.error = error.message
            self.show_error(self.error)
            self.post_message(self.Edited(self.field.key))

    @on(Choice.Changed)
    def chosen(self, event: Choice.Changed) -> None:
        """Use the chosen value."""
        event.stop()
        if event.value != self._choice_word(self.value):
            self._set_value(event.value == _YES if self.field.kind == "flag" else event.value)

    def show(self, value: Any) -> None:
        """Show a value that the user has not typed."""
        self.value, self.error = value, None
        self.show_error(None)
        control = self.query_one(".control")
        if isinstance(control, Input):
            control.value = value_text(value)
        elif isinstance(control, Choice):
            control.value = self._choice_word(value)

    def show_remark(self, remark: str) -> None:
        """Show other evidence of the value; empty: there is none."""
        self._remark = remark
        self._suggest(self.typed_text or "")

    @property
    def typed_text(self) -> str | None:
        """The text in the input; None for a choice."""
        return next((control.value for control in self.query(Input)), None)

    @property
    def is_being_edited(self) -> bool:
        """True if the user has typed a text that is not handled yet."""
        return self.typed_text is not None and self.error is None and self.typed_text != value_text(self.value)

    def add_models(self, models: Sequence[str]) -> None:
        """Suggest these names as well."""
        self._models = tuple(dict.fromkeys([*self._models, *models]))
        for control in self.query(Input):
            control.suggester = ModelSuggester(self._models)

    def _set_value(self, value: Any) -> None:
        self.value, self.error = value, None
        self.show_error(None)
        self.post_message(self.Edited(self.field.key))

    def _choice_word(self, value: Any) -> str:
        return str(value) if self.field.kind == "choice" else _YES if value else _NO

    def _control(self) -> Widget:
        word = self._choice_word(self.value)
        match self.field.kind:
            case "flag":
                return Choice((_NO, _YES), word, classes="control")
            case "choice":
                return Choice(_with_current(self.field.choices, word), word, classes="control")
            case _ if self.field.key == MODEL:
                return ModelInput(value_text(self.value), self._models)
            case _:
                hint = "as usual" if self.field.optional else "type a value"
                return FieldInput(value_text(self.value), placeholder=hint, compact=True, classes="control")

    def _suggest(self, text: str) -> None:
        typed = text.strip().lower()
        near = [name for name in self._models if typed in name.lower()]
        is_incomplete = bool(near) and all(typed != name.lower() for name in near)
        self._show_line("remark", " · ".join(near[:_MAX_SUGGESTIONS]) if is_incomplete else self._remark)

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
        elif text:
            self.mount(Static(text, classes=kind, markup=False))


def _with_current(choices: tuple[str, ...], word: str) -> tuple[str, ...]:
    """Return the choices, and the current word if it is not among them: a class that a job file names."""
    return choices if word in choices else (*choices, word)


def field_row_id(key: str) -> str:
    """Return the DOM id of a setting's row."""
    return "row-" + key.replace(".", "-")
