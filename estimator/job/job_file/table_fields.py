"""The keys of the job file, their tables, and the words that they may have."""

from functools import lru_cache
from typing import Any, get_origin

import msgspec

from ..job import Job


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
