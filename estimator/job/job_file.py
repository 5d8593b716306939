"""Reads job files: TOML to ``Job``, with errors that name the file, the key, the value and the nearest known key."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_origin

import msgspec

from ..common import InputError, is_file, note_job_folder, parse_toml, read_file
from .config_fields import format_value
from .job import Job
from .rules import LISTED_LIBRARIES
from .settings import Run, Software, Uncertainties

_TABLES = tuple(name for name in Job.__struct_fields__ if name not in ("name", "other_models"))
ABOUT_THE_MODEL: Mapping[str, Any] = {
    "name": None,
    "model.id": None,
    "model.config": None,
    "model.code_folder": None,
    "model.num_labels": None,
    "model.trust_remote_code": False,
    "training.trainable": None,
    "training.trainable_parameters": None,
}
"""Keys that are about one model, with their values for a job of which nothing is known."""
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_LISTS_OF_WORDS = ("training.trainable",)
"""Keys whose value may be given in words with commas between them."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MAX_LISTED = 20
"""Values that an error lists."""
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")


def load_job(path: Path) -> Job:
    """Return the job in a TOML file; a model id that is a folder beside the file becomes that folder's full path.

    Raises:
        InputError: the file cannot be read, is not TOML, or is not a job.
    """
    note_job_folder(path.parent)
    data = _read(path)
    job = job_from_mapping(data, where=str(path))
    if job.model.id is None and job.model.config is None:
        raise InputError(f"{path}: no model given; write [model] with an id, or [model.config]")
    others = [msgspec.structs.replace(other, id=_id_beside(path, other.id)) for other in job.other_models]
    model = msgspec.structs.replace(job.model, id=_id_beside(path, job.model.id))
    job = msgspec.structs.replace(job, model=model, other_models=others)
    if uses_user_code(job):
        place = str((path.parent / (job.model.code_folder or "")).resolve())
        job = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, code_folder=place))
    return job


def _id_beside(path: Path, name: str | None) -> str | None:
    """Return a model's id; for a folder beside the file, the folder's full path."""
    return str((path.parent / name).resolve()) if name and is_file(path.parent / name / "config.json") else name


def written_keys(path: Path) -> tuple[str, ...]:
    """Return the dotted keys that a job file sets.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    tables = _read(path)
    return tuple(
        f"{table}.{key}".rstrip(".")
        for table, fields in tables.items()
        for key in (fields if isinstance(fields, dict) else ("",))
    )


def uses_user_code(job: Job) -> bool:
    """Return True if the job names user code that a worker has to import: a model, a plan or an optimizer."""
    optimizer = job.training.optimizer_class
    own_optimizer = optimizer is not None and optimizer.partition(":")[0].partition(".")[0] not in LISTED_LIBRARIES
    return isinstance(job.parallel.tensor_plan, str) or names_user_code(job.model.id) or own_optimizer


def names_user_code(name: str | None) -> bool:
    """Return True if a name is written ``module:attribute`` and is not that of a file."""
    return bool(name) and _CALLABLE.fullmatch(name or "") is not None and not os.access(name or "", os.F_OK)


def job_from_mapping(data: Mapping[str, Any], *, where: str) -> Job:
    """Return the job of nested tables as a job file has them.

    Args:
        data: the tables.
        where: name of their source in an error.

    Raises:
        InputError: an unknown key (the nearest known one is named) or a wrong value.
    """
    try:
        return msgspec.convert(data, Job)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_explain(str(error), data)}") from None
    except UnicodeEncodeError:  # half a character, which JSON and YAML can spell
        raise InputError(
            f"{where}: a text has half a character in it (a lone surrogate, such as \\ud83d); write it out"
        ) from None


def job_to_mapping(job: Job) -> dict[str, Any]:
    """Return the job as nested tables with every field written out, as a job file would have them."""
    tables: dict[str, Any] = {} if job.name is None else {"name": job.name}
    for table in _TABLES:
        value = getattr(job, table)
        if value is not None and value not in (Software(), Run(), Uncertainties()):  # rarely set
            tables[table] = _fields(value)
    if job.other_models:
        tables["other_models"] = [_fields(model) for model in job.other_models]
    return tables


def _fields(table: msgspec.Struct) -> dict[str, Any]:
    return {key: field for key, field in msgspec.structs.asdict(table).items() if field is not None}


def job_keys() -> tuple[str, ...]:
    """Return every key that a job file may set, dotted: ``training.micro_batch``."""
    tables = [table.encode_name for table in msgspec.structs.fields(Job)]
    return tuple(
        f"{table}.{key}".rstrip(".")
        for table in tables
        for key in (_table_keys(table) if table_struct(table) else ("",))
    )


def with_changes(job: Job, changes: Mapping[str, Any], *, where: str = "changes") -> Job:
    """Return the job with dotted keys set, such as ``{"training.micro_batch": 4}``; a table set to None is removed.

    Raises:
        InputError: an unknown key or a wrong value.
    """
    try:
        return _with_tables(job, changes)
    except (msgspec.ValidationError, KeyError, ValueError):  # explained below, with the key
        tables = job_to_mapping(job)
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        if key and isinstance(tables.get(table, [] if _entry_struct(table) else {}), list):
            raise InputError(f"{where}: {table} is a list of tables; set it as a whole: {table} = [{{{key} = ...}}]")
        if not key:
            if value is None:
                tables.pop(table, None)
            else:
                tables[table] = value
        else:
            tables.setdefault(table, {})[key] = value
    return job_from_mapping(tables, where=where)


def replaces_model(changes: Mapping[str, Any]) -> bool:
    """Return True if changes of a job name another model."""
    return "model.id" in changes or "model.config" in changes


def with_old_model_removed(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a job; if they name another model, also those that remove what is about the old one.

    Where parts of the old model were frozen, it is uncertain which parts of the new one are.

    Args:
        job: the job before.
        changes: new values by dotted key.
    """
    id_given, config_given = changes.get("model.id", job.model.id), changes.get("model.config", job.model.config)
    if not replaces_model(changes) or (id_given, config_given) == (job.model.id, job.model.config):
        return dict(changes)
    frozen = job.training.trainable is not None or job.training.trainable_parameters is not None
    doubt = (
        ("gradients", "optimizer")
        if frozen and not any(key.startswith("training.trainable") for key in changes)
        else ()
    )
    unsure = {
        f"unsure.{name}": "either" if getattr(job.unsure, name) in ("more", "either") else "less" for name in doubt
    }
    return {**ABOUT_THE_MODEL, **unsure, **changes}


def job_differences(before: Job, after: Job) -> dict[str, Any]:
    """Return the changes that turn one job into the other, by dotted keys, as ``with_changes`` takes them.

    A table that only ``before`` has is None.
    """
    old, new = job_to_mapping(before), job_to_mapping(after)
    changes: dict[str, Any] = {}
    for table in dict.fromkeys([*old, *new]):
        there, wanted = old.get(table, {}), new.get(table)
        if not isinstance(wanted, dict):
            if wanted != there:
                changes[table] = wanted
            continue
        unset = dict.fromkeys(key for key in there if key not in wanted)
        changes |= {f"{table}.{key}": value for key, value in (wanted | unset).items() if there.get(key) != value}
    return changes


@lru_cache
def _settable() -> dict[str, tuple[type[msgspec.Struct], dict[str, Any]]]:
    """Return the job's tables by name, each with the types of its keys."""
    kinds = {f.encode_name: table_struct(f.encode_name) for f in msgspec.structs.fields(Job)}
    return {
        name: (kind, {f.encode_name: f.type for f in msgspec.structs.fields(kind)})
        for name, kind in kinds.items()
        if kind is not None
    }


def _with_tables(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return the job with keys set by converting only those, since searches make thousands of changed jobs.

    Raises:
        msgspec.ValidationError: a wrong value.
        KeyError: an unknown key, or a table that is removed.
    """
    settable = _settable()
    tables: dict[str, dict[str, Any]] = {}
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        tables.setdefault(table, {})[key] = msgspec.convert(value, settable[table][1][key])
    made = {name: getattr(job, name) or settable[name][0]() for name in tables}
    return msgspec.structs.replace(
        job, **{name: msgspec.structs.replace(old, **tables[name]) for name, old in made.items()}
    )


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return ``KEY=VALUE`` as a dotted job key and a TOML value; a bare word is a string, or a list of one.

    Raises:
        InputError: there is no ``=``.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} is not KEY=VALUE, such as training.micro_batch=4")
    if key.strip().startswith("software."):  # 1.10 is a version, not a number
        return key.strip(), value.strip().strip("\"'")
    if key.strip() == "training.optimizer_options" and "{" not in value:  # rank = 64, as on a command line
        value = f"{{{value}}}"
    try:
        return key.strip(), parse_toml(f"value = {value}")["value"]
    except ValueError:
        word = value.strip()
    return key.strip(), [each.strip() for each in word.split(",")] if key.strip() in _LISTS_OF_WORDS else word


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read as text: {reason}") from None
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def _explain(message: str, data: Mapping[str, Any]) -> str:
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    steps: list[str | int] = [int(at) if at else name for name, at in _STEP.findall(path[1:])]
    unknown = _UNKNOWN.search(what)
    if unknown:
        known = _table_keys(str(steps[0])) if steps else _table_keys(None)
        dotted = _dotted([*steps, unknown[1]])
        return f"unknown key {dotted!r}; {_nearest(unknown[1], known)}"
    value = _lookup(data, steps)
    dotted = _dotted(steps) or "the job"
    choices = _choices(steps) if what.startswith(("Invalid enum value", "Expected `str` matching regex")) else ()
    if len(choices) > _MAX_LISTED:
        return f"{dotted} = {format_value(value)} is not known; {_nearest(str(value), choices)}"
    if choices:
        return f"{dotted} = {format_value(value)} is not one of {', '.join(choices)}; {_nearest(str(value), choices)}"
    if isinstance(value, Mapping) and steps:  # found by the table's own check, which names the key
        return f"{dotted}: {what}"
    return f"{dotted} = {format_value(value)}: {what[:1].lower()}{what[1:]}"


def _dotted(steps: Sequence[str | int]) -> str:
    """Return the path of a value for people; entries of a list are counted from 1."""
    return ".".join(str(step + 1) if isinstance(step, int) else step for step in steps)


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def _table_keys(table: str | None) -> tuple[str, ...]:
    kind = Job if table is None else table_struct(table) or _entry_struct(table)
    return tuple(f.encode_name for f in msgspec.structs.fields(kind)) if kind else ()


def table_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of a table of the job file; None: the key is no table, or a list of them."""
    kind = _kind_of(table)
    return None if get_origin(kind) is list else _first_struct(kind)


def _entry_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of the tables in a list of tables; None: the key is no such list."""
    kind = _kind_of(table)
    return _first_struct(kind) if get_origin(kind) is list else None


def _kind_of(table: str) -> Any:
    return next((f.type for f in msgspec.structs.fields(Job) if f.encode_name == table), None)


def _first_struct(kind: Any) -> type[msgspec.Struct] | None:
    options = [kind, *getattr(kind, "__args__", ())]
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)), None)


def _choices(steps: Sequence[str | int]) -> tuple[str, ...]:
    names = [step for step in steps if isinstance(step, str)]
    struct = (table_struct(names[0]) or _entry_struct(names[0])) if len(names) == 2 else None
    fields = msgspec.structs.fields(struct) if struct else ()
    return next((choices_of(f.type) for f in fields if f.encode_name == names[1]), ())


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that a field may have; empty if it is no choice of words."""
    for meta in getattr(kind, "__metadata__", ()):
        if meta.extra and "choices" in meta.extra:
            return tuple(meta.extra["choices"])
    options = [kind, *getattr(kind, "__args__", ())]
    words = [word for option in options for word in getattr(option, "__args__", ())]
    return tuple(str(choice) for choice in words if isinstance(choice, str))


def _lookup(data: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
    return data
