"""The settings of a job as fields of a form: derived from ``Job`` itself, so that a form never lags behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec

from vramtop.estimator.errors import InputError
from vramtop.estimator.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.jobfile import with_changes
from vramtop.estimator.models import built_in_models

Kind = Literal["text", "number", "choice", "flag", "words"]

TUNING = "lora"
"""The field that says whether there are adapters; the fields of ``[lora]`` count only if it says so."""
FULL, LORA, QLORA = "full", "LoRA", "QLoRA"

_TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("model", ModelSpec),
    ("training", Training),
    ("lora", Lora),
    ("parallel", Parallel),
)
_NOT_ON_A_LINE = ("model.config", "model.code_folder", "parallel.tensor_plan")
_LABELS = {"model.id": "model", "training.micro_batch": "micro-batch", TUNING: "fine-tuning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
    """One setting that is typed or chosen."""

    key: str
    """Dotted job key, such as ``training.micro_batch``; ``lora`` alone for the kind of fine-tuning."""
    label: str
    kind: Kind
    choices: tuple[str, ...] = ()
    """What can be chosen; for ``words``: the words that stand alone."""

    @property
    def table(self) -> str:
        """The job file's table, which is the form's heading."""
        return self.key.partition(".")[0]


def job_fields() -> tuple[JobField, ...]:
    """Every field, in the job file's order."""
    found = []
    for table, struct in _TABLES:
        if table == TUNING:
            found.append(JobField(key=TUNING, label=_LABELS[TUNING], kind="choice", choices=(FULL, LORA, QLORA)))
        for field in msgspec.structs.fields(struct):
            key = f"{table}.{field.encode_name}"
            if key not in _NOT_ON_A_LINE:
                found.append(_field(key, field.type))
    return tuple(found)


def field_value(job: Job, key: str) -> Any:
    """What the job says for a field; the defaults of ``[lora]`` where it has none."""
    if key == TUNING:
        return FULL if job.lora is None else LORA if job.lora.quantization == "none" else QLORA
    table, _, name = key.partition(".")
    holder = getattr(job, table)
    value = getattr(Lora() if holder is None else holder, name)
    return "nf4" if key == "lora.quantization" and value == "none" else value


def value_text(value: Any) -> str:
    """A value as it is typed into a field."""
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else str(value)


def parse_text(field: JobField, text: str) -> Any:
    """What was typed into a field.

    Raises:
        InputError: it is no value of this field.
    """
    text = text.strip()
    if field.kind == "number":
        return _number(field, text)
    if not text:
        raise InputError(f"{field.label} is empty; type a value")
    if field.kind == "words" and text not in field.choices:
        return [word for word in text.replace(",", " ").split() if word]
    return text


def build_job(base: Job, values: Mapping[str, Any]) -> Job:
    """The job with the form's values in place of its own.

    Args:
        base: what the form does not show stays as it is here.
        values: by key of ``JobField``.

    Raises:
        InputError: the values make no job.
    """
    changes = {key: value for key, value in values.items() if not key.startswith(TUNING)}
    if TUNING in values:
        changes[TUNING] = adapter_values(values)
    return with_changes(base, changes, where="the form")


def adapter_values(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The job's ``[lora]`` table by the form's values; None for full fine-tuning."""
    if values[TUNING] == FULL:
        return None
    adapters = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{TUNING}.")}
    return adapters | {"quantization": "none"} if values[TUNING] == LORA else adapters


def shown_fields(tuning: str, fields: Sequence[JobField]) -> set[str]:
    """Keys of the fields that mean something for this kind of fine-tuning."""
    hidden: tuple[str, ...] = ()
    if tuning == FULL:
        hidden = ("lora.rank", "lora.targets", "lora.quantization")
    elif tuning == LORA:
        hidden = ("lora.quantization",)
    return {field.key for field in fields} - set(hidden)


def model_names() -> tuple[str, ...]:
    """Names of models to suggest, short ones first: they are quicker to type."""
    models = built_in_models()
    short = (model.id.rpartition("/")[2] for model in models)
    return tuple(dict.fromkeys([*short, *(name for model in models for name in (*model.aliases, model.id))]))


def _field(key: str, kind: Any) -> JobField:
    label = _LABELS.get(key, key.partition(".")[2].replace("_", " "))
    if kind is bool:
        return JobField(key=key, label=label, kind="flag")
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if key == "lora.quantization":
            choices = tuple(choice for choice in choices if choice != "none")
        return JobField(key=key, label=label, kind="choice", choices=choices)
    options = get_args(kind)
    if int in options:
        return JobField(key=key, label=label, kind="number")
    if any(get_origin(option) is list for option in options):
        alone = tuple(word for option in options if get_origin(option) is Literal for word in get_args(option))
        return JobField(key=key, label=label, kind="words", choices=alone)
    return JobField(key=key, label=label, kind="text")


def _number(field: JobField, text: str) -> int:
    digits = text.replace("_", "").replace(",", "").replace(" ", "")
    if not digits.isdecimal() or len(digits) > 9 or not int(digits):
        raise InputError(f"{field.label} must be a whole number from 1 to 999,999,999, not {text!r}")
    return int(digits)
