"""Marks plain data in the JSON of a command as the fields of a record, for the published schemas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldsOf:
    """Says of a dict that it has the fields of a record: ``Annotated[dict[str, Any], FieldsOf(Peak)]``.

    Type checkers see the dict; ``docs/scripts/reference`` makes the schema of the record's fields and docstrings.
    """

    record: type
    """A dataclass or msgspec struct."""
    is_whole: bool = False
    """Fields that the record's own encoder leaves out, since they have their default, are there."""
    also: type | None = None
    """A typed dict, whose keys are there as well."""
