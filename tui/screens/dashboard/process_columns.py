"""The columns of the process table: what each shows of a process and of a group, and which of them fit into a width.

To add a column, write what it shows of a process and of a group, a row in ``COLUMNS``, and its name in ``ColumnName``
and in the settings (``PROCESS_COLUMNS`` of their schema), by which users choose it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.monitor.host.known_programs import kind_label
from vramtop.monitor.host.plain_text import gpu_list
from vramtop.monitor.snapshot.demand import DRIVER_FIGURES, ProcessFigure
from vramtop.monitor.snapshot.figures import FIRST_SAMPLE

from ...draw.labels import (
    CellText,
    Tone,
    budget_label,
    difference_label,
    format_duration,
    severity_rank,
    shorten,
    status_tone,
    worst_row,
)
from ...draw.palette import STATUSES
from ...draw.text_output import printable
from ...widgets.row_table import Column, fit_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import ProcessRow
    from vramtop.monitor.board.process_groups import ProcessGroup


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


def figure_order(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[bool, float]:
    """Return the sort key of a process or a group by a figure: the highest first, unknown last."""
    value, _ = _total(figure, rows)
    return (value is None, -(value or 0.0))


PROCESS_COLUMNS: tuple[ColumnName, ...] = (
    *("PID", "GPU", "VRAM GiB", "COMMAND", "USER", "SM %", "CPU %", "UP", "RAM GiB", "STATUS"),
    *("BW %", "DIFF", "BUDGET"),
)
"""Columns of the view of single processes unless the user chooses: those of other monitors, before the budget's."""


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
    named = sorted(filter(columns.get, wanted or DEFAULT_COLUMNS), key=lambda name: name in empty)
    places = {name: place for place, name in enumerate(named)}
    chosen = [
        replace(column, width=max(column.width, least.get(name, 0)), importance=places[name])
        for name, column in columns.items()
        if name in places
    ]
    return fit_columns(chosen, width, gap)


def columns_named(names: object) -> tuple[ColumnName, ...] | None:
    """Return the columns that a setting names; names of no column are left out. None: the default."""
    known: dict[object, ColumnName] = {column.name: column.name for column in COLUMNS}
    found = dict.fromkeys(names) if isinstance(names, tuple) else {}
    return tuple(known[name] for name in found if name in known) or None


_USER_WIDTH = 9
_STATUS_WIDTH = 12


def user_text(user: str | None) -> str:
    """Return the name of a user."""
    return shorten(printable(user or "n/a"), _USER_WIDTH)


def _process_status(row: ProcessRow) -> CellText:
    """Return the status of a process; without a budget, why there is none."""
    if row.gpu.is_stale and row.ended_at is None:
        return CellText("! old figure", "over")
    if row.comparison:
        return CellText(_status_words(row), status_tone(row))
    return CellText(_reason(row), "muted")


def _reason(row: ProcessRow) -> str:
    return row.no_budget_reason or ("? no budget" if row.problem else "-")


def process_command(row: ProcessRow, *, label: bool = True) -> str:
    """Return the command line of a process, after the label of its job and what it is.

    Args:
        row: the process.
        label: name the job, and what it is.
    """
    process = row.process
    command = printable(without_folder(process.command or process.name or process.note or "n/a"))
    if process.note and process.command:
        command = f"({printable(process.note)}) {command}"
    return f"{what}: {command}" if label and (what := _what(row, row.job)) else command


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqsSuvx]+|[WX].*)")
"""Options before the script that say nothing about what runs."""


def without_folder(command: str) -> str:
    """Return a command line without what is the same for most and leaves little room: folders, and Python's options."""
    words = command.split(" ")
    if words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        while len(words) > 1 and _PYTHON_OPTION.fullmatch(words[1]):
            del words[1 : 3 if words[1] in ("-W", "-X") else 2]
        if len(words) > 1 and words[1].startswith("/"):
            words[1] = words[1].rpartition("/")[2] or words[1]
    return " ".join(words)


def _figure_tone(row: ProcessRow) -> Tone:
    """Return the tone of a figure that was read from the driver."""
    return "muted" if row.gpu.is_stale else "plain"


def group_count(group: ProcessGroup) -> str:
    """Return the number of its processes; of a single one on several GPUs its pid."""
    count = len(group.process_keys)
    return str(group.rows[0].process.pid) if count == 1 else f"{count} procs"


def group_user(group: ProcessGroup) -> str:
    """Return the user of its processes, or how many users they have."""
    users = {row.process.user for row in group.rows}
    return user_text(group.rows[0].process.user) if len(users) == 1 else f"{len(users)} users"


def group_gpus(group: ProcessGroup) -> str:
    """Return its GPUs in the shortest form: ``0-7``."""
    places = {row.gpu.order: row.gpu.column_label for row in group.rows}
    return short_gpu_list(places[order] for order in sorted(places))


_MAX_GPU_PARTS = 3
"""Maximum of ranges of GPUs that are named; of more, only the first are."""


def short_gpu_list(labels: Iterable[str]) -> str:
    """Return GPUs without blanks: ``0,2,4-7``."""
    return gpu_list(labels, most=_MAX_GPU_PARTS).replace(", ", ",")


def ended_size(row: ProcessRow) -> str:
    """Return what an ended process held at its last reading: ``was 61.2``; in a column of eight cells."""
    size = row.process.used_bytes
    return "-" if size is None else f"was {format_gib(size, digits=1 if size < 100 * GIB else 0)}"


def _group_used(group: ProcessGroup) -> CellText:
    """Return the memory of all its processes; ``≥`` if some of them are of unknown size."""
    if not group.present:
        return CellText("-", "muted")
    size = group.used_bytes
    words = format_gib(size) if size is None or not group.has_unknown_sizes else f"≥{format_gib(size)}"
    return CellText(words, "muted" if group.is_stale else "plain")


def group_status(group: ProcessGroup) -> CellText:
    """Return the worst status of its processes, and how many of them have it if not all have."""
    if group.is_stale:
        return CellText("! old figure", "over")
    worst = worst_row(group.rows)
    if worst is None:
        reasons = [_reason(row) for row in group.rows]
        counts = Counter(reason for reason in reasons if not reason.endswith("…"))
        if not counts:  # all are being read
            return CellText(reasons[0], "muted")
        words, most = counts.most_common(1)[0]  # … says that others have another reason, or are being read
        return CellText(shorten(words if most == len(reasons) else f"{words} …", _STATUS_WIDTH), "muted")
    rank = severity_rank(worst)
    compared = [row for row in group.rows if row.comparison]
    count = sum(severity_rank(row) == rank for row in compared)
    status = _status_words(worst)
    counted = f"{status} {count}/{len(compared)}"
    fits = count < len(compared) and len(counted) <= _STATUS_WIDTH
    return CellText(counted if fits else status, status_tone(worst))


def _group_command(group: ProcessGroup) -> str:
    """Return the job's label and the words that the command lines of all processes begin with."""
    ranks = group.ranks or group.rows
    words = _common_words(
        tuple([row.process.command or row.process.name or row.process.note or "n/a" for row in ranks])
    )
    what = _what(ranks[0], group.run.job if group.run else None)
    here, elsewhere = len(group.run.pids) if group.run else 0, group.ranks_elsewhere
    there = f" ({here} of {here + elsewhere} ranks here)" if elsewhere else ""
    return f"{what}{there}: {words}" if what else words


def _what(row: ProcessRow, job: Job | None) -> str:
    """Return a job's label, and what a process is: ``Llama-3.1-8B, vLLM server``; the desktop's status says it."""
    named = None if row.kind == "desktop" else kind_label(row.kind, row.program_name)
    return ", ".join(each for each in (printable(job.label) if job and job.has_label else None, named) if each)


def _status_words(row: ProcessRow) -> str:
    if row.comparison is None:
        return "-"
    mark = STATUSES[row.comparison.status]
    word = "OUT OF MEM" if row.comparison.status == "out_of_memory" else mark.short_word  # the column is no wider
    return f"{mark.letter} {word}"


@lru_cache(512)
def _common_words(commands: tuple[str, ...]) -> str:
    different = [without_folder(command) for command in dict.fromkeys(commands)]
    words: list[str] = []
    for column in zip(*(command.split() for command in different), strict=False):
        if len(set(column)) > 1:
            break
        words.append(column[0])
    return printable(different[0] if len(different) == 1 else " ".join([*words, "…"]))


def _used_cell(row: ProcessRow) -> CellText:
    return CellText(format_gib(row.process.used_bytes), _figure_tone(row))


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


def _of_process(figure: ProcessFigure, row: ProcessRow) -> CellText:
    """Show a figure without its unit: percent, GiB or a number; ``…`` before the first reading, n/a if unknown."""
    figures = row.process.figures
    value = getattr(figures, figure, None)
    if value is not None:
        return CellText(format_gib(value) if figure == "rss_bytes" else f"{value:.0f}", _figure_tone(row))
    fault = figures.fault(figure) if figures else None
    is_awaited = row.is_live if fault is None else fault.code == FIRST_SAMPLE  # a recording contains what it contains
    return CellText("…" if is_awaited else "n/a", "muted")


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


_FIGURE_COLUMNS = (
    _figure_column("SM %", "sm_percent", width=4, importance=41),
    _figure_column("BW %", "bandwidth_percent", width=4, importance=42),
    _figure_column("CPU %", "cpu_percent", width=6, importance=43),
    _figure_column("RAM GiB", "rss_bytes", width=7, importance=44),
    _figure_column("THR", "threads", width=5, importance=45),
)
FIGURES: dict[ColumnName, ProcessFigure] = {column.name: column.figure for column in _FIGURE_COLUMNS if column.figure}
"""The figure of each column that shows one, which is read only while it does."""
_NOTHING = CellText("")
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
        name="VRAM GiB", width=8, right=True, importance=20, process=_used_cell, group=_group_used,
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
        name="STATUS", width=_STATUS_WIDTH, importance=30, process=_process_status, group=group_status,
    ),
    *_FIGURE_COLUMNS,
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
        group=lambda group: CellText(_group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""
DEFAULT_COLUMNS = tuple(each.name for each in sorted(COLUMNS, key=lambda each: each.importance) if each.is_default)
"""Those that are shown unless the user chooses, the most important first."""
