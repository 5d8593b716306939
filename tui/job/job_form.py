"""A job as a form: every setting typed or chosen, with its evidence where it was read, its error where it is wrong."""

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

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job

from ..widgets.choice import Choice
from .form_fields import (
    DECIDING,
    ENGINE,
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

_MODEL = "model.id"
_SUGGESTIONS = 6
_NO, _YES = "no", "yes"


class FieldRow(Widget):
    """One setting: its label, its control, where its value came from, and what is wrong with it."""

    DEFAULT_CSS = """
    FieldRow { layout: grid; grid-size: 2; grid-columns: 26 1fr; grid-rows: auto; height: auto; }
    FieldRow Label { padding: 0 1; }
    FieldRow .control { width: 1fr; max-width: 46; }
    FieldRow .remark { column-span: 2; height: auto; padding: 0 1 0 3; color: $text-muted; }
    FieldRow .error { column-span: 2; height: auto; padding: 0 1 0 3; color: $text-error; }
    """

    @dataclass
    class Edited(Message):
        """The user has given this setting another value, or something that is none."""

        key: str

    def __init__(self, field: JobField, value: Any, *, remark: str = "", models: Sequence[str] = ()) -> None:
        super().__init__(id=field_row_id(field.key))
        self.field = field
        self.value = value
        """The last good value; None where nothing was given yet."""
        self.error: str | None = None
        """What is wrong with what was typed, in one sentence."""
        self._remark = remark
        self._told = {"remark": remark}
        self._models = models

    def compose(self) -> ComposeResult:
        """Label and control in one line, remarks below."""
        yield Label(self.field.label)
        yield self._control()
        if self._remark:
            yield Static(self._remark, classes="remark", markup=False)

    def complain(self, sentence: str | None) -> None:
        """Write what is wrong under the field; None takes it away."""
        self._tell("error", f"✗ {sentence}" if sentence else "")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """Take in what was typed."""
        event.stop()
        if event.value == value_text(self.value) and self.error is None:
            return
        self._suggest(event.value)
        try:
            self._take(parse_text(self.field, event.value))
        except InputError as error:
            self.error = error.message
            self.complain(self.error)
            self.post_message(self.Edited(self.field.key))

    @on(Choice.Changed)
    def chosen(self, event: Choice.Changed) -> None:
        """Take in what was chosen."""
        event.stop()
        if event.value != self._word(self.value):
            self._take(event.value == _YES if self.field.kind == "flag" else event.value)

    def show(self, value: Any) -> None:
        """Show another value, which the user has not typed."""
        self.value, self.error = value, None
        self.complain(None)
        control = self.query_one(".control")
        if isinstance(control, Input):
            control.value = value_text(value)
        elif isinstance(control, Choice):
            control.value = self._word(value)

    def offer(self, models: Sequence[str]) -> None:
        """Suggest these names too."""
        self._models = tuple(dict.fromkeys([*self._models, *models]))
        for control in self.query(Input):
            control.suggester = ModelSuggester(self._models)

    def _take(self, value: Any) -> None:
        self.value, self.error = value, None
        self.complain(None)
        self.post_message(self.Edited(self.field.key))

    def _word(self, value: Any) -> str:
        return str(value) if self.field.kind == "choice" else _YES if value else _NO

    def _control(self) -> Widget:
        match self.field.kind:
            case "flag":
                return Choice((_NO, _YES), self._word(self.value), classes="control")
            case "choice":
                return Choice(self.field.choices, self._word(self.value), classes="control")
            case _ if self.field.key == _MODEL:
                return ModelInput(value_text(self.value), self._models)
            case _:
                hint = "as usual" if self.field.optional else "type a value"
                return FieldInput(value_text(self.value), placeholder=hint, compact=True, classes="control")

    def _suggest(self, text: str) -> None:
        typed = text.strip().lower()
        near = [name for name in self._models if typed in name.lower()]
        told = bool(near) and all(typed != name.lower() for name in near)
        self._tell("remark", " · ".join(near[:_SUGGESTIONS]) if told else self._remark)

    def _tell(self, kind: str, text: str) -> None:
        """Write a line below the control; it only exists while there is something to write: forms are large."""
        if text == self._told.get(kind, ""):
            return
        self._told[kind] = text
        found = self.query(f".{kind}")
        if found:
            line = found.first(Static)
            line.update(text)
            line.display = bool(text)
        elif text:
            self.mount(Static(text, classes=kind, markup=False))


class JobForm(VerticalScroll):
    """The settings of a job; posts ``Edited`` whenever one of them changes.

    Args:
        base: the values to begin with; settings that have no field stay as they are here.
        origins: where the values were read, by key; None: nothing was read, so nothing is said about it.
        missing: keys that come first and stay empty until the user fills them in.
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
        """The job has changed, or some field makes no sense now."""

        key: str
        """The field that was edited; empty: all of them at once."""

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
        """The job as the form has it; None while a field is wrong or a needed one is empty."""
        rows = self._rows
        if any(row.error or (row.value is None and row.field.key in self._missing) for row in rows):
            return None
        values = {row.field.key: row.value for row in rows if row.value is not None or row.field.optional}
        return build_job(self._base, values)

    def fill(self, job: Job) -> None:
        """Show this job's settings, as one edit."""
        for row in self._rows:
            row.show(field_value(job, row.field.key))
        self._show_what_counts()
        self.post_message(self.Edited(""))

    def offer(self, models: Sequence[str]) -> None:
        """Suggest these models too."""
        self._row_of(_MODEL).offer(models)

    @property
    def wrong(self) -> str | None:
        """Why there is no job, in one sentence; None when there is one."""
        for row in self._rows:
            if row.error:
                return row.error
            if row.value is None and row.field.key in self._missing:
                return f"{row.field.label} is missing; fill it in"
        return None

    def answer(self, key: str) -> tuple[str, Any] | None:
        """What the user says by a field, as a dotted job key and its value; None while that is nothing.

        Adapters are one answer: ``lora``, with all of its fields or None.
        """
        row = self._row_of(key)
        if row.error or row.value is None:
            return None
        if row.field.table != TUNING:
            return key, row.value
        rows = [each for each in self._rows if each.field.table == TUNING]
        return TUNING, adapter_values({each.field.key: each.value for each in rows})

    def is_cleared(self, key: str) -> bool:
        """The user has emptied this field."""
        control = self._row_of(key).query_one(".control")
        return isinstance(control, Input) and not control.value.strip()

    def complain(self, key: str, sentence: str) -> None:
        """Write a sentence under a field about what its value leads to."""
        self._row_of(key or _MODEL).complain(sentence)

    def settle(self) -> None:
        """Take away what ``complain`` wrote: the job makes sense now."""
        for row in self._rows:
            row.complain(row.error)

    def compose(self) -> ComposeResult:
        """Missing settings first, then those that were read, then the rest; under the job file's headings."""
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
        """Hide what does not count."""
        self._show_what_counts()

    @on(FieldRow.Edited)
    def edited(self, event: FieldRow.Edited) -> None:
        """Pass it on as the form's own message."""
        event.stop()
        if event.key in DECIDING:
            self._show_what_counts()
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
        models = self._models if field.key == _MODEL else ()
        return FieldRow(field, value, remark=f"← {origin}" if origin else "", models=models)

    def _origin(self, key: str) -> str | None:
        origins = self._origins or {}
        if key.startswith(f"{TUNING}.") and TUNING in origins:
            return origins[TUNING]
        if key == TUNING and key not in origins:
            return next((origin for read, origin in origins.items() if read.startswith(f"{TUNING}.")), None)
        return origins.get(key)

    def _show_what_counts(self) -> None:
        shown = shown_fields({key: self._row_of(key).value for key in DECIDING}, self._fields)
        for row in self._rows:
            row.display = row.field.key in shown
        for heading in self.query(f"#heading-{SERVING}"):
            heading.display = ENGINE in shown


def field_row_id(key: str) -> str:
    """The DOM id of a setting's row."""
    return "row-" + key.replace(".", "-")
