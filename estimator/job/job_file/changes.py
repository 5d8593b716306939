"""Changes of a job by dotted keys: made, compared, and read from ``KEY=VALUE``."""

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_origin

import msgspec

from ...common.errors import InputError
from ...common.untrusted_files import parse_toml
from ..job import Job
from ..settings import ModelSpec, Parallel, Run, Software, Target, Training, Uncertainties

# The keys of the job file, their tables, and the words that they may have.


def job_keys() -> tuple[str, ...]:
    """Return every key that a job file may set, dotted: ``training.micro_batch``."""
    keys = {table: table_keys(table) if table_struct(table) else () for table in fields_of(Job)}
    return tuple(f"{table}.{key}".rstrip(".") for table, inside in keys.items() for key in inside or ("",))


@lru_cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a table of the job file by key."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def field_of(key: str) -> msgspec.structs.FieldInfo | None:
    """Return the field of a dotted key, or of a table; None: there is no such key."""
    table, _, name = key.partition(".")
    kind = table_struct(table) if name else Job
    return fields_of(kind).get(name or table) if kind else None


def table_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of a table of the job file; None: the key is no table, or a list of them."""
    field = fields_of(Job).get(table)
    return None if field is None or get_origin(field.type) is list else _first_struct(field.type)


def entry_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of the tables in a list of tables; None: the key is no such list."""
    field = fields_of(Job).get(table)
    return None if field is None or get_origin(field.type) is not list else _first_struct(field.type)


def _first_struct(kind: Any) -> type[msgspec.Struct] | None:
    options = [kind, *getattr(kind, "__args__", ())]
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)), None)


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that a field may have; empty if it is no choice of words."""
    for meta in getattr(kind, "__metadata__", ()):
        if meta.extra and "choices" in meta.extra:
            return tuple(meta.extra["choices"])
    options = [kind, *getattr(kind, "__args__", ())]
    words = [word for option in options for word in getattr(option, "__args__", ())]
    return tuple(str(choice) for choice in words if isinstance(choice, str))


def table_keys(table: str | None) -> tuple[str, ...]:
    """Return the keys of a table, or of the tables in a list; None: of the file itself."""
    kind = Job if table is None else table_struct(table) or entry_struct(table)
    return tuple(fields_of(kind)) if kind else ()


# Puts into words what is wrong with a value of a job file: the key, the value, and the nearest known one.


_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_EXPECTED = re.compile(
    r"Expected `(?P<types>[^`]*)`(?:, got `[^`]*`|(?P<length> of length)? (?P<sign>[<>]=?) (?P<bound>[-.\w]+))"
)
_PATTERN = re.compile(r"Expected `str` matching regex (.*)", re.DOTALL)
_PATTERNS = {
    "v?": " is not a version, such as 2.13.0",
    "A-Za-z": " is not the name of a variable, such as HF_TOKEN",
    "0-9]{1,9}:": " is not written like :4096:8",
}
"""What is expected, by a part of the pattern that says so."""
_LACKS = re.compile(r"Object missing required field `([^`]*)`")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_MAX_SHOWN_CHARACTERS = 80
_MAX_LISTED = 20
"""Values that an error lists."""


def explain_wrong_value(message: str, data: Mapping[str, Any]) -> str:
    """Return what is wrong in the words of a user.

    Args:
        message: of msgspec: what it expected, and where.
        data: the tables of the job file.
    """
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    steps: list[str | int] = [int(at) if at else name for name, at in _STEP.findall(path[1:])]
    unknown = _UNKNOWN.search(what)
    if unknown:
        known = table_keys(str(steps[0])) if steps else table_keys(None)
        dotted = _dotted([*steps, unknown[1]])
        return f"unknown key {dotted!r}; {_nearest(unknown[1], known, before=_dotted([*steps, '']))}"
    value = _lookup(data, steps)
    dotted = _dotted(steps) or "the job"
    choices = _choices(steps) if what.startswith(("Invalid enum value", "Expected `str` matching regex")) else ()
    if len(choices) > _MAX_LISTED:
        return f"{dotted} = {format_value(value)} is not known; {_nearest(str(value), choices)}"
    if choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"is not one of {', '.join(choices)}" if choices[1:] else f"is neither {choices[0]!r} nor a list"
        return f"{dotted} = {format_value(value)} {allowed}{meant}"
    plain = _in_plain_words(what)
    if plain == f" is not {_TYPES['object']}" and not steps[1:]:
        below = f"id = {format_value(value)}" if dotted == "model" else "its keys"
        plain += f"; write [{dotted}], and {below} in the next line"
    if plain is None and isinstance(value, Mapping) and steps:  # found by the table's own check, which names the key
        return f"{dotted}: {what}"
    return f"{dotted} = {format_value(value)}{plain or f': {what[:1].lower()}{what[1:]}'}"


def _in_plain_words(what: str) -> str | None:
    """Return what msgspec expected in the words of a user; None: not one of its usual sentences."""
    if found := _EXPECTED.fullmatch(what):
        names = [name for name in found["types"].split(" | ") if name != "null"]
        words = [_TYPES[name] for name in names if name in _TYPES and not (name == "int" and "float" in names)]
        if not words:
            return None
        unit, bound = "", ""
        if found["length"]:
            unit = " characters" if names == ["str"] else " entries"
        if found["sign"]:
            bound = f" {_BOUNDS[found['sign']]} {found['bound'].removesuffix('.0')}{unit}"
        return f" is not {' or '.join(dict.fromkeys(words))}{bound}"
    if found := _LACKS.fullmatch(what):
        return f" lacks {found[1]}"
    if found := _PATTERN.match(what):
        return next((words for begin, words in _PATTERNS.items() if begin in found[1]), " has an invalid format")
    return None


def _dotted(steps: Sequence[str | int]) -> str:
    """Return the path of a value for people; entries of a list are counted from 1."""
    return ".".join(str(step + 1) if isinstance(step, int) else step for step in steps)


def _nearest(word: str, known: Sequence[str], *, before: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {before + near[0]!r}?" if near else f"known are {', '.join(known)}"


def _choices(steps: Sequence[str | int]) -> tuple[str, ...]:
    names = [step for step in steps if isinstance(step, str)]
    kind = (table_struct(names[0]) or entry_struct(names[0])) if len(names) == 2 else None
    field = fields_of(kind).get(names[1]) if kind else None
    return choices_of(field.type) if field else ()


def _lookup(data: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
    return data


def format_value(value: Any) -> str:
    """Return a value for an error message, cut to one line."""
    if isinstance(value, int) and value.bit_length() > 300:  # Python refuses to write very long ones
        return f"a number of about {value.bit_length() * 3 // 10:,} digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."


# Turns the tables of a job file into a ``Job`` and back; an error names the key, the value and the nearest choice.


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
    except msgspec.ValidationError as error:
        raise InputError(f"Job: {explain_wrong_value(str(error), msgspec.to_builtins(job))}") from None


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

    Raises:
        InputError: an unknown key or a wrong value.
    """
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
