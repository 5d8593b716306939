"""The columns of the process table, and which of them fit into a width.

To add a column, write what it shows of a process and of a group, and a row in ``COLUMNS``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import ProcessGroup, ProcessRow

from .....draw import CellText, difference_label, format_duration, printable, status_tone
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
from .column import Column, ColumnName
from .figure_columns import FIGURE_COLUMNS

_NOTHING = CellText("")
_UNKNOWN = CellText("-", "muted")
PROCESS_COLUMNS: tuple[ColumnName, ...] = (
    *("PID", "GPU", "VRAM GiB", "COMMAND", "USER", "SM %", "CPU %", "UP", "RAM GiB", "STATUS"),
    *("BW %", "DIFF", "BUDGET"),
)
"""Columns of the view of single processes unless the user chooses: those of other monitors, before the budget's."""
_EVEN_SHARE = 0.02
"""Ranks that differ by no more than this share of the highest hold the same."""


def default_columns() -> tuple[ColumnName, ...]:
    """Return the columns that are shown unless the user chooses, the most important first."""
    shown = (column for column in COLUMNS if column.is_default)
    return tuple(column.name for column in sorted(shown, key=lambda column: column.importance))


def columns_for(
    width: int,
    gap: int = 2,
    *,
    widths: Mapping[ColumnName, int] | None = None,
    groups: bool = False,
    wanted: Sequence[ColumnName] | None = None,
) -> list[Column]:
    """Return the columns that fit, in order; the least important are left out, and the last text fills the width.

    Args:
        width: cells of the table.
        gap: cells between two columns.
        widths: least widths of columns that need more than usual.
        groups: there is a group of several rows.
        wanted: the user's choice, the most important first; None: the default.
    """
    least = widths or {}
    places = {name: place for place, name in enumerate(default_columns() if wanted is None else wanted)}
    every = [
        replace(column, width=max(column.width, least.get(column.name, 0)))
        for column in COLUMNS
        if column.name in places and (groups or not column.of_groups)
    ]
    chosen: set[ColumnName] = set()
    left = width
    for column in sorted(every, key=lambda column: places[column.name]):
        if column.width + gap > left and chosen:
            break
        chosen.add(column.name)
        left -= column.width + gap
    shown = [column for column in every if column.name in chosen]
    widest = next((column for column in reversed(shown) if not column.right), shown[-1])
    return [replace(each, width=max(1, each.width + left)) if each is widest else each for each in shown]


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
    size, highest = group.spread_bytes, group.highest
    if size is None or highest is None:
        return _UNKNOWN
    is_even = size <= _EVEN_SHARE * (highest.process.used_bytes or 0)
    return CellText(format_gib(size), "muted" if is_even else "plain")


def _common_place(group: ProcessGroup) -> str:
    """Return where all processes of a group run; of several places, the first and a sign that there are more."""
    places = list(dict.fromkeys(row.process.runs_in or "" for row in group.rows))
    return f"{printable(places[0])}{' …' if len(places) > 1 else ''}"


COLUMNS = (
    Column(
        name="PID", about="process id; for a run, the number of processes", width=7, right=True, importance=0,
        process=lambda row: CellText(str(row.process.pid)),
        group=lambda group: CellText(group_count(group)),
    ),
    Column(
        name="USER", about="whose process it is", width=9, importance=90,
        process=lambda row: CellText(process_user(row)),
        group=lambda group: CellText(group_user(group)),
    ),
    Column(
        name="GPU", about="GPU index or MIG device; for a run, all of them", width=3, right=True, importance=10,
        process=lambda row: CellText(row.gpu.label),
        group=lambda group: CellText(group_gpus(group)),
    ),
    Column(
        name="VRAM GiB", about="GPU memory in use; for a run, the sum", width=8, right=True, importance=20,
        process=_used, group=group_used,
    ),
    Column(
        name="MAX", about="for a run: memory of the rank that holds the most", width=5, right=True,
        importance=50, of_groups=True,
        process=lambda _: _NOTHING, group=_of_highest(_used),
    ),
    Column(
        name="SPREAD", about="for a run: highest rank minus lowest rank", width=6, right=True,
        importance=60, of_groups=True,
        process=lambda _: _NOTHING, group=_spread,
    ),
    Column(
        name="BUDGET", about="predicted memory; for a run, of its highest rank", width=6,
        right=True, importance=80, process=_budget, group=_of_highest(_budget),
    ),
    Column(
        name="DIFF", about="memory in use minus the budget", width=6, right=True, importance=70,
        process=_difference, group=_of_highest(_difference),
    ),
    Column(
        name="STATUS", about="how it compares with its budget, or why there is none", width=STATUS_WIDTH, importance=30,
        process=process_status, group=group_status,
    ),
    *FIGURE_COLUMNS,
    Column(
        name="UP", about="run time", width=7, right=True, importance=100,
        process=lambda row: CellText(format_duration(row.elapsed_seconds)),
        group=lambda group: CellText(format_duration(group.elapsed_seconds)),
    ),
    Column(
        name="RUNS IN", about="Slurm job, pod or container, with its name", width=27, importance=95, is_default=False,
        process=lambda row: CellText(printable(row.process.runs_in or "")),
        group=lambda group: CellText(_common_place(group)),
    ),
    Column(
        name="COMMAND", about="job and command line", width=12, importance=40,
        process=lambda row: CellText(process_command(row)),
        group=lambda group: CellText(group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""
