"""Changes of a job by dotted keys: made, compared, and read from ``KEY=VALUE``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.untrusted_files import parse_toml
from ..job import Job
from ..settings import ModelSpec, Parallel, Run, Software, Target, Training, Uncertainties
from .table_fields import entry_struct, fields_of, table_struct
from .wrong_value import explain_wrong_value

_LISTS = ("other_models",)
_TABLES = tuple(name for name in Job.__struct_fields__ if name not in ("name", *_LISTS))


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
        raise InputError(f"{where}: {explain_wrong_value(str(error), data)}") from None
    except UnicodeEncodeError:  # half a character, which JSON and YAML can spell
        raise InputError(f"{where}: a string contains half a character (a lone surrogate), such as \\ud83d") from None


def check_job(job: Job) -> None:
    """Check the values of a job that was made in Python, which ``Job`` itself does not.

    Raises:
        InputError: a value that a job file could not have.
    """
    try:
        msgspec.convert(msgspec.to_builtins(job), Job)
        msgspec.json.encode(job)
    except UnicodeEncodeError as error:
        raise InputError(f"Job: {error.object!a} is not Unicode text") from None
    except msgspec.ValidationError as error:
        raise InputError(f"Job: {explain_wrong_value(str(error), msgspec.to_builtins(job))}") from None
    except (OverflowError, ValueError):  # an integer of more than 64 bits: as a size it is refused with its name
        pass


def job_to_mapping(job: Job) -> dict[str, Any]:
    """Return the job as nested tables with every field written out, as a job file would have them."""
    tables: dict[str, Any] = {} if job.name is None else {"name": job.name}
    for table in _TABLES:
        value = getattr(job, table)
        described = (ModelSpec(), Training(), Parallel(), Target()) if job.program is not None else ()
        if value is not None and value not in (Software(), Run(), Uncertainties(), *described):  # rarely set
            tables[table] = _fields(value)
    for name in _LISTS:
        if entries := getattr(job, name):
            tables[name] = [_fields(entry) for entry in entries]
    return tables


def _fields(table: msgspec.Struct) -> dict[str, Any]:
    return {key: field for key, field in msgspec.structs.asdict(table).items() if field is not None}


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
_LISTS_OF_WORDS = ("training.trainable",)
"""Keys whose value may be given in words with commas between them."""


def with_changes(job: Job, changes: Mapping[str, Any], *, where: str = "changes") -> Job:
    """Return the job with dotted keys set, such as ``{"training.micro_batch": 4}``; a table set to None is removed.

    What is set to another value is certain (``unsure.older``, ``unsure.between``).

    Raises:
        InputError: an unknown key or a wrong value.
    """
    for name in ("older", "between"):
        others = getattr(job.unsure, name)
        kept = {
            key: others[key]
            for key in others
            if not any(_changes(job, changes, part) for part in (key, key.partition(".")[0]))
        }
        if kept != others:
            job = msgspec.structs.replace(job, unsure=msgspec.structs.replace(job.unsure, **{name: kept}))
    try:
        return _with_tables(job, changes)
    except (msgspec.ValidationError, KeyError, ValueError):  # explained below, with the key
        tables = job_to_mapping(job)
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        if key and isinstance(tables.get(table, [] if entry_struct(table) else {}), list):
            raise InputError(f"{where}: {table} is a list of tables; set it as a whole: {table} = [{{{key} = ...}}]")
        if not key:
            if value is None:
                tables.pop(table, None)
            else:
                tables[table] = value
        else:
            tables.setdefault(table, {})[key] = value
    return job_from_mapping(tables, where=where)


def _changes(job: Job, changes: Mapping[str, Any], key: str) -> bool:
    return key in changes and changes[key] != _value(job, key)


def _value(job: Job, key: str) -> Any:
    """Return what a job has for a dotted key, or for a whole table; None: not set."""
    table, _, field = key.partition(".")
    return getattr(getattr(job, table), field, None) if field else getattr(job, table)


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
        changes |= {
            f"{table}.{key}": value
            for key, value in (wanted | unset).items()
            if there.get(key) != value and (key in there or value != [])  # an empty list is what is absent
        }
    return changes


@lru_cache
def _settable() -> dict[str, type[msgspec.Struct]]:
    """Return the kinds of the job's tables by name."""
    return {name: kind for name in fields_of(Job) if (kind := table_struct(name))}


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
        tables.setdefault(table, {})[key] = msgspec.convert(value, fields_of(settable[table])[key].type)
    made = {name: getattr(job, name) or settable[name]() for name in tables}
    return msgspec.structs.replace(
        job, **{name: msgspec.structs.replace(old, **tables[name]) for name, old in made.items()}
    )


def check_value(key: str, value: Any) -> None:
    """Check the value of a dotted key alone; what several keys must be together, ``with_changes`` checks.

    Raises:
        InputError: what is wrong with the value; the key is left out of the sentence.
    """
    table, _, name = key.partition(".")
    try:
        msgspec.convert(value, fields_of(_settable()[table])[name].type)
    except msgspec.ValidationError:
        try:
            job_from_mapping({table: {name: value}}, where="")
        except InputError as error:
            raise InputError(error.message.removeprefix(f": {key} = ")) from None


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
