"""The user's choice of columns, the most important first: read from a setting, changed, and written to it."""

from collections.abc import Sequence

from .column import ColumnName
from .table_columns import COLUMNS

COLUMNS_SETTING = "process_columns"
"""Name of the setting."""


def columns_named(text: str | None) -> tuple[ColumnName, ...] | None:
    """Return the columns that a setting names; names of no column are left out. None: the default."""
    names = [name.strip() for name in (text or "").split(",")]
    known: dict[str, ColumnName] = {column.name: column.name for column in COLUMNS}
    return tuple(known[name] for name in dict.fromkeys(names) if name in known) or None


def columns_text(choice: Sequence[ColumnName]) -> str:
    """Return a choice as the text of its setting."""
    return ",".join(choice)


def all_columns(choice: Sequence[ColumnName]) -> list[ColumnName]:
    """Return all columns: the chosen ones in their order, each other one behind what is more important than it."""
    order = list(choice)
    by_default = [column.name for column in sorted(COLUMNS, key=lambda column: column.importance)]
    for place, name in enumerate(by_default):
        if name not in order:
            order.insert(order.index(by_default[place - 1]) + 1 if place else 0, name)
    return order


def moved(order: Sequence[ColumnName], name: ColumnName, by: int) -> list[ColumnName]:
    """Return the columns with this one nearer to the beginning (-1) or to the end (1)."""
    others = [each for each in order if each != name]
    others.insert(max(0, order.index(name) + by), name)
    return others
