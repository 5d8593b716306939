"""The settings of a job as fields: derived from ``Job``, parsed from what is typed, and put together again."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes, with_old_model_removed
from vramtop.estimator.job.job_file.table_fields import choices_of
from vramtop.estimator.job.settings import Inference, Lora, ModelSpec, Parallel, Program, Training

from ..flags.values import LENGTH, tokens

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
FIELDS_THAT_HIDE_OTHERS = (TUNING, _MODE, ENGINE)
_TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("model", ModelSpec),
    ("training", Training),
    ("lora", Lora),
    ("inference", Inference),
    ("parallel", Parallel),
)
_KEYS_WITHOUT_FIELD = (
    *("model.config", "model.code_folder", "parallel.tensor_plan", "parallel.device_map", "parallel.max_memory"),
    *("training.trainable_parameters", "training.optimizer_options", "target.devices"),
)
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
                found.append(make_field(key, field.type))
    return tuple(found)


_DEFAULT_TABLES: Mapping[str, msgspec.Struct] = {"lora": Lora(), "inference": Inference(), "program": Program()}
"""The defaults of tables that a job may lack."""


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
        digits = text.replace("_", "").replace(",", "").replace(" ", "")
        if not digits.isdecimal() or len(digits) > 9 or not int(digits):
            raise InputError(f"{field.label} must be a whole number from 1 to 999,999,999, not {text!r}")
        return int(digits)
    if field.kind == "share":
        with suppress(ValueError):
            if 0 < (share := float(text)) <= 1:
                return share
        raise InputError(f"{field.label} must be a number above 0, at most 1, such as 0.9, not {text!r}")
    if not text:
        raise InputError(f"{field.label} is empty; type a value")
    if field.kind == "words" and text not in field.choices:
        return [word for word in text.replace(",", " ").split() if word]
    return text


_TRAINABLE = "training.trainable"
_SERVING_KEYS = tuple(f"{SERVING}.{field.encode_name}" for field in msgspec.structs.fields(Inference))


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
        unshown = {name: getattr(base.lora, name, None) for name in _ADAPTERS_WITHOUT_FIELD}
        changes[TUNING] = {name: value for name, value in unshown.items() if value is not None} | adapters
    elif TUNING in values:
        changes[TUNING] = None
    if changes.get(MODEL, base.model.id) != base.model.id and changes.get(_TRAINABLE) is None:
        changes.pop(_TRAINABLE, None)  # nothing is said of the new model, so it is uncertain what trains
    return with_changes(base, with_old_model_removed(base, changes), where="the form")


_ADAPTERS_WITHOUT_FIELD = tuple(
    field.encode_name for field in msgspec.structs.fields(Lora) if field.type == bool | None
)


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


def make_field(key: str, kind: Any) -> JobField:
    """Return the field of a setting of this type."""
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
