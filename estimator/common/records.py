"""Copies of records with other values: msgspec's Structs, and dataclasses where a module may not import msgspec."""

import dataclasses
from typing import Any, TypeVar

import msgspec

_Record = TypeVar("_Record")


def replace(record: _Record, /, **changes: Any) -> _Record:
    """Return a record with other values for some of its fields.

    Args:
        record: a Struct or a dataclass.
        changes: values by field.

    Raises:
        TypeError: it has no such field.
    """
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
