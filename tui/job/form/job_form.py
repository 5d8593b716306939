"""A form of a job's settings: what everyone sets first, the rest folded below headings."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantFocus
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import ABOUT_THE_MODEL

from ...background.latest_only_task import LatestOnlyTask
from ...widgets.choice import Choice
from .fields import (
    FIELDS_THAT_HIDE_OTHERS,
    GPUS,
    MODEL,
    SERVING,
    SHARDING,
    SHARDING_KEYS,
    STRATEGY,
    TUNING,
    FieldInput,
    FieldKind,
    JobField,
    ModelChoice,
    ModelInput,
    adapter_values,
    build_job,
    field_value,
    job_fields,
    model_choices,
    parse_text,
    sharding_words,
    shown_fields,
    shown_sharding,
    value_text,
    with_gpus,
    with_sharding,
)

if TYPE_CHECKING:
    from textual.timer import Timer

# The values of a job form apart from its widgets: typed and read values, their evidence, and errors.


_QUANTIZATION = "lora.quantization"
_TYPED_KINDS: tuple[FieldKind, ...] = ("text", "number", "share", "words")


@dataclass(slots=True)
class FieldState:
    """What a field holds."""

    field: JobField
    value: Any
    """The last valid value; None if none was given yet."""
    text: str = ""
    """What its input shows."""
    error: str | None = None
    """Why the typed text is not valid, in one sentence."""

    def set(self, value: Any) -> None:
        """Take a valid value."""
        self.value, self.text, self.error = value, value_text(value), None


class FormState:
    """The settings of a job in a form.

    Args:
        base: the job at first; its settings without a field are kept.
        origins: where the values were read, by key; None: the job was not read.
        missing: keys that are empty until the user fills them in.
    """

    def __init__(self, base: Job, *, origins: Mapping[str, str] | None, missing: Sequence[str]) -> None:
        self.usual_gpus = 1
        """GPUs that a job is split over when the user chooses a kind of sharding."""
        self._base = base
        self.origins = origins
        self.missing = missing
        self._first_missing = missing
        """Settings that were missing at first: their fields stay where they are."""
        self._read_model = base.model.id
        """The model with which the values were read."""
        self.edited: frozenset[str] = frozenset()
        """Keys of the fields that the user has edited."""
        self.fields = job_fields()
        self._states = {field.key: FieldState(field, None) for field in self.fields}
        for key, state in self._states.items():
            state.set(None if key in missing else field_value(base, key))
        words = sharding_words(self._states[STRATEGY].field.choices)
        self._views = {
            SHARDING: FieldState(JobField(key=SHARDING, label="sharding", kind="choice", choices=words), None),
            GPUS: FieldState(JobField(key=GPUS, label="GPUs", kind="number"), None),
        }
        self._show_sharding()

    def __getitem__(self, key: str) -> FieldState:
        return self._views.get(key) or self._states[key]

    @property
    def job(self) -> Job | None:
        """The job of the form; None while a field is not valid or a missing setting is empty."""
        if self.problem is not None:
            return None
        return build_job(self._base, self.values)

    @property
    def values(self) -> dict[str, Any]:
        """The valid values by job key; None for what is optional and empty."""
        states = self._states.items()
        return {key: state.value for key, state in states if state.value is not None or state.field.optional}

    @property
    def problem(self) -> str | None:
        """Why there is no job, in one sentence; None if there is one."""
        for state in (*self._states.values(), *self._views.values()):
            if state.error:
                return state.error
            if state.value is None and state.field.key in self.missing:
                return f"{state.field.label} is missing; fill it in"
        return None

    @property
    def model(self) -> str | None:
        """The model's name; None while its field is empty or not valid."""
        state = self._states[MODEL]
        return None if state.error else state.value

    @property
    def names_another_model(self) -> bool:
        """True if the user has given another model than the one with which the values were read."""
        return bool(self._states[MODEL].value != self._read_model)

    def edits(self) -> dict[str, Any]:
        """Return the user's valid edits by job key; what the user has emptied or removed, such as ``lora``, is None."""
        valid = [self._states[key] for key in self.edited if not self._states[key].error]
        edits = {each.field.key: each.value for each in valid if each.value is not None or each.field.optional}
        adapters = adapter_values({key: each.value for key, each in self._states.items() if each.field.table == TUNING})
        if edits.pop(TUNING, None) is not None:
            edits[_QUANTIZATION] = None
        if adapters is None:
            kept = {key: value for key, value in edits.items() if not key.startswith(f"{TUNING}.")}
            return {**kept, TUNING: None} if TUNING in self.edited else kept
        if _QUANTIZATION in edits:
            edits[_QUANTIZATION] = adapters["quantization"]
        return edits

    def setting(self, key: str) -> tuple[str, Any] | None:
        """Return the job key and value that a field stands for; None while it is not valid or empty.

        All fields of adapters stand for the key ``lora``, whose value is the whole table or None.
        """
        state = self._states[key]
        if state.error or state.value is None:
            return None
        if state.field.table != TUNING:
            return key, state.value
        table = {each: other.value for each, other in self._states.items() if other.field.table == TUNING}
        return TUNING, adapter_values(table)

    def is_cleared(self, key: str) -> bool:
        """Return True if the user has emptied this field."""
        state = self._states[key]
        return state.field.kind in _TYPED_KINDS and not state.text.strip()

    def enter(self, key: str, entered: Any) -> tuple[str, ...]:
        """Take what the user typed or chose in a field, and return the job keys that it edits; the value may be wrong.

        Args:
            key: of the field.
            entered: the text of an input, the word of a choice, True or False for a flag.
        """
        state = self[key]
        if state.field.kind not in _TYPED_KINDS:
            state.set(entered)
        else:
            state.text = entered
            try:
                state.value, state.error = parse_text(state.field, entered), None
            except InputError as error:
                state.error = error.message
        changed: tuple[str, ...] = (key,)
        if key in self._views:
            changed = SHARDING_KEYS if state.error else self._take_sharding(key)
        elif key in SHARDING_KEYS:
            self._show_sharding()
        self.edited |= set(changed)
        if key == MODEL:
            self._leave_old_model()
        return changed

    def fill(self, job: Job, edited: Collection[str] | None = None) -> None:
        """Take the settings of a job, as one edit.

        Args:
            job: the job.
            edited: the fields that count as edited by the user; None: those before, and those that change.
        """
        changed = {key for key, state in self._states.items() if state.value != field_value(job, key)}
        self._base, self.edited = job, self.edited | changed if edited is None else frozenset(edited)
        for key, state in self._states.items():
            state.set(field_value(job, key))
        self._show_sharding()

    def take_reading(
        self, job: Job, origins: Mapping[str, str], missing: Sequence[str], *, but: Collection[str]
    ) -> None:
        """Take what was read with the model that the user has given; edited fields stay as they are.

        Args:
            job: as read, with the user's edits.
            origins: where the values were read, by key.
            missing: keys that the user has to fill in.
            but: fields that are being edited, which stay too.
        """
        self._base, self.origins, self.missing, self._read_model = job, origins, missing, job.model.id
        for key, state in self._states.items():
            if key not in self.edited and key not in but:
                state.set(None if key in missing else field_value(job, key))
        self._show_sharding()

    def top_keys(self) -> tuple[str, ...]:
        """Return the fields that the user has to fill in, and those that were such until the user did."""
        keys = dict.fromkeys([*self.missing, *(key for key in self._first_missing if key in self.edited)])
        return tuple(key for key in keys if key in self._states)

    def found_keys(self) -> tuple[str, ...]:
        """Return the fields whose values were read; the choice of sharding stands for the keys of the job file."""
        keys = (*(field.key for field in self.fields), SHARDING, GPUS)
        return tuple(key for key in keys if key not in SHARDING_KEYS and self.origin(key))

    def shown_keys(self) -> set[str]:
        """Return the fields that have a meaning with these values."""
        shown = shown_fields({key: self._states[key].value for key in FIELDS_THAT_HIDE_OTHERS}, self.fields)
        return shown | {SHARDING, GPUS}

    def origin(self, key: str) -> str | None:
        """Return where a value was read; None: it was not."""
        origins = self.origins or {}
        if key in self._views:
            keys = (STRATEGY,) if key == SHARDING else SHARDING_KEYS[1:]
            return next((origins[each] for each in keys if each in origins), None)
        if key.startswith(f"{TUNING}.") and TUNING in origins:
            return origins[TUNING]
        if key == TUNING and key not in origins:
            return next((origin for read, origin in origins.items() if read.startswith(f"{TUNING}.")), None)
        return origins.get(key)

    def remark(self, key: str) -> str:
        """Return the evidence of a value, unless that was read with another model; empty: there is none."""
        origin = None if self.is_about_old_model else self.origin(key)
        return f"← {origin}" if origin else ""

    @property
    def found_title(self) -> str:
        """Heading of the values that were read."""
        return f"found for {self._read_model}" if self.is_about_old_model else "found"

    @property
    def is_about_old_model(self) -> bool:
        """True if the values were read with another model than the form names now."""
        return self._read_model is not None and self.names_another_model

    def _leave_old_model(self) -> None:
        """Clear what was said of the model before; it is there again if the user types that model again."""
        old = self.is_about_old_model
        for key, state in self._states.items():
            if key in ABOUT_THE_MODEL and key not in self.edited:
                state.set(ABOUT_THE_MODEL[key] if old else field_value(self._base, key))

    def _take_sharding(self, key: str) -> tuple[str, ...]:
        """Set the job's keys for the sharding and the GPUs that the user has chosen; return those that change."""
        strategy, before = self._states[STRATEGY].value or "none", shown_sharding(self._values_of(SHARDING_KEYS))
        if key == SHARDING:
            values = with_sharding(self[SHARDING].value, gpus=before[GPUS] or 1, usual_gpus=self.usual_gpus)
        else:
            values = with_gpus(self[GPUS].value, strategy=strategy)
        changed = tuple(each for each, value in values.items() if self._states[each].value != value)
        for each in changed:
            self._states[each].set(values[each])
        self._show_sharding()
        return changed or (STRATEGY,)

    def _show_sharding(self) -> None:
        for key, value in shown_sharding(self._values_of(SHARDING_KEYS)).items():
            if self._views[key].value != value or self._views[key].error:
                self._views[key].set(value)

    def _values_of(self, keys: Iterable[str]) -> dict[str, Any]:
        return {key: self._states[key].value for key in keys}


# One setting of a job form: its label, its control, the evidence of its value, and its error.


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
        yield self._control()
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
                    control.keep_closed(self._state.text)
                control.value = self._state.text
            elif isinstance(control, Choice):
                control.choices = self._choices()
                control.value = self._choice_word()

    def show_remark(self, remark: str) -> None:
        """Show other evidence of the value; empty: there is none."""
        self._show_line("remark", remark)

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

    def _control(self) -> Widget:
        state = self._state
        match self.field.kind:
            case "flag" | "choice":
                return Choice(self._choices(), self._choice_word(), classes="control")
            case _ if self.field.key == MODEL:
                return ModelInput(state.text, self._models)
            case _:
                hint = "default" if self.field.optional else "type a value"
                return FieldInput(state.text, placeholder=hint, compact=True, classes="control")

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


# The heading of a group of fields: Enter, space or a click unfolds the fields below it, and folds them again.


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


# Fields that everyone sets, and the groups below which the others are folded.


BASIC = (
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
    ),
}
_OTHER = "optimizer and memory"
_ORDER = ("adapters", "batch and loss", _OTHER, "model", "parallelism", "serving")


@dataclass(frozen=True, slots=True)
class FieldGroup:
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


@dataclass(frozen=True, slots=True)
class _Section:
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
    def is_choosing_model(self) -> bool:
        """True while the list of models is open."""
        return any(control.is_choosing for control in self.query(ModelInput))

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

    def unfold(self, key: str) -> None:
        """Show the field of this key, if it is folded."""
        for group in self._groups:
            if key in group.keys:
                self.query_one(f"#{group.id}", GroupHeading).action_set(True)

    def compose(self) -> ComposeResult:
        """Yield missing settings, then those that were read, then the others; below headings."""
        yield from self._wanted().values()

    @on(FieldRow.Entered)
    def field_entered(self, event: FieldRow.Entered) -> None:
        """Take what was entered, show what follows from it in other fields, and post the form's own message."""
        event.stop()
        changed = self.state.enter(event.key, event.entered)
        self._show_values(but={event.key})
        row = self._row_of(event.key)
        if row is not None:
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

    def _row_of(self, key: str) -> FieldRow | None:
        return next((row for row in self._rows if row.field.key == key), None)

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
            top = state.top_keys()
            found = tuple(key for key in state.found_keys() if key not in top)
            placed.update(top, found)
            if top:
                title = "missing: fill these in" if state.missing else "was missing: as you gave it"
                yield _Section(top, "heading-missing", title)
            if found:
                yield _Section(found, "heading-found", state.found_title)
        basic = tuple(key for key in BASIC if key not in placed)
        yield _Section(basic, "heading-defaults" if placed else "", "not found: defaults used")
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
                wanted[section.id] = existing.get(section.id) or _heading(section, title)
                _retitle(wanted[section.id], title)
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


def _retitle(heading: Widget, title: str) -> None:
    if isinstance(heading, GroupHeading):
        heading.show(title)
    elif isinstance(heading, Label) and str(heading.content) != title:
        heading.update(title)


# Reads a program again when the user gives another model in the form of its job, off the UI thread.


Result = TypeVar("Result")
_DELAY_SECONDS = 0.15
"""Time after the last key until the program is read."""


class FormReading(Generic[Result]):
    """Decides when a program has to be read again, and reads it once the typing pauses.

    A reading of an earlier edit is never shown: every edit until the result arrives starts it anew.

    Args:
        screen: the screen that shows the form.
        on_read: receives what was read, on the UI thread.
        on_error: receives the reason why nothing was, likewise.
    """

    def __init__(
        self, screen: MessagePump, *, on_read: Callable[[Result], object], on_error: Callable[[str], object]
    ) -> None:
        self._screen = screen
        self._on_read = on_read
        self._task = LatestOnlyTask("read again", screen.call_later, self._deliver, on_error)
        self._timer: Timer | None = None
        self.is_due = False
        """True from the edit of the model until what was read with it is there."""

    def start(self, form: JobForm, read: Callable[[Mapping[str, Any]], Result] | None) -> bool:
        """Read again after an edit; return False if the edit does not make that necessary.

        Args:
            form: the edited form.
            read: reads the program with the user's edits, by job key; called off the UI thread. None: it cannot be.
        """
        self._stop()
        self.is_due = read is not None and (self.is_due or form.state.names_another_model)
        if read is None or not self.is_due or form.state.model is None:
            return False

        def submit() -> None:
            edits = form.state.edits()
            self._task.submit(lambda: read(edits))

        self._timer = self._screen.set_timer(_DELAY_SECONDS, submit)
        return True

    def cancel(self) -> None:
        """Forget the edits: another form is shown, or none."""
        self.is_due = False
        self._stop()

    def _stop(self) -> None:
        self._task.cancel()
        if self._timer is not None:
            self._timer.stop()

    def _deliver(self, result: Result) -> object:
        self.is_due = False
        return self._on_read(result)
