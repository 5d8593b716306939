"""The columns of the process table: what each shows of a process and of a group, and which of them fit into a width.

To add a column, write what it shows of a process and of a group, a row in ``COLUMNS``, and its name in ``ColumnName``
and in the settings (``PROCESS_COLUMNS`` of their schema), by which users choose it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import ProcessRow
from vramtop.monitor.board.process_groups import ProcessGroup
from vramtop.monitor.snapshot.demand import DRIVER_FIGURES, Demand, ProcessFigure

from ...draw.cell_text import CellText, status_tone
from ...draw.labels import budget_label, difference_label, format_duration
from ...draw.process_figures import figure_text
from ...draw.text_output import printable
from ...widgets.columns import Column, fit_columns
from .process_cells import (
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
    user_text,
)

ColumnName = Literal[
    "PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %", "RAM GiB",
    "THR", "UP", "RUNS IN", "COMMAND",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessColumn(Column):
    """A column of the table; unless the user chooses, the lowest importance comes first."""

    name: ColumnName
    is_default: bool = True
    """Shown unless the user chooses."""
    of_groups: bool = False
    """Shown only while there is a group of several rows."""
    figure: ProcessFigure | None = None
    """The figure that it shows, which is read only while it does."""
    process: Callable[[ProcessRow], CellText]
    """Returns the cell of one process on one GPU."""
    group: Callable[[ProcessGroup], CellText]
    """Returns the cell of a group of several rows."""


def is_figure(name: ColumnName) -> bool:
    """Return True for a column of a figure that is read only while it is shown."""
    return name in _FIGURES


def figure_demand(columns: Iterable[ColumnName]) -> Demand:
    """Return what readings are to contain for a table that shows these columns."""
    return Demand(process_figures=frozenset(_FIGURES[name] for name in columns if name in _FIGURES))


def figure_order(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[bool, float]:
    """Return the sort key of a process or a group by a figure: the highest first, unknown last."""
    value, _ = _total(figure, rows)
    return (value is None, -(value or 0.0))


def _of_process(figure: ProcessFigure, row: ProcessRow) -> CellText:
    text = figure_text(figure, row.process.figures, live=row.is_live)
    return CellText(text, figure_tone(row) if text[0].isdigit() else "muted")


def _of_group(figure: ProcessFigure, group: ProcessGroup) -> CellText:
    """Return the sum over its processes, or of what a GPU does the mean; ``≥`` and ``~`` if some are unknown."""
    value, complete = _total(figure, group.present)
    if value is None:
        texts = {_of_process(figure, row).text for row in group.present}
        return CellText("…" if "…" in texts else "n/a" if texts else "-", "muted")
    number = format_gib(round(value)) if figure == "rss_bytes" else f"{value:.0f}"
    sign = "" if complete else "~" if figure in DRIVER_FIGURES else "≥"
    return CellText(sign + number, "muted" if any(row.gpu.is_stale for row in group.present) else "plain")


def _total(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[float | None, bool]:
    """Return the mean over GPUs of what the driver measures, else the sum over processes; and whether all are known."""
    listed = list(rows)
    if figure not in DRIVER_FIGURES:
        listed = list({row.process.key: row for row in listed}.values())
    values = [getattr(row.process.figures, figure, None) for row in listed]
    known = [float(value) for value in values if value is not None]
    if not known:
        return None, False
    total = sum(known) / len(known) if figure in DRIVER_FIGURES else sum(known)
    return total, len(known) == len(values)


def _figure_column(name: ColumnName, figure: ProcessFigure, *, width: int, importance: int) -> ProcessColumn:
    return ProcessColumn(
        name=name, width=width, right=True, importance=importance, is_default=False, figure=figure,
        process=partial(_of_process, figure), group=partial(_of_group, figure),
    )  # fmt: skip


FIGURE_COLUMNS = (
    _figure_column("SM %", "sm_percent", width=4, importance=41),
    _figure_column("BW %", "bandwidth_percent", width=4, importance=42),
    _figure_column("CPU %", "cpu_percent", width=6, importance=43),
    _figure_column("RAM GiB", "rss_bytes", width=7, importance=44),
    _figure_column("THR", "threads", width=5, importance=45),
)
_FIGURES: dict[ColumnName, ProcessFigure] = {column.name: column.figure for column in FIGURE_COLUMNS if column.figure}
_NOTHING = CellText("")
PROCESS_COLUMNS: tuple[ColumnName, ...] = (
    *("PID", "GPU", "VRAM GiB", "COMMAND", "USER", "SM %", "CPU %", "UP", "RAM GiB", "STATUS"),
    *("BW %", "DIFF", "BUDGET"),
)
"""Columns of the view of single processes unless the user chooses: those of other monitors, before the budget's."""


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
    empty: Collection[ColumnName] = (),
) -> list[ProcessColumn]:
    """Return the columns that fit, in order.

    Args:
        width: cells of the table.
        gap: cells between two columns.
        widths: least widths of columns that need more than usual.
        groups: there is a group of several rows.
        wanted: the user's choice, the most important first; None: the default.
        empty: columns without a figure in any row, which go first where there is little room.
    """
    least = widths or {}
    columns = {column.name: column for column in COLUMNS if groups or not column.of_groups}
    named = sorted(filter(columns.get, wanted or default_columns()), key=lambda name: name in empty)
    places = {name: place for place, name in enumerate(named)}
    chosen = [
        replace(column, width=max(column.width, least.get(name, 0)), importance=places[name])
        for name, column in columns.items()
        if name in places
    ]
    return fit_columns(chosen, width, gap)


def _used_cell(row: ProcessRow) -> CellText:
    return CellText(format_gib(row.process.used_bytes), figure_tone(row))


_UNKNOWN = CellText("-", "muted")


def _budget(row: ProcessRow) -> CellText:
    return _UNKNOWN if row.budget is None else CellText(budget_label(row))


def _difference(row: ProcessRow) -> CellText:
    comparison = row.comparison
    return CellText("-" if comparison is None else difference_label(comparison) or "-", status_tone(row))


def _of_highest(cell: Callable[[ProcessRow], CellText]) -> Callable[[ProcessGroup], CellText]:
    """Show a group as its rank that holds the most."""
    return lambda group: _UNKNOWN if group.highest is None else cell(group.highest)


_EVEN_SHARE = 0.02
"""Ranks that differ by no more than this share of the highest hold the same."""


def _spread(group: ProcessGroup) -> CellText:
    size, highest = group.spread_bytes, group.highest
    if size is None or highest is None:
        return _UNKNOWN
    is_even = size <= _EVEN_SHARE * (highest.process.used_bytes or 0)
    return CellText(format_gib(size), "muted" if is_even else "plain")


def _places(group: ProcessGroup) -> CellText:
    """Show where all processes of a group run; of several places, the first and a sign that there are more."""
    first, *others = dict.fromkeys(row.process.runs_in or "" for row in group.rows)
    return CellText(f"{printable(first)}{' …' if others else ''}")


COLUMNS = (
    ProcessColumn(
        name="PID", width=7, right=True, importance=0,
        process=lambda row: CellText(str(row.process.pid) if row.process.pid >= 0 else ""),
        group=lambda group: CellText(group_count(group)),
    ),
    ProcessColumn(
        name="USER", width=9, importance=90,
        process=lambda row: CellText(user_text(row.process.user)),
        group=lambda group: CellText(group_user(group)),
    ),
    ProcessColumn(
        name="GPU", width=3, right=True, importance=10,
        process=lambda row: CellText(row.gpu.column_label),
        group=lambda group: CellText(group_gpus(group)),
    ),
    ProcessColumn(
        name="VRAM GiB", width=8, right=True, importance=20, process=_used_cell, group=group_used,
    ),
    ProcessColumn(
        name="MAX", width=5, right=True, importance=50, of_groups=True,
        process=lambda _: _NOTHING, group=_of_highest(_used_cell),
    ),
    ProcessColumn(
        name="SPREAD", width=6, right=True, importance=60, of_groups=True,
        process=lambda _: _NOTHING, group=_spread,
    ),
    ProcessColumn(
        name="BUDGET", width=6, right=True, importance=80, process=_budget, group=_of_highest(_budget),
    ),
    ProcessColumn(
        name="DIFF", width=6, right=True, importance=70,
        process=_difference, group=_of_highest(_difference),
    ),
    ProcessColumn(
        name="STATUS", width=STATUS_WIDTH, importance=30, process=process_status, group=group_status,
    ),
    *FIGURE_COLUMNS,
    ProcessColumn(
        name="UP", width=7, right=True, importance=100,
        process=lambda row: CellText(format_duration(row.elapsed_seconds)),
        group=lambda group: CellText(format_duration(group.elapsed_seconds)),
    ),
    ProcessColumn(
        name="RUNS IN", width=27, importance=95, is_default=False,
        process=lambda row: CellText(printable(row.process.runs_in or "")),
        group=_places,
    ),
    ProcessColumn(
        name="COMMAND", width=12, importance=40,
        process=lambda row: CellText(process_command(row)),
        group=lambda group: CellText(group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""


def columns_named(names: object) -> tuple[ColumnName, ...] | None:
    """Return the columns that a setting names; names of no column are left out. None: the default."""
    known: dict[object, ColumnName] = {column.name: column.name for column in COLUMNS}
    found = dict.fromkeys(names) if isinstance(names, tuple) else {}
    return tuple(known[name] for name in found if name in known) or None
