"""The settings of a job as fields of a form, derived from the fields of ``Job``: a new setting needs no change here."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import msgspec
from textual import on
from textual.binding import Binding, BindingType
from textual.events import Paste
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user
from vramtop.estimator.job.field_help import field_help
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import choices_of, with_changes, with_old_model_removed
from vramtop.estimator.job.settings import Inference, Lora, ModelSpec, Parallel, Training

from ...keys import ALT_DIGIT_CHARACTERS, bind
from ...widgets.match_list import MatchList

FieldKind = Literal["text", "number", "share", "choice", "flag", "words"]
"""``share`` is a number above 0, at most 1; ``words`` is a list of words."""

TUNING = "lora"
"""The field that chooses full fine-tuning or adapters; the fields of ``[lora]`` count only with adapters."""
MODEL = "model.id"
FULL, LORA, QLORA = "full", "LoRA", "QLoRA"
SERVING, ENGINE = "inference", "inference.engine"
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
_DEFAULT_TABLES: Mapping[str, msgspec.Struct] = {"lora": Lora(), "inference": Inference()}
"""The defaults of tables that a job may lack."""
_KEYS_WITHOUT_FIELD = (
    *("model.config", "model.code_folder", "parallel.tensor_plan", "parallel.device_map", "parallel.max_memory"),
    *("training.trainable_parameters", "training.optimizer_options"),
)
_SERVING_KEYS = tuple(f"{SERVING}.{field.encode_name}" for field in msgspec.structs.fields(Inference))
_LABELS = {
    "model.id": "model",
    "training.micro_batch": "micro-batch",
    "training.activation_checkpointing": "checkpointing",
    TUNING: "fine-tuning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
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
    serves = values.get(_MODE, base.training.mode) == "inference"
    unused_tables = {TUNING, *([] if serves else [SERVING])}  # they are kept as they are in the base
    changes = {key: value for key, value in values.items() if key.partition(".")[0] not in unused_tables}
    if serves and base.inference is None and all(field_value(Job(), key) == values.get(key) for key in _SERVING_KEYS):
        changes = {key: value for key, value in changes.items() if key not in _SERVING_KEYS}
    if TUNING in values:
        changes[TUNING] = adapter_values(values)
    if changes.get(MODEL, base.model.id) != base.model.id and changes.get(_TRAINABLE) is None:
        changes.pop(_TRAINABLE, None)  # nothing is said of the new model, so it is uncertain what trains
    return with_changes(base, with_old_model_removed(base, changes), where="the form")


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
    SHARDING: "DDP copies the model to every GPU; FSDP and ZeRO-3 shard weights, gradients and optimizer states; "
    "ZeRO-2 all but the weights.",
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
    TUNING: "full: trains all weights; LoRA: trains small adapters beside frozen weights; QLoRA: LoRA on 4-bit "
    "weights.",
    "target.gpu": "The GPUs that the job is compared with: those of this machine, or a card of the catalogue; Enter "
    "searches.",
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


@dataclass(frozen=True, slots=True)
class ModelChoice:
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
    from ...widgets.match_list import best_matches  # the command line, which completes names, needs no widgets

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
        """A launch line, or the path of a file, was pasted."""

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

    def set_models(self, models: Sequence[ModelChoice]) -> None:
        """Search these models from now on."""
        self._models = tuple(models)
        self.suggester = ModelSuggester(models)

    def show_matches(self, text: str) -> None:
        """List the models that match what was typed."""
        is_known = any(
            text.casefold() in (each.name.casefold(), *map(str.casefold, each.other_names)) for each in self._models
        )
        if not self.has_focus or is_known or text == self._taken or not text.strip():
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
            return self._list.highlighted is not None or can_open
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        """Highlight another model; in an empty field, list all of them."""
        if self._list.highlighted is not None:
            self._list.move(by)
        else:
            self._open(self._models)

    def action_take(self) -> None:
        """Take the highlighted model."""
        if (name := self._list.highlighted) is not None:
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
