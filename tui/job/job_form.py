"""A form of all settings of a job, with the evidence of settings that were read and the errors of wrong ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from vramtop.estimator.common import InputError
from vramtop.estimator.job import Job

from ..widgets import Choice
from .form_fields import (
    ENGINE,
    FIELDS_THAT_HIDE_OTHERS,
    SERVING,
    TUNING,
    JobField,
    adapter_values,
    build_job,
    field_value,
    job_fields,
    parse_text,
    shown_fields,
    value_text,
)
from .form_inputs import FieldInput, ModelInput, ModelSuggester

_MODEL_KEY = "model.id"
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
            case _ if self.field.key == _MODEL_KEY:
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


class JobForm(VerticalScroll):
    """The settings of a job; posts ``Edited`` whenever one of them changes.

    Args:
        base: the job at first; its settings without a field are kept.
        origins: where the values were read, by key; None: the job was not read.
        missing: keys that are shown first, and are empty until the user fills them in.
        models: names to suggest for the model.
        id: the widget's id in the DOM.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", show=False),
        Binding("down,enter", "app.focus_next", show=False),
    ]
    DEFAULT_CSS = """
    JobForm { padding: 0 1; scrollbar-size-vertical: 1; }
    JobForm .heading { width: 1fr; text-style: bold; color: $text-primary; margin: 1 0 0 0; }
    JobForm .heading.-first { margin: 0; }
    JobForm .heading.-missing { color: $text-warning; }
    """

    @dataclass
    class Edited(Message):
        """The job has changed, or a field is not valid now."""

        key: str
        """The field that was edited; empty: all fields."""

    def __init__(
        self,
        base: Job,
        *,
        origins: Mapping[str, str] | None = None,
        missing: Sequence[str] = (),
        models: Sequence[str] = (),
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id, can_focus=False)
        self._base = base
        self._origins = origins
        self._missing = missing
        self._models = models
        self._fields = job_fields()

    @property
    def job(self) -> Job | None:
        """The job of the form; None while a field is not valid or a missing setting is empty."""
        rows = self._rows
        if any(row.error or (row.value is None and row.field.key in self._missing) for row in rows):
            return None
        values = {row.field.key: row.value for row in rows if row.value is not None or row.field.optional}
        return build_job(self._base, values)

    def fill(self, job: Job) -> None:
        """Show the settings of this job, as one edit."""
        for row in self._rows:
            row.show(field_value(job, row.field.key))
        self._update_shown_fields()
        self.post_message(self.Edited(""))

    def add_models(self, models: Sequence[str]) -> None:
        """Suggest these models as well."""
        self._row_of(_MODEL_KEY).add_models(models)

    @property
    def problem(self) -> str | None:
        """Why there is no job, in one sentence; None if there is one."""
        for row in self._rows:
            if row.error:
                return row.error
            if row.value is None and row.field.key in self._missing:
                return f"{row.field.label} is missing; fill it in"
        return None

    def setting(self, key: str) -> tuple[str, Any] | None:
        """Return the job key and value that a field stands for; None while it is not valid or empty.

        All fields of adapters stand for the key ``lora``, whose value is the whole table or None.
        """
        row = self._row_of(key)
        if row.error or row.value is None:
            return None
        if row.field.table != TUNING:
            return key, row.value
        rows = [each for each in self._rows if each.field.table == TUNING]
        return TUNING, adapter_values({each.field.key: each.value for each in rows})

    def is_cleared(self, key: str) -> bool:
        """Return True if the user has emptied this field."""
        control = self._row_of(key).query_one(".control")
        return isinstance(control, Input) and not control.value.strip()

    def show_error(self, key: str, sentence: str) -> None:
        """Show an error below a field that is valid by itself, but not with the others."""
        self._row_of(key or _MODEL_KEY).show_error(sentence)

    def clear_errors(self) -> None:
        """Remove the errors of ``show_error``: the job is valid now."""
        for row in self._rows:
            row.show_error(row.error)

    def compose(self) -> ComposeResult:
        """Yield missing settings, then those that were read, then the others; below headings."""
        by_key = {field.key: field for field in self._fields}
        missing = [by_key[key] for key in self._missing if key in by_key]
        read = [f for f in self._fields if f not in missing and self._origin(f.key)]
        rest = [f for f in self._fields if f not in missing and f not in read]
        if missing:
            yield Label("missing: fill in", classes="heading -first -missing")
            yield from (self._row(field) for field in missing)
        if read:
            yield Label("found", classes="heading" if missing else "heading -first")
            yield from (self._row(field) for field in read)
        if self._origins is not None:
            yield Label("not found: defaults", classes="heading")
            yield from (self._row(field) for field in rest)
        else:
            yield from self._tables(rest)

    def on_mount(self) -> None:
        """Hide fields without a meaning."""
        self._update_shown_fields()

    @on(FieldRow.Edited)
    def edited(self, event: FieldRow.Edited) -> None:
        """Post the form's own message."""
        event.stop()
        if event.key in FIELDS_THAT_HIDE_OTHERS:
            self._update_shown_fields()
        self.post_message(self.Edited(event.key))

    @property
    def _rows(self) -> list[FieldRow]:
        return [child for child in self.children if isinstance(child, FieldRow)]

    def _row_of(self, key: str) -> FieldRow:
        return next(row for row in self._rows if row.field.key == key)

    def _tables(self, fields: Sequence[JobField]) -> ComposeResult:
        table = ""
        for field in fields:
            if field.table != table:
                yield Label(field.table, classes="heading" if table else "heading -first", id=f"heading-{field.table}")
                table = field.table
            yield self._row(field)

    def _row(self, field: JobField) -> FieldRow:
        value = None if field.key in self._missing else field_value(self._base, field.key)
        origin = self._origin(field.key)
        models = self._models if field.key == _MODEL_KEY else ()
        return FieldRow(field, value, remark=f"← {origin}" if origin else "", models=models)

    def _origin(self, key: str) -> str | None:
        origins = self._origins or {}
        if key.startswith(f"{TUNING}.") and TUNING in origins:
            return origins[TUNING]
        if key == TUNING and key not in origins:
            return next((origin for read, origin in origins.items() if read.startswith(f"{TUNING}.")), None)
        return origins.get(key)

    def _update_shown_fields(self) -> None:
        shown = shown_fields({key: self._row_of(key).value for key in FIELDS_THAT_HIDE_OTHERS}, self._fields)
        for row in self._rows:
            row.display = row.field.key in shown
        for heading in self.query(f"#heading-{SERVING}"):
            heading.display = ENGINE in shown


def field_row_id(key: str) -> str:
    """Return the DOM id of a setting's row."""
    return "row-" + key.replace(".", "-")
