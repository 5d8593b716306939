"""What a setting of a job means: its sentence, choices and default, read from the records themselves."""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_origin

import msgspec

_TABLES: Mapping[str, tuple[str, str]] = {
    "model": ("model", "ModelSpec"),
    "training": ("training", "Training"),
    "lora": ("model", "Lora"),
    "inference": ("generation", "Inference"),
    "rollout": ("generation", "Rollout"),
    "other_models": ("model", "OtherModel"),
    "parallel": ("parallel", "Parallel"),
    "target": ("surroundings", "Target"),
    "software": ("surroundings", "Software"),
    "unsure": ("surroundings", "Uncertainties"),
    "run": ("surroundings", "Run"),
}
"""Module and class of each table of the job file."""
_PLACEHOLDERS = {
    "model.id": "MODEL",
    "model.code_folder": "FOLDER",
    "model.config": "TABLE",
    "training.trainable": "NAMES",
    "training.optimizer_options": "KEY=VALUE",
    "parallel.tensor_plan": "MODULE:NAME",
    "target.gpu": "GPU",
    "run.output_dir": "FOLDER",
    "run.logging_dir": "FOLDER",
    "run.inference_endpoint": "URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldHelp:
    """A setting in words."""

    key: str
    """Dotted job key."""
    sentence: str
    """What it means, in one line of plain text; it says what happens where a setting is absent."""
    details: str
    """Further text on its choices; mostly empty."""
    choices: tuple[str, ...]
    """The words that it may have; empty if it is no choice of words."""
    default: str | None
    """Its default as it is typed; None: absent, or a table."""
    is_flag: bool
    """It is true or false."""
    placeholder: str
    """What stands for its value in a usage line: ``N``, ``NAME``, ``FOLDER``."""


@cache
def field_help(key: str) -> FieldHelp:
    """Return what a setting means.

    Args:
        key: dotted job key, such as ``training.micro_batch``.

    Raises:
        KeyError: there is no such key.
    """
    table, _, name = key.partition(".")
    record = _record(table)
    field = {each.encode_name: each for each in msgspec.structs.fields(record)}[name]
    first, _, rest = _docstrings(table).get(name, "").partition("\n\n")
    return FieldHelp(
        key=key,
        sentence=_plain(first),
        details=_plain(rest),
        choices=choices_of(field.type),
        default=_default_text(field),
        is_flag=bool in (field.type, *get_args(field.type)),
        placeholder=_PLACEHOLDERS.get(key) or _placeholder(field.type),
    )


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that a field may have; empty if it is no choice of words."""
    for meta in getattr(kind, "__metadata__", ()):
        if meta.extra and "choices" in meta.extra:
            return tuple(meta.extra["choices"])
    options = [kind, *getattr(kind, "__args__", ())]
    words = [word for option in options for word in getattr(option, "__args__", ())]
    return tuple(str(choice) for choice in words if isinstance(choice, str))


def _record(table: str) -> type[msgspec.Struct]:
    module, name = _TABLES[table]
    return getattr(importlib.import_module(f".{module}", __package__), name)  # type: ignore[no-any-return]


@cache
def _docstrings(table: str) -> Mapping[str, str]:
    """Return the docstring below each field of a table; Python itself does not keep them."""
    (found,) = ast.parse(inspect.getsource(_record(table))).body
    return dict(_below_fields(found.body)) if isinstance(found, ast.ClassDef) else {}


def _below_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            value = below.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield field.target.id, inspect.cleandoc(value.value)


def _plain(text: str) -> str:
    """Return a text of a docstring in one line, without its marks."""
    return " ".join(text.replace("``", "").split())


def _default_text(field: msgspec.structs.FieldInfo) -> str | None:
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None or value == []:
        return None
    if isinstance(value, list):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _placeholder(kind: Any) -> str:
    options = [kind, *get_args(kind)]
    options += [part for option in options for part in get_args(option)]
    if int in options:
        return "N"
    if float in options:
        return "SHARE"
    if any(get_origin(option) is list for option in options):
        return "NAMES"
    return "NAME"
