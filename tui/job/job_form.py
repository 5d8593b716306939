"""A form of all settings of a job, with the evidence of settings that were read and the errors of wrong ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label

from vramtop.estimator.job import ABOUT_THE_MODEL, Job

from .field_row import FieldRow, field_row_id
from .form_fields import (
    ENGINE,
    FIELDS_THAT_HIDE_OTHERS,
    MODEL,
    SERVING,
    TUNING,
    JobField,
    adapter_values,
    build_job,
    field_value,
    job_fields,
    shown_fields,
)

_QUANTIZATION = "lora.quantization"


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
        self._first_missing = missing
        """Those at first: their fields stay where they are."""
        self._read_model = base.model.id
        """The model with which the values were read."""
        self._edited: set[str] = set()
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

    @property
    def edited(self) -> frozenset[str]:
        """Keys of the fields that the user has edited."""
        return frozenset(self._edited)

    @property
    def names_another_model(self) -> bool:
        """True if the user has given another model than the one with which the values were read."""
        return any(row.field.key == MODEL and row.value != self._read_model for row in self._rows)

    @property
    def model(self) -> str | None:
        """The model's name; None while its field is empty or not valid."""
        row = self._row_of(MODEL)
        return None if row.error else row.value

    def edits(self) -> dict[str, Any]:
        """Return the user's valid edits by job key; what the user has emptied or removed, such as ``lora``, is None."""
        rows = {row.field.key: row for row in self._rows}
        valid = [rows[key] for key in self._edited if not rows[key].error]
        edits = {row.field.key: row.value for row in valid if row.value is not None or row.field.optional}
        adapters = adapter_values({key: row.value for key, row in rows.items() if row.field.table == TUNING})
        if edits.pop(TUNING, None) is not None:
            edits[_QUANTIZATION] = None
        if adapters is None:
            kept = {key: value for key, value in edits.items() if not key.startswith(f"{TUNING}.")}
            return {**kept, TUNING: None} if TUNING in self._edited else kept
        if _QUANTIZATION in edits:
            edits[_QUANTIZATION] = adapters["quantization"]
        return edits

    def fill(self, job: Job, edited: Collection[str] | None = None) -> None:
        """Show the settings of this job, as one edit.

        Args:
            job: the job.
            edited: the fields that count as edited by the user; None: those before, and those that change.
        """
        changed = {row.field.key for row in self._rows if row.value != field_value(job, row.field.key)}
        self._base, self._edited = job, self._edited | changed if edited is None else set(edited)
        for row in self._rows:
            row.show(field_value(job, row.field.key))
        self._show_evidence()
        self._update_shown_fields()
        self.post_message(self.Edited(""))

    def show_reading(self, job: Job, origins: Mapping[str, str], missing: Sequence[str]) -> None:
        """Show what was read with the model that the user has given; edited fields stay as they are.

        Args:
            job: as read, with the user's edits.
            origins: where the values were read, by key.
            missing: keys that the user has to fill in.
        """
        self._base, self._origins, self._missing, self._read_model = job, origins, missing, job.model.id
        for row in self._rows:
            if row.field.key not in self._edited and not row.is_being_edited:
                row.show(None if row.field.key in missing else field_value(job, row.field.key))
        self._show_evidence()
        self._arrange()
        self._update_shown_fields()
        if self.has_focus_within and (focused := self.screen.focused) is not None:
            self.call_after_refresh(focused.scroll_visible, animate=False)

    def add_models(self, models: Sequence[str]) -> None:
        """Suggest these models as well."""
        self._row_of(MODEL).add_models(models)

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
        self._row_of(key or MODEL).show_error(sentence)

    def clear_errors(self) -> None:
        """Remove the errors of ``show_error``: the job is valid now."""
        for row in self._rows:
            row.show_error(row.error)

    def compose(self) -> ComposeResult:
        """Yield missing settings, then those that were read, then the others; below headings."""
        if self._origins is None:
            yield from self._tables(self._fields)
            return
        for heading, (text, fields) in self._sections().items():
            yield Label(text, classes=f"heading -{heading}", id=f"heading-{heading}")
            yield from (self._row(field) for field in fields)

    def on_mount(self) -> None:
        """Hide fields without a meaning."""
        self._arrange()
        self._update_shown_fields()

    @on(FieldRow.Edited)
    def field_edited(self, event: FieldRow.Edited) -> None:
        """Post the form's own message."""
        event.stop()
        self._edited.add(event.key)
        if event.key == MODEL:
            self._leave_old_model()
        if event.key in FIELDS_THAT_HIDE_OTHERS:
            self._update_shown_fields()
        self.post_message(self.Edited(event.key))

    @property
    def _rows(self) -> list[FieldRow]:
        return [child for child in self.children if isinstance(child, FieldRow)]

    def _row_of(self, key: str) -> FieldRow:
        return next(row for row in self._rows if row.field.key == key)

    def _sections(self) -> dict[str, tuple[str, list[JobField]]]:
        """Return heading and fields of each section of a job that was read."""
        by_key = {field.key: field for field in self._fields}
        top = [*self._missing, *(key for key in self._first_missing if key in self._edited)]
        missing = [by_key[key] for key in dict.fromkeys(top) if key in by_key]
        read = [f for f in self._fields if f not in missing and self._origin(f.key)]
        rest = [f for f in self._fields if f not in missing and f not in read]
        return {
            "missing": ("missing: fill in", missing),
            "found": (f"found for {self._read_model}" if self._is_about_old_model else "found", read),
            "defaults": ("not found: defaults", rest),
        }

    def _arrange(self) -> None:
        """Put the fields of a job that was read below their headings."""
        if self._origins is None:
            return
        order: list[str] = []
        for heading, (_, fields) in self._sections().items():
            label = self.query_one(f"#heading-{heading}", Label)
            label.display = bool(fields) or heading == "defaults"
            label.set_class(not order, "-first")
            order += [f"heading-{heading}", *(field_row_id(field.key) for field in fields)] if label.display else []
        places = {name: place for place, name in enumerate(order)}
        if [child.id for child in self.children if child.id in places] != order:
            self.sort_children(key=lambda child: places.get(child.id or "", -1))

    @property
    def _is_about_old_model(self) -> bool:
        return self._read_model is not None and self.names_another_model

    def _leave_old_model(self) -> None:
        """Clear what was said of the model before; it is there again if the user types that model again."""
        old = self._is_about_old_model
        for row in self._rows:
            key = row.field.key
            if key in ABOUT_THE_MODEL and key not in self._edited:
                row.show(ABOUT_THE_MODEL[key] if old else field_value(self._base, key))
        self._show_evidence()

    def _show_evidence(self) -> None:
        """Show where the values were read, unless that was with another model."""
        old = self._is_about_old_model
        for row in self._rows:
            row.show_remark("" if old else self._remark(row.field.key))
        if self._origins is not None:
            text, _ = self._sections()["found"]
            self.query_one("#heading-found", Label).update(text)

    def _tables(self, fields: Sequence[JobField]) -> ComposeResult:
        table = ""
        for field in fields:
            if field.table != table:
                yield Label(field.table, classes="heading" if table else "heading -first", id=f"heading-{field.table}")
                table = field.table
            yield self._row(field)

    def _row(self, field: JobField) -> FieldRow:
        value = None if field.key in self._missing else field_value(self._base, field.key)
        models = self._models if field.key == MODEL else ()
        return FieldRow(field, value, remark=self._remark(field.key), models=models)

    def _remark(self, key: str) -> str:
        origin = self._origin(key)
        return f"← {origin}" if origin else ""

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
