"""Columns of the process table: what each shows of a process and of a group, and which of them fit into a width.

To add a column, write what it shows of both, and a row in ``COLUMNS``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import ProcessGroup, ProcessRow

from ....draw import CellText, difference_label, format_duration, status_tone
from .cell_texts import (
    STATUS_WIDTH,
    figure_tone,
    group_command,
    group_count,
    group_gpus,
    group_status,
    group_used,
    group_user,
    process_command,
    process_status,
    process_user,
)

ColumnName = Literal["PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "UP", "COMMAND"]
_NOTHING = CellText("")
_UNKNOWN = CellText("-", "muted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table."""

    name: ColumnName
    width: int
    """Cells; the last column takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""
    importance: int
    """Columns are chosen from the lowest number on, until the line is full."""
    of_groups: bool = False
    """Shown only while there is a group of several rows."""
    process: Callable[[ProcessRow], CellText]
    """Returns the cell of one process on one GPU."""
    group: Callable[[ProcessGroup], CellText]
    """Returns the cell of a group of several rows."""


def columns_for(
    width: int, gap: int = 2, *, widths: Mapping[ColumnName, int] | None = None, groups: bool = False
) -> list[Column]:
    """Return the columns that fit, in order; the least important are left out, and the last fills the width.

    Args:
        width: cells of the table.
        gap: cells between two columns.
        widths: least widths of columns that need more than usual.
        groups: there is a group of several rows.
    """
    least = widths or {}
    every = [
        replace(column, width=max(column.width, least.get(column.name, 0)))
        for column in COLUMNS
        if groups or not column.of_groups
    ]
    chosen: set[ColumnName] = set()
    left = width
    for column in sorted(every, key=lambda column: column.importance):
        if column.width + gap > left and chosen:
            break
        chosen.add(column.name)
        left -= column.width + gap
    shown = [column for column in every if column.name in chosen]
    return [*shown[:-1], replace(shown[-1], width=max(1, shown[-1].width + left))]


def _used(row: ProcessRow) -> CellText:
    return CellText(format_gib(row.process.used_bytes), figure_tone(row))


def _budget(row: ProcessRow) -> CellText:
    return _UNKNOWN if row.budget is None else CellText(format_gib(row.budget.steady_device_bytes))


def _difference(row: ProcessRow) -> CellText:
    comparison = row.comparison
    return CellText("-" if comparison is None else difference_label(comparison) or "-", status_tone(row))


def _of_highest(cell: Callable[[ProcessRow], CellText]) -> Callable[[ProcessGroup], CellText]:
    """Show a group as its rank that holds the most."""

    def of_group(group: ProcessGroup) -> CellText:
        return _UNKNOWN if (highest := group.highest) is None else cell(highest)

    return of_group


def _spread(group: ProcessGroup) -> CellText:
    size = group.spread_bytes
    return _UNKNOWN if size is None else CellText(format_gib(size), "muted")


COLUMNS = (
    Column(
        name="PID", width=7, right=True, importance=0,
        process=lambda row: CellText(str(row.process.pid)),
        group=lambda group: CellText(group_count(group)),
    ),
    Column(
        name="USER", width=9, importance=90,
        process=lambda row: CellText(process_user(row)),
        group=lambda group: CellText(group_user(group)),
    ),
    Column(
        name="GPU", width=3, right=True, importance=10,
        process=lambda row: CellText(row.gpu.label),
        group=lambda group: CellText(group_gpus(group)),
    ),
    Column(name="VRAM GiB", width=8, right=True, importance=20, process=_used, group=group_used),
    Column(
        name="MAX", width=5, right=True, importance=50, of_groups=True,
        process=lambda _: _NOTHING, group=_of_highest(_used),
    ),
    Column(
        name="SPREAD", width=6, right=True, importance=60, of_groups=True,
        process=lambda _: _NOTHING, group=_spread,
    ),
    Column(name="BUDGET", width=6, right=True, importance=80, process=_budget, group=_of_highest(_budget)),
    Column(name="DIFF", width=6, right=True, importance=70, process=_difference, group=_of_highest(_difference)),
    Column(name="STATUS", width=STATUS_WIDTH, importance=30, process=process_status, group=group_status),
    Column(
        name="UP", width=7, right=True, importance=100,
        process=lambda row: CellText(format_duration(row.elapsed_seconds)),
        group=lambda group: CellText(format_duration(group.elapsed_seconds)),
    ),
    Column(
        name="COMMAND", width=12, importance=40,
        process=lambda row: CellText(process_command(row)),
        group=lambda group: CellText(group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""
