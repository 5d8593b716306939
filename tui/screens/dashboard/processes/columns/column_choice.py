"""The user's choice of columns, the most important first: read from a setting, changed, and written to it."""

from collections.abc import Sequence

from .column import ColumnName
from .table_columns import COLUMNS


def columns_named(names: object) -> tuple[ColumnName, ...] | None:
    """Return the columns that a setting names; names of no column are left out. None: the default."""
    known: dict[object, ColumnName] = {column.name: column.name for column in COLUMNS}
    found = dict.fromkeys(names) if isinstance(names, tuple) else {}
    return tuple(known[name] for name in found if name in known) or None


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
