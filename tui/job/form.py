"""A job as a form: its settings as fields, what they hold, and the widgets that show and change them.

Fields and groups are derived from ``Job``: a new setting needs no change here.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantFocus, Paste
from textual.message import Message
from textual.message_pump import MessagePump
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user
from vramtop.estimator.job.field_help import field_help
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import (
    ABOUT_THE_MODEL,
    choices_of,
    field_of,
    with_changes,
    with_old_model_removed,
)
from vramtop.estimator.job.resolved_job import preparation, quantized_adapters
from vramtop.estimator.job.settings import Inference, Lora, ModelSpec, Parallel, Program, Training

from ..keys import ALT_DIGIT_CHARACTERS, bind
from ..widgets.choice import Choice
from ..widgets.match_list import MatchList
from .flags import LENGTH, tokens

if TYPE_CHECKING:
    from textual.timer import Timer

FieldKind = Literal["text", "number", "share", "choice", "flag", "words"]
"""``share`` is a number above 0, at most 1; ``words`` is a list of words."""

TUNING = "lora"
"""The field that chooses full fine-tuning or adapters; the fields of ``[lora]`` count only with adapters."""
MODEL = "model.id"
FULL, LORA, QLORA = "full", "LoRA", "QLoRA"
SERVING, ENGINE = "inference", "inference.engine"
PROGRAM = ("program.command", "program.python", "program.steps")
"""The fields of a program that is rehearsed, which has no others."""
_MODE = "training.mode"
_TRAINABLE = "training.trainable"
FIELDS_THAT_HIDE_OTHERS = (TUNING, _MODE, ENGINE)

_TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("model", ModelSpec),
    ("training", Training),
    ("lora", Lora),
    ("inference", Inference),
    ("parallel", Parallel),
)
_DEFAULT_TABLES: Mapping[str, msgspec.Struct] = {"lora": Lora(), "inference": Inference(), "program": Program()}
"""The defaults of tables that a job may lack."""
_KEYS_WITHOUT_FIELD = (
    *("model.config", "model.code_folder", "parallel.tensor_plan", "parallel.device_map", "parallel.max_memory"),
    *("training.trainable_parameters", "training.optimizer_options", "target.devices"),
)
_ADAPTERS_WITHOUT_FIELD = tuple(
    field.encode_name for field in msgspec.structs.fields(Lora) if field.type == bool | None
)
_SERVING_KEYS = tuple(f"{SERVING}.{field.encode_name}" for field in msgspec.structs.fields(Inference))
_LABELS = {
    "model.id": "model",
    "training.micro_batch": "micro-batch",
    "training.activation_checkpointing": "checkpointing",
    TUNING: "fine-tuning",
}


class JobField(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is typed or chosen."""

    key: str
    """Dotted job key, such as ``training.micro_batch``; ``lora`` alone for the kind of fine-tuning."""
    label: str
    kind: FieldKind
    choices: tuple[str, ...] = ()
    """The choices; of ``words``: words that replace the whole list, such as ``all-linear``."""
    optional: bool = False
    """It may be empty."""

    @property
    def table(self) -> str:
        """The table of the job file, which is a heading of the form."""
        return self.key.partition(".")[0]


def job_fields() -> tuple[JobField, ...]:
    """Return all fields, in the order of the job file.

    A setting that is on, off or the library's default (``bool | None``) stays as the job has it.
    """
    found = []
    for table, struct in _TABLES:
        if table == TUNING:
            found.append(JobField(key=TUNING, label=_LABELS[TUNING], kind="choice", choices=(FULL, LORA, QLORA)))
        for field in msgspec.structs.fields(struct):
            key = f"{table}.{field.encode_name}"
            if key not in _KEYS_WITHOUT_FIELD and field.type != bool | None:
                found.append(_field(key, field.type))
    return tuple(found)


def field_value(job: Job, key: str) -> Any:
    """Return the job's value of a field; for a table that the job lacks, the default."""
    if key == TUNING:
        return FULL if job.lora is None else LORA if job.lora.quantization == "none" else QLORA
    table, _, name = key.partition(".")
    holder = getattr(job, table)
    value = getattr(_DEFAULT_TABLES[table] if holder is None else holder, name)
    return "nf4" if key == "lora.quantization" and value == "none" else value


def value_text(value: Any) -> str:
    """Return a value as it is typed into a field."""
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else str(value)


def parse_text(field: JobField, text: str) -> Any:
    """Parse what was typed into a field.

    Raises:
        InputError: the text is not a value of this field.
    """
    text = text.strip()
    if not text and field.optional:
        return None
    if field.key == LENGTH and text.lower().endswith(("k", "m")):
        return int(tokens(text)[LENGTH])
    if field.kind == "number":
        return _number(field, text)
    if field.kind == "share":
        return _share(field, text)
    if not text:
        raise InputError(f"{field.label} is empty; type a value")
    if field.kind == "words" and text not in field.choices:
        return [word for word in text.replace(",", " ").split() if word]
    return text


def build_job(base: Job, values: Mapping[str, Any]) -> Job:
    """Return the job with the values of the form.

    Args:
        base: the job whose other settings are kept.
        values: by key of ``JobField``.

    Raises:
        InputError: the values do not make a valid job.
    """
    if base.program is not None:
        return with_changes(base, {key: values[key] for key in PROGRAM if key in values}, where="the form")
    serves = values.get(_MODE, base.training.mode) == "inference"
    unused_tables = {TUNING, *([] if serves else [SERVING])}  # they are kept as they are in the base
    changes = {key: value for key, value in values.items() if key.partition(".")[0] not in unused_tables}
    if serves and base.inference is None and all(field_value(Job(), key) == values.get(key) for key in _SERVING_KEYS):
        changes = {key: value for key, value in changes.items() if key not in _SERVING_KEYS}
    if TUNING in values and (adapters := adapter_values(values)) is not None:
        changes[TUNING] = _without_field(base) | adapters
    elif TUNING in values:
        changes[TUNING] = None
    if changes.get(MODEL, base.model.id) != base.model.id and changes.get(_TRAINABLE) is None:
        changes.pop(_TRAINABLE, None)  # nothing is said of the new model, so it is uncertain what trains
    return with_changes(base, with_old_model_removed(base, changes), where="the form")


def _without_field(base: Job) -> dict[str, Any]:
    """Return what a job says of its adapters that has no field, such as ``kbit_preparation``."""
    fields = (
        [] if base.lora is None else [name for name in _ADAPTERS_WITHOUT_FIELD if getattr(base.lora, name) is not None]
    )
    return {name: getattr(base.lora, name) for name in fields}


def adapter_values(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``[lora]`` table of the form's values; None for full fine-tuning."""
    if values[TUNING] == FULL:
        return None
    adapters = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{TUNING}.")}
    return adapters | {"quantization": "none"} if values[TUNING] == LORA else adapters


def shown_fields(values: Mapping[str, Any], fields: Sequence[JobField]) -> set[str]:
    """Return the keys of the fields that have a meaning with these values.

    Args:
        values: by key, at least those of ``FIELDS_THAT_HIDE_OTHERS``.
        fields: all fields of the form.
    """
    hidden: set[str] = set()
    if values[TUNING] == FULL:
        hidden |= {field.key for field in fields if field.key.startswith(f"{TUNING}.")}
    elif values[TUNING] == LORA:
        hidden.add("lora.quantization")
    if values[_MODE] != "inference":
        hidden.update(_SERVING_KEYS)
    elif values[ENGINE] == "transformers":
        hidden.update(set(_SERVING_KEYS) - {ENGINE})
    return {field.key for field in fields} - hidden


def _field(key: str, kind: Any) -> JobField:
    label = _LABELS.get(key, key.partition(".")[2].replace("_", " "))
    if kind is bool:
        return JobField(key=key, label=label, kind="flag")
    choices = choices_of(kind) if get_origin(kind) in (Literal, Annotated) else ()
    if choices:
        if key == "lora.quantization":
            choices = tuple(choice for choice in choices if choice != "none")
        return JobField(key=key, label=label, kind="choice", choices=choices)
    options = get_args(kind)
    if float in options:
        return JobField(key=key, label=label, kind="share")
    if int in options:
        return JobField(key=key, label=label, kind="number")
    if any(int in get_args(option) for option in options):
        return JobField(key=key, label=label, kind="number", optional=True)
    if any(get_origin(option) is list for option in options):
        alone = tuple(word for option in options if get_origin(option) is Literal for word in get_args(option))
        return JobField(key=key, label=label, kind="words", choices=alone, optional=type(None) in options)
    return JobField(key=key, label=label, kind="text")


def _number(field: JobField, text: str) -> int:
    digits = text.replace("_", "").replace(",", "").replace(" ", "")
    if not digits.isdecimal() or len(digits) > 9 or not int(digits):
        raise InputError(f"{field.label} must be a whole number from 1 to 999,999,999, not {text!r}")
    return int(digits)


def _share(field: JobField, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"{field.label} must be a number above 0, at most 1, such as 0.9, not {text!r}")
    return share


# GPUs and sharding as one choice: the kind of data parallelism, and the number of GPUs.
#
# The job file has three keys for it: the strategy, the ranks that share one copy of the states, and the copies.


SHARDING, GPUS = "sharding", "gpus"
"""Fields of the form that stand for the three keys."""
STRATEGY, SHARD, REPLICATE = "parallel.strategy", "parallel.data_shard", "parallel.data_replicate"
SHARDING_KEYS = (STRATEGY, SHARD, REPLICATE)
_NONE, _COPIES = "none", "ddp"
_WORDS = {
    "none": "none",
    "ddp": "DDP",
    "fsdp2": "FSDP",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "zero1": "ZeRO-1",
    "fsdp1": "FSDP1",
    "megatron-fsdp": "Megatron-FSDP",
}
"""Words of strategies, the usual ones first; a strategy without one has its own name."""
HELP = {
    SHARDING: (
        "DDP copies the model to every GPU; FSDP and ZeRO-3 shard weights, gradients and optimizer states; ZeRO-2 "
        "shards gradients and optimizer states."
    ),
    GPUS: "Number of data-parallel GPUs; tensor and pipeline parallelism multiply it.",
}


def sharding_words(strategies: Sequence[str]) -> tuple[str, ...]:
    """Return the words of these strategies, the usual ones first."""
    usual = [name for name in _WORDS if name in strategies]
    return tuple(sharding_word(name) for name in dict.fromkeys([*usual, *strategies]))


def sharding_word(strategy: str) -> str:
    """Return the word of a strategy of the job file."""
    return _WORDS.get(strategy, strategy)


def shown_sharding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of sharding and the number of GPUs that the job's three values stand for."""
    shard, replicate = values[SHARD], values[REPLICATE]
    gpus = None if shard is None or replicate is None else shard * replicate
    return {SHARDING: None if values[STRATEGY] is None else sharding_word(values[STRATEGY]), GPUS: gpus}


def with_sharding(word: str, *, gpus: int, usual_gpus: int) -> dict[str, Any]:
    """Return the job's values for another kind of sharding; from one GPU it goes to the usual number.

    Args:
        word: the kind.
        gpus: their number until now.
        usual_gpus: number of GPUs that the machine has.
    """
    strategy = next((name for name, known in _WORDS.items() if known == word), word)
    if strategy == _NONE:
        return _values(_NONE, 1)
    return _values(strategy, gpus if gpus > 1 else max(2, usual_gpus))


def with_gpus(count: int, *, strategy: str) -> dict[str, Any]:
    """Return the job's values for another number of GPUs; several GPUs without sharding hold copies (DDP)."""
    return _values(_COPIES if strategy == _NONE and count > 1 else strategy, count)


def _values(strategy: str, gpus: int) -> dict[str, Any]:
    copies = strategy in (_NONE, _COPIES)
    return {STRATEGY: strategy, SHARD: 1 if copies else gpus, REPLICATE: gpus if copies else 1}


# The line of help for the field that has the focus: what it sets, its choices, its default.


_HELP = {
    TUNING: "full trains all weights; LoRA trains small adapters on frozen weights; QLoRA is LoRA on 4-bit weights.",
    "target.gpu": "The GPUs for the job: those of this machine, or a card of the catalogue; Enter searches.",
    **HELP,
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


# Names of models to choose from, and the search among them: recent ones, those in the cache, built-in ones.


class ModelChoice(msgspec.Struct, frozen=True):
    """A model that can be chosen."""

    name: str
    """Name as it is written into the field."""
    note: str
    """Where the name comes from: recent, in the cache, or the built-in model's publisher."""
    other_names: tuple[str, ...] = ()


def model_choices(recent: Sequence[str] = (), cached: Sequence[str] = ()) -> tuple[ModelChoice, ...]:
    """Return the models that can be chosen, the likeliest first: recent, in the cache, built in."""
    built_in = tuple(_built_in_choices())
    known = {name: choice for choice in built_in for name in (choice.name, *choice.other_names)}
    used = {known[name].name if name in known else name for name in recent}
    found = [
        *(ModelChoice(name, "recent", known[name].other_names if name in known else ()) for name in recent),
        *(ModelChoice(name, "in the cache") for name in cached if name not in used),
        *(choice for choice in built_in if choice.name not in used),
    ]
    return tuple({choice.name: choice for choice in reversed(found)}.values())[::-1]


def search_models(typed: str, choices: Sequence[ModelChoice]) -> tuple[ModelChoice, ...]:
    """Return the models of which a name has the letters of each typed word in their order, the best match first."""
    from ..widgets.match_list import best_matches  # the command line, which completes names, needs no widgets

    return tuple(choices[at] for at in best_matches(typed, [(each.name, *each.other_names) for each in choices]))


def model_names() -> tuple[str, ...]:
    """Return all names of built-in models; short ones first, since they are quicker to type."""
    choices = tuple(_built_in_choices())
    return tuple(dict.fromkeys([*(each.name for each in choices), *(n for each in choices for n in each.other_names)]))


def cached_models(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the ids of the models in the Hugging Face cache, sorted; empty if the cache cannot be read."""
    from vramtop.estimator.model.find_config import hub_cache

    try:
        names = sorted(
            entry.name
            for entry in hub_cache(os.environ if environ is None else environ).iterdir()
            if entry.name.startswith("models--")
        )
    except OSError:
        return ()
    return tuple(name.removeprefix("models--").replace("--", "/", 1) for name in names)


def _built_in_choices() -> Iterator[ModelChoice]:
    from vramtop.estimator.model.find_config import built_in_models  # models are looked for off the UI thread

    for model in built_in_models():
        publisher, _, short = model.id.rpartition("/")
        name = model.names[0] if model.language_part else short
        yield ModelChoice(name, publisher or "built in", (*model.ids, *model.aliases))


# Inputs of the job form; that of the model searches names and completes folders.


class FieldInput(Input):
    """An input that leaves Alt with a digit to the screen."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return True if the input takes the key: all characters but those of Alt with a digit."""
        return super().check_consume_key(key, character) and (
            character is None or character not in ALT_DIGIT_CHARACTERS
        )


class ModelInput(FieldInput):
    """The input of the model: what is typed searches the known models; a pasted launch line or path is passed on.

    Args:
        value: the initial text.
        models: that can be chosen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("enter", "take", show=False),
        bind("app.back", "close"),
    ]

    @dataclass
    class JobPasted(Message):
        """A launch line, a model with flags, or the path of a file, was pasted, or entered."""

        text: str

    def __init__(self, value: str, models: Sequence[ModelChoice]) -> None:
        super().__init__(
            value,
            placeholder="type to search, or a hub id or folder",
            suggester=ModelSuggester(models),
            compact=True,
            classes="control",
        )
        self._models = tuple(models)
        self._list = MatchList(self)
        self._taken = value
        """The text that opens no list: it was taken from it, or not typed."""

    def on_unmount(self) -> None:
        """Remove the list, unless the whole screen is removed."""
        if self._list.is_attached:
            self._list.remove()

    @on(MatchList.Taken)
    def clicked(self, event: MatchList.Taken) -> None:
        """Take the model that was clicked in the list."""
        event.stop()
        self.action_take()

    @property
    def is_choosing(self) -> bool:
        """True while the list of models is open."""
        return self._list.highlighted is not None

    @property
    def is_line(self) -> bool:
        """True if it holds a model with flags, or a launch line, rather than words to search models by."""
        return any(word.startswith("-") for word in self.value.split()[1:])

    def set_models(self, models: Sequence[ModelChoice]) -> None:
        """Search these models from now on."""
        self._models = tuple(models)
        self.suggester = ModelSuggester(models)

    def show_matches(self, text: str) -> None:
        """List the models that match what was typed."""
        is_known = any(
            text.casefold() in (each.name.casefold(), *map(str.casefold, each.other_names)) for each in self._models
        )
        if not self.has_focus or is_known or self.is_line or text == self._taken or not text.strip():
            self._list.close()
        else:
            self._open(search_models(text, self._models))

    def keep_closed(self, text: str) -> None:
        """Open no list for this text: the user has not typed it."""
        self._taken = text

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the form and the screen while there is no list to move in."""
        if action in ("move", "take", "close"):
            can_open = action == "move" and parameters == (1,) and not self.value.strip() and bool(self._models)
            is_line = action == "take" and self.is_line
            return self._list.highlighted is not None or can_open or is_line
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        """Highlight another model; in an empty field, list all of them."""
        if self._list.highlighted is not None:
            self._list.move(by)
        else:
            self._open(self._models)

    def action_take(self) -> None:
        """Take the highlighted model; open a model with flags, or a launch line, that was typed."""
        if self.is_line:
            self.post_message(self.JobPasted(self.value.strip()))
        elif (name := self._list.highlighted) is not None:
            self._taken = name
            self._list.close()
            self.value = name
            self.action_end()

    def action_close(self) -> None:
        """Close the list, and keep what was typed."""
        self._taken = self.value
        self._list.close()

    def _open(self, models: Sequence[ModelChoice]) -> None:
        """Open the list, on the screen since there are other fields below this one."""
        if not self._list.is_attached:
            self.screen.mount(self._list)
        self._list.styles.offset = (self.region.x, self.region.bottom)
        self._list.open([each.name for each in models], [each.note for each in models])

    def on_blur(self) -> None:
        """Close the list: another field has the focus."""
        self._list.close()

    def on_paste(self, event: Paste) -> None:
        """Pass on what is not a model; everything else is left to ``Input``, which handles the event next."""
        text = event.text.strip()
        if len(text.split()) > 1 or text.strip("'\"").endswith((".toml", ".yaml", ".yml")):
            event.stop()
            event.prevent_default()
            self.post_message(self.JobPasted(text))


class ModelSuggester(Suggester):
    """Completes names of models; if a path is typed, folders."""

    def __init__(self, models: Sequence[ModelChoice]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._models = tuple(name for model in models for name in (model.name, *model.other_names))

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first completion; folders are read off the UI thread, since a disk may hang."""
        if value.startswith(("/", "./", "../", "~/")):
            try:
                return await asyncio.to_thread(_folder, value)
            except RuntimeError:  # no thread can be started
                return None
        typed = value.casefold()
        return next((name for name in self._models if typed and name.casefold().startswith(typed)), None)


def _folder(typed: str) -> str | None:
    """Return the first folder, in alphabetical order, whose path begins as typed."""
    before, _, begin = typed.rpartition("/")
    try:
        entries = sorted(each.name for each in expand_user(f"{before}/").iterdir() if each.name.startswith(begin))
    except (OSError, ValueError):
        return None
    found = (f"{before}/{name}" for name in entries if Path(expand_user(f"{before}/{name}")).is_dir())
    return next((path for path in found if path != typed), None)


# The values of a job form apart from its widgets: typed and read values, their evidence, and errors.


_QUANTIZATION, _PREPARATION = "lora.quantization", "lora.kbit_preparation"
_CHECKPOINTING = "training.activation_checkpointing"
_TYPED_KINDS: tuple[FieldKind, ...] = ("text", "number", "share", "words")


class FieldState(msgspec.Struct):
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
        kinds = {key: field.type for key in PROGRAM if (field := field_of(key)) is not None}
        program = tuple(_field(key, kind) for key, kind in kinds.items()) if base.program is not None else ()
        self.fields = (*program, *job_fields())
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
        job = build_job(self._base, self.values)
        if self._states[TUNING].value != QLORA or TUNING not in self.edited or job.lora is None:
            return job
        prepared = preparation(job).get(_PREPARATION)
        return (
            job
            if prepared is None or job.lora.kbit_preparation is not None
            else with_changes(job, {_PREPARATION: prepared})
        )

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
        if key in (TUNING, MODEL) and not self.origins and self._base.program is None:
            self._follow_tuning()
        return changed

    def _follow_tuning(self) -> None:
        """Set what the model and the kind of fine-tuning imply, as the flags do, in fields that are not edited."""
        from vramtop.estimator.model.find_config import find_built_in  # with the table of models
        from vramtop.estimator.model.read_architecture import max_positions
        from vramtop.estimator.readers.trainer.trainer_program import default_targets

        kind, job = self._states[TUNING].value, build_job(self._base, self.values)
        implied: dict[str, Any] = {}
        # a folder's or the cache's config is on a disk, which may hang
        model = find_built_in(job.model.id) if job.model.id else None
        if model is not None:
            usual = Training().sequence_length
            implied[LENGTH] = min(usual, max_positions(model.config) or usual)
        if TUNING in self.edited:
            implied[_CHECKPOINTING] = self._base.training.activation_checkpointing
            found = default_targets(model.config if model is not None else None)
            implied["lora.targets"] = "all-linear" if found is None else found.value
            if kind == QLORA:
                implied |= quantized_adapters(replace(job, lora=None))
        for key, value in implied.items():
            if key in self._states and key not in self.edited:
                self._states[key].set(value)

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
        if self._base.program is not None:
            return set(PROGRAM)
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
            self.show_remark("Enter reads the whole line" if event.input.is_line else "")
            if event.input.is_line:
                return
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
    ),
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
        from ..background.latest_only_task import LatestOnlyTask  # completing names for a shell needs no tasks

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
