"""The form of a job: fields that everyone sets, and the groups below which the others are folded."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantFocus
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label

from vramtop.estimator.job.job import Job

from .field_row import FieldRow, field_row_id
from .fields import MODEL, PROGRAM, SERVING, TUNING, JobField, field_value
from .model_choices import ModelChoice, model_choices
from .model_input import ModelInput
from .sharding import GPUS, SHARDING, SHARDING_KEYS
from .state import FormState

_FOLDED, _UNFOLDED = "▸", "▾"


class GroupHeading(Widget, can_focus=True):
    """A heading that folds the fields below it.

    Args:
        text: the title, with the number of changed values.
        id: the widget's id in the DOM.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "fold", "Unfold"),
        Binding("right", "set(True)", show=False),
        Binding("left", "set(False)", show=False),
    ]
    DEFAULT_CSS = """
    GroupHeading { height: 1; color: $text-primary; pointer: pointer; }
    GroupHeading:focus { background: $primary; color: $text; }
    """

    @dataclass
    class Toggled(Message):
        """The fields are to be shown or hidden."""

        heading: "GroupHeading"

    def __init__(self, text: str, *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._text = text
        self.is_open = False
        """True while the fields are shown."""

    def show(self, text: str) -> None:
        """Show another text."""
        if text != self._text:
            self._text = text
            self.refresh()

    def render(self) -> Content:
        """Return the sign and the text; what is changed is bold."""
        title, dot, changed = self._text.partition(" · ")
        sign = _UNFOLDED if self.is_open else _FOLDED
        return Content.assemble(f"{sign} {title}", dot, (changed, "bold"))

    def on_click(self, _: Click) -> None:
        """Fold or unfold."""
        self.action_fold()

    def action_fold(self) -> None:
        """Fold or unfold."""
        self.action_set(not self.is_open)

    def action_set(self, is_open: bool) -> None:
        """Unfold (True) or fold (False)."""
        if is_open != self.is_open:
            self.is_open = is_open
            self.refresh()
            self.post_message(self.Toggled(self))


BASIC = (
    *PROGRAM,
    MODEL,
    TUNING,
    "training.sequence_length",
    "training.micro_batch",
    "training.precision",
    "training.activation_checkpointing",
    SHARDING,
    GPUS,
)
"""What everyone sets, in the order of the form."""
_GROUP_OF_TABLE = {"model": "model", TUNING: "adapters", SERVING: "serving", "parallel": "parallelism"}
_GROUP_OF_KEY = {
    **dict.fromkeys(
        (
            *("training.gradient_accumulation", "training.sequences_per_example", "training.loss"),
            *("training.loss_length", "training.reference_pass"),
        ),
        "batch and loss",
    )
}
_OTHER = "optimizer and memory"
_ORDER = ("adapters", "batch and loss", _OTHER, "model", "parallelism", "serving")


class FieldGroup(msgspec.Struct, frozen=True):
    """Fields below one heading."""

    title: str
    keys: tuple[str, ...]

    @property
    def id(self) -> str:
        """The heading's id in the DOM."""
        return f"group-{self.title.replace(' ', '-')}"

    def heading(self, values: Mapping[str, Any]) -> str:
        """Return the title, with the number of values that differ from their defaults."""
        default = Job()
        count = sum(
            values.get(key) is not None and values[key] != field_value(default, key)
            for key in self.keys
            if key not in SHARDING_KEYS  # the choice of GPUs and sharding shows them
        )
        return f"{self.title} · {count} changed" if count else self.title


def field_groups(fields: Sequence[JobField]) -> tuple[FieldGroup, ...]:
    """Return the groups of the fields that are not basic; a new setting is in the group of its table."""
    members: dict[str, list[str]] = {title: [] for title in _ORDER}
    for field in fields:
        if field.key not in BASIC:
            title = _GROUP_OF_KEY.get(field.key) or _GROUP_OF_TABLE.get(field.table, _OTHER)
            members[title].append(field.key)
    return tuple(FieldGroup(title, tuple(keys)) for title, keys in members.items() if keys)


class _Section(msgspec.Struct, frozen=True):
    """A stretch of the form."""

    keys: tuple[str, ...]
    id: str = ""
    """Id of its heading; empty: it has none."""
    title: str = ""
    group: FieldGroup | None = None
    """The group that its heading folds; None: it is always shown."""


class JobForm(VerticalScroll):
    """The settings of a job; posts ``Edited`` whenever one of them changes.

    Args:
        base: the job at first; its settings without a field are kept.
        origins: where the values were read, by key; None: the job was not read.
        missing: keys that are shown first, and are empty until the user fills them in.
        models: that can be chosen; None: the built-in ones.
        id: the widget's id in the DOM.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", show=False),
        Binding("down,enter", "app.focus_next", show=False),
    ]
    DEFAULT_CSS = """
    JobForm { padding: 0 1; scrollbar-size-vertical: 1; }
    JobForm .heading { width: 1fr; text-style: bold; color: $text-primary; }
    JobForm .heading.-missing { color: $text-warning; }
    """

    @dataclass
    class Edited(Message):
        """The job has changed, or a field is not valid now."""

        key: str
        """The field that was edited; empty: all fields."""

    @dataclass
    class FieldFocused(Message):
        """The focus has moved to another field."""

        key: str | None
        """None: to a heading."""

    def __init__(
        self,
        base: Job,
        *,
        origins: Mapping[str, str] | None = None,
        missing: Sequence[str] = (),
        models: Sequence[ModelChoice] | None = None,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id, can_focus=False)
        self.state = FormState(base, origins=origins, missing=missing)
        """The values of the form."""
        self._models = model_choices() if models is None else tuple(models)
        self._groups = field_groups(self.state.fields)
        self._open: set[str] = set()
        """Titles of the groups that are unfolded."""

    @property
    def job(self) -> Job | None:
        """The job of the form; None while a field is not valid or a missing setting is empty."""
        return self.state.job

    @property
    def problem(self) -> str | None:
        """Why there is no job, in one sentence; None if there is one."""
        return self.state.problem

    @property
    def model_hint(self) -> str | None:
        """What Enter does with what is typed as the model; None where it only goes on."""
        return next((control.hint for control in self.query(ModelInput)), None)

    def fill(self, job: Job, edited: Collection[str] | None = None) -> None:
        """Show the settings of this job, as one edit; see ``FormState.fill``."""
        self.state.fill(job, edited)
        self._show_values()
        self.post_message(self.Edited(""))

    def show_reading(self, job: Job, origins: Mapping[str, str], missing: Sequence[str]) -> None:
        """Show what was read with the model that the user has given; edited fields stay as they are.

        Args:
            job: as read, with the user's edits.
            origins: where the values were read, by key.
            missing: keys that the user has to fill in.
        """
        being_edited = {row.field.key for row in self._rows if row.is_being_edited}
        self.state.take_reading(job, origins, missing, but=being_edited)
        self._show_values(but=being_edited)
        if self.has_focus_within and (focused := self.screen.focused) is not None:
            self.call_after_refresh(focused.scroll_visible, animate=False)

    def set_models(self, models: Sequence[ModelChoice]) -> None:
        """Offer these models from now on."""
        self._models = tuple(models)
        for row in self._rows:
            if row.field.key == MODEL:
                row.set_models(models)

    def show_error(self, key: str, sentence: str) -> None:
        """Show an error below a field that is valid by itself, but not with the others."""
        shown = {row.field.key: row for row in self._rows if row.display}
        row = shown.get(key) or shown.get(MODEL)
        if row is not None:
            row.show_error(sentence)

    def clear_errors(self) -> None:
        """Remove the errors of ``show_error``: the job is valid now."""
        for row in self._rows:
            row.show_error(self.state[row.field.key].error)

    def compose(self) -> ComposeResult:
        """Yield missing settings, then those that were read, then the others; below headings."""
        yield from self._wanted().values()

    @on(FieldRow.Entered)
    def field_entered(self, event: FieldRow.Entered) -> None:
        """Take what was entered, show what follows from it in other fields, and post the form's own message."""
        event.stop()
        changed = self.state.enter(event.key, event.entered)
        self._show_values(but={event.key})
        for row in self._rows:
            if row.field.key == event.key:
                row.show_error(self.state[event.key].error)
        for key in changed:
            self.post_message(self.Edited(key))

    @on(GroupHeading.Toggled)
    def group_toggled(self, event: GroupHeading.Toggled) -> None:
        """Show or hide the fields of a group; they are made when they are shown first."""
        event.stop()
        title = next(group.title for group in self._groups if group.id == event.heading.id)
        self._open = self._open | {title} if event.heading.is_open else self._open - {title}
        self._arrange()

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Go to the next field."""
        event.stop()
        self.screen.focus_next()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Post which field has the focus."""
        rows = [each for each in event.widget.ancestors_with_self if isinstance(each, FieldRow)]
        self.post_message(self.FieldFocused(rows[0].field.key if rows else None))

    @property
    def _rows(self) -> list[FieldRow]:
        return [child for child in self.children if isinstance(child, FieldRow)]

    def _show_values(self, *, but: Collection[str] = ()) -> None:
        """Show the values, their evidence, and the fields that have a meaning with them."""
        for row in self._rows:
            if row.field.key not in but:
                row.show_state()
            row.show_remark(self.state.remark(row.field.key))
        self._arrange()

    def _sections(self) -> Iterator[_Section]:
        """Yield the sections in the order of the form."""
        state, placed = self.state, set[str]()
        if state.origins is not None:
            top, found = state.origin_groups()
            placed.update(top, found)
            if top:
                title = "missing: fill these in" if state.missing else "was missing: your value"
                yield _Section(top, "heading-missing", title)
            if found:
                yield _Section(found, "heading-found", state.found_title)
        basic = tuple(key for key in BASIC if key not in placed)
        typed = "defaults used, or what you typed" if self.state.edited.intersection(basic) else "defaults used"
        yield _Section(basic, "heading-defaults" if placed else "", f"not found: {typed}")
        for group in self._groups:
            if rest := tuple(key for key in group.keys if key not in placed):
                yield _Section(rest, group.id, group.title, group)

    def _wanted(self) -> dict[str, Widget]:
        """Return the headings and rows that are shown, by id and in order; those that do not exist yet are made."""
        existing = {child.id: child for child in self.children}
        shown, values = self.state.shown_keys(), self.state.values
        wanted: dict[str, Widget] = {}
        for section in self._sections():
            keys = [key for key in section.keys if key in shown]
            if not keys:
                continue
            if section.id:
                title = section.group.heading(values) if section.group else section.title
                heading = existing.get(section.id) or _heading(section, title)
                if isinstance(heading, GroupHeading):
                    heading.show(title)
                elif isinstance(heading, Label) and str(heading.content) != title:
                    heading.update(title)
                wanted[section.id] = heading
            if section.group is None or section.group.title in self._open:
                wanted |= {field_row_id(key): existing.get(field_row_id(key)) or self._row(key) for key in keys}
        return wanted

    def _arrange(self) -> None:
        """Show the wanted headings and rows in their order, and hide the others."""
        wanted = self._wanted()
        new = [widget for widget in wanted.values() if widget.parent is None]
        if new:
            self.mount(*new)
        for child in self.children:
            if child.display != (child.id in wanted):
                child.display = child.id in wanted
        places = {name: place for place, name in enumerate(wanted)}
        if [child.id for child in self.children if child.id in places] != list(places):
            self.sort_children(key=lambda child: places.get(child.id or "", len(places)))

    def _row(self, key: str) -> FieldRow:
        models = self._models if key == MODEL else ()
        return FieldRow(self.state[key], remark=self.state.remark(key), models=models)


def _heading(section: _Section, title: str) -> Widget:
    if section.group is not None:
        return GroupHeading(title, id=section.id)
    return Label(title, classes=f"heading -{section.id.partition('-')[2]}", id=section.id, markup=False)
