"""The keys of the job file, their tables, and the words that they may have."""

from typing import Any, get_origin

import msgspec

from ..job import Job


def job_keys() -> tuple[str, ...]:
    """Return every key that a job file may set, dotted: ``training.micro_batch``."""
    tables = [table.encode_name for table in msgspec.structs.fields(Job)]
    return tuple(
        f"{table}.{key}".rstrip(".")
        for table in tables
        for key in (table_keys(table) if table_struct(table) else ("",))
    )


def table_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of a table of the job file; None: the key is no table, or a list of them."""
    kind = _kind_of(table)
    return None if get_origin(kind) is list else _first_struct(kind)


def entry_struct(table: str) -> type[msgspec.Struct] | None:
    """Return the kind of the tables in a list of tables; None: the key is no such list."""
    kind = _kind_of(table)
    return _first_struct(kind) if get_origin(kind) is list else None


def _kind_of(table: str) -> Any:
    return next((f.type for f in msgspec.structs.fields(Job) if f.encode_name == table), None)


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
    return tuple(f.encode_name for f in msgspec.structs.fields(kind)) if kind else ()
