"""The process table as plain data: its columns, its rows with their cells, sort orders, filter and views.

Every used byte of a GPU is in some row: memory that no process accounts for has a row of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.monitor.board.board import Board, GpuRow, GroupKey, ProcessGroup, ProcessRow, group_processes
from vramtop.monitor.host.inspect.ancestry import Ancestor
from vramtop.monitor.host.kinds import kind_label, starts_sessions
from vramtop.monitor.snapshot.snapshot import (
    DRIVER_FIGURES,
    Demand,
    GpuReading,
    MigDevice,
    ProcessFigure,
    ProcessKey,
    gpu_list,
)

from ...draw.labels import (
    WORST_FIRST,
    CellText,
    Tone,
    budget_label,
    difference_label,
    figure_text,
    format_duration,
    gpu_labels,
    severity_rank,
    shorten,
    status_tone,
    worst_row,
)
from ...draw.palette import STATUSES, unattributed_label
from ...draw.text_output import printable
from ...widgets.row_table import Column, fit_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from vramtop.estimator.job.job import Job

ColumnName = Literal[
    "PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %", "RAM GiB",
    "THR", "UP", "RUNS IN", "COMMAND",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessColumn(Column):
    """A column of the table; unless the user chooses, the lowest importance comes first."""

    name: ColumnName
    about: str
    """What it shows, in a few words."""
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


# Texts of the cells of the process table that take more than a format: of one process, and of a group of processes.


_USER_WIDTH = 9
_MAX_GPU_PARTS = 3
"""Maximum of ranges of GPUs that are named; of more, only the first are."""
STATUS_WIDTH = 12
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqsSuvx]+|[WX].*)")
"""Options before the script that say nothing about what runs."""


def process_user(row: ProcessRow) -> str:
    """Return the user of a process."""
    return user_text(row.process.user)


def user_text(user: str | None) -> str:
    """Return the name of a user."""
    return shorten(printable(user or "n/a"), _USER_WIDTH)


def process_status(row: ProcessRow) -> CellText:
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


def figure_tone(row: ProcessRow) -> Tone:
    """Return the tone of a figure that was read from the driver."""
    return "muted" if row.gpu.is_stale else "plain"


def group_count(group: ProcessGroup) -> str:
    """Return the number of its processes; of a single one on several GPUs its pid."""
    count = len(group.process_keys)
    return str(group.rows[0].process.pid) if count == 1 else f"{count} procs"


def group_user(group: ProcessGroup) -> str:
    """Return the user of its processes, or how many users they have."""
    users = {row.process.user for row in group.rows}
    return process_user(group.rows[0]) if len(users) == 1 else f"{len(users)} users"


def group_gpus(group: ProcessGroup) -> str:
    """Return its GPUs in the shortest form: ``0-7``."""
    return short_gpu_list(gpu_labels(group.rows))


def short_gpu_list(labels: Iterable[str]) -> str:
    """Return GPUs without blanks: ``0,2,4-7``."""
    return gpu_list(labels, most=_MAX_GPU_PARTS).replace(", ", ",")


def ended_size(row: ProcessRow) -> str:
    """Return what an ended process held at its last reading: ``was 61.2``; in a column of eight cells."""
    size = row.process.used_bytes
    return "-" if size is None else f"was {format_gib(size, digits=1 if size < 100 * GIB else 0)}"


def group_used(group: ProcessGroup) -> CellText:
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
        return _common_reason([_reason(row) for row in group.rows])
    rank = severity_rank(worst)
    compared = [row for row in group.rows if row.comparison]
    count = sum(severity_rank(row) == rank for row in compared)
    status = _status_words(worst)
    counted = f"{status} {count}/{len(compared)}"
    fits = count < len(compared) and len(counted) <= STATUS_WIDTH
    return CellText(counted if fits else status, status_tone(worst))


def _common_reason(reasons: Sequence[str]) -> CellText:
    """Return why the most of a group have no budget; ``…`` says that others have another reason, or are being read."""
    counts = Counter(reason for reason in reasons if not reason.endswith("…"))
    if not counts:
        return CellText(reasons[0], "muted")
    words, count = counts.most_common(1)[0]
    return CellText(shorten(words if count == len(reasons) else f"{words} …", STATUS_WIDTH), "muted")


def group_command(group: ProcessGroup) -> str:
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


# Columns of figures that are read only while they are shown: of a process, and of a group as sum or mean.


def is_figure(name: ColumnName) -> bool:
    """Return True for a column of a figure that is read only while it is shown."""
    return name in _FIGURES


def figure_demand(columns: Iterable[ColumnName], sorted_by: ColumnName, processes: Iterable[ProcessKey]) -> Demand:
    """Return what readings are to contain for a table.

    Args:
        columns: those that are shown.
        sorted_by: the column by which all of its rows are sorted.
        processes: those in sight.
    """
    figures = frozenset(_FIGURES[name] for name in columns if name in _FIGURES)
    if not figures:
        return Demand()
    of_all = frozenset({_FIGURES[sorted_by]}) if sorted_by in _FIGURES else frozenset[ProcessFigure]()
    return Demand(process_figures=figures, processes=frozenset(processes), figures_of_all=of_all)


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


def _figure_column(
    name: ColumnName, figure: ProcessFigure, about: str, *, width: int, importance: int
) -> ProcessColumn:
    return ProcessColumn(
        name=name, about=about, width=width, right=True, importance=importance, is_default=False, figure=figure,
        process=partial(_of_process, figure), group=partial(_of_group, figure),
    )  # fmt: skip


FIGURE_COLUMNS = (
    _figure_column(
        "SM %", "sm_percent", "share of time with its kernels on the GPU; for a run, the mean", width=4, importance=41
    ),
    _figure_column(
        "BW %", "bandwidth_percent", "share of time with GPU memory reads or writes; for a run, the mean", width=4,
        importance=42,
    ),
    _figure_column("CPU %", "cpu_percent", "CPU use, 100 is one core; for a run, the sum", width=6, importance=43),
    _figure_column("RAM GiB", "rss_bytes", "resident host memory; for a run, the sum", width=7, importance=44),
    _figure_column("THR", "threads", "threads; for a run, the sum", width=5, importance=45),
)  # fmt: skip
_FIGURES: dict[ColumnName, ProcessFigure] = {column.name: column.figure for column in FIGURE_COLUMNS if column.figure}


# The columns of the process table, and which of them fit into a width.
#
# To add a column, write what it shows of a process and of a group, a row in ``COLUMNS``, and its name in ``ColumnName``
# and in the settings (``PROCESS_COLUMNS`` of their schema), by which users choose it.


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


def _budget(row: ProcessRow) -> CellText:
    return _UNKNOWN if row.budget is None else CellText(budget_label(row))


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
    ProcessColumn(
        name="PID", about="process id; for a run, the number of processes", width=7, right=True, importance=0,
        process=lambda row: CellText(str(row.process.pid)),
        group=lambda group: CellText(group_count(group)),
    ),
    ProcessColumn(
        name="USER", about="user of the process", width=9, importance=90,
        process=lambda row: CellText(process_user(row)),
        group=lambda group: CellText(group_user(group)),
    ),
    ProcessColumn(
        name="GPU", about="GPU index or MIG device; for a run, all of them", width=3, right=True, importance=10,
        process=lambda row: CellText(row.gpu.label),
        group=lambda group: CellText(group_gpus(group)),
    ),
    ProcessColumn(
        name="VRAM GiB", about="GPU memory in use; for a run, the sum", width=8, right=True, importance=20,
        process=_used_cell, group=group_used,
    ),
    ProcessColumn(
        name="MAX", about="for a run: memory of its largest rank", width=5, right=True,
        importance=50, of_groups=True,
        process=lambda _: _NOTHING, group=_of_highest(_used_cell),
    ),
    ProcessColumn(
        name="SPREAD", about="for a run: largest rank minus smallest", width=6, right=True,
        importance=60, of_groups=True,
        process=lambda _: _NOTHING, group=_spread,
    ),
    ProcessColumn(
        name="BUDGET", about="predicted memory; for a run, of its largest rank", width=6,
        right=True, importance=80, process=_budget, group=_of_highest(_budget),
    ),
    ProcessColumn(
        name="DIFF", about="memory in use minus the budget", width=6, right=True, importance=70,
        process=_difference, group=_of_highest(_difference),
    ),
    ProcessColumn(
        name="STATUS", about=(
            "memory compared with the budget, or why there is no budget"
        ), width=STATUS_WIDTH, importance=30,
        process=process_status, group=group_status,
    ),
    *FIGURE_COLUMNS,
    ProcessColumn(
        name="UP", about="run time", width=7, right=True, importance=100,
        process=lambda row: CellText(format_duration(row.elapsed_seconds)),
        group=lambda group: CellText(format_duration(group.elapsed_seconds)),
    ),
    ProcessColumn(
        name="RUNS IN", about="Slurm job, pod or container, with its name", width=27, importance=95, is_default=False,
        process=lambda row: CellText(printable(row.process.runs_in or "")),
        group=lambda group: CellText(_common_place(group)),
    ),
    ProcessColumn(
        name="COMMAND", about="job and command line", width=12, importance=40,
        process=lambda row: CellText(process_command(row)),
        group=lambda group: CellText(group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""


# The user's choice of columns, the most important first: read from a setting, changed, and written to it.


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


SortKey = Literal["STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER", "SM", "BW", "CPU", "RAM", "THR"]
RowKey = GroupKey
"""Key of the GPU or MIG device, pid and start time (pid None: memory that no process accounts for); or of a group."""
Fold = Literal["folded", "unfolded"]

SORTED_BY: dict[SortKey, ColumnName] = {
    "STATUS": "STATUS", "VRAM": "VRAM GiB", "GPU": "GPU", "DIFF": "DIFF", "PID": "PID", "UP": "UP", "USER": "USER",
    "SM": "SM %", "BW": "BW %", "CPU": "CPU %", "RAM": "RAM GiB", "THR": "THR",
}  # fmt: skip
"""The column of each sort order, in the order in which a key steps through them."""
_MIN_UNATTRIBUTED_BYTES = 54_000_000
"""Less unattributed memory would be shown as 0.0 GiB, and gets no row."""
_OF_ENDED: dict[ColumnName, str] = {
    "DIFF": "-", **{column.name: "-" for column in COLUMNS if column.figure},
}  # fmt: skip


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a process on a GPU, a group of such rows, or memory that no process accounts for."""

    key: RowKey
    """Key of the row, equal on every board for the same thing."""
    gpu: GpuReading
    """GPU of the process; of a group, the first of its GPUs."""
    row: ProcessRow | None
    """The process; None: a group, or memory that no process accounts for."""
    group: ProcessGroup | None = None
    """The group, or the one that the process belongs to."""
    fold: Fold | None = None
    """Whether the rows of a group are shown below it."""
    lead: str | None = None
    """Lines that connect a process with its group above, and its rank; None: it stands below none."""
    rest_bytes: int | None = None
    """Bytes of memory that no process accounts for."""
    parts: tuple[TableRow, ...] = ()
    """Rows of each GPU, of a row for such memory on several GPUs."""
    ancestor: Ancestor | None = None
    """A process that holds no GPU memory, and has started some that do."""
    below: tuple[ProcessRow, ...] = ()
    """Processes that an ancestor has started, directly or not."""

    @property
    def rows(self) -> tuple[ProcessRow, ...]:
        """The processes that it stands for, one per GPU."""
        if self.row is not None:
            return (self.row,)
        return self.group.rows if self.group else self.below

    @property
    def present(self) -> tuple[ProcessRow, ...]:
        """Its processes that have not ended, one per GPU."""
        return tuple(row for row in self.rows if row.ended_at is None)

    @property
    def process_row(self) -> ProcessRow | None:
        """The process that it stands for; of a group the one that diverges most, otherwise the largest."""
        if self.row is not None or self.group is None:
            return self.row
        return min(self.group.rows, key=lambda row: (severity_rank(row), -(row.process.used_bytes or 0)))

    @property
    def process_keys(self) -> tuple[ProcessKey, ...]:
        """The processes that it stands for and that have not ended, each once."""
        return tuple(dict.fromkeys(row.process.key for row in self.rows if row.ended_at is None))

    @property
    def is_incomplete(self) -> bool:
        """True if settings of its job are missing: opening it asks for them."""
        return any(row.has_guessed_budget for row in self.rows)

    def cell(self, column: ProcessColumn) -> CellText:
        """Return the cell of a column; not cached, because most of hundreds of rows are not visible."""
        if self.row is not None:
            return self._process_cell(self.row, column)
        if self.group is not None:
            cell = column.group(self.group)
            return CellText(f"{self.lead or ''}{cell.text}", cell.tone) if column.name == "COMMAND" else cell
        if self.ancestor is not None:
            return CellText(_texts_of_ancestor(self.ancestor, self.lead or "").get(column.name, ""), "muted")
        return CellText(_texts_of_rest(self).get(column.name, "-"), "muted")

    @property
    def cells(self) -> dict[ColumnName, CellText]:
        """All of its cells by column."""
        return {column.name: self.cell(column) for column in COLUMNS}

    def _process_cell(self, row: ProcessRow, column: ProcessColumn) -> CellText:
        cell = column.process(row)
        if column.name == "COMMAND" and self.lead is not None:
            cell = CellText(f"{self.lead}{process_command(row, label=self.group is None)}", cell.tone)
        if row.ended_at is None or column.name == "STATUS":
            return cell
        words = ended_size(row) if column.name == "VRAM GiB" else _OF_ENDED.get(column.name, cell.text)
        return CellText(words, "muted")


def table_rows(board: Board) -> list[TableRow]:
    """Return the processes of all GPUs, unattributed memory, and ended processes that are not dismissed."""
    rows = []
    for gpu in board.gpus:
        rows += [TableRow(key=row.key, gpu=row.gpu, row=row) for row in gpu.rows if board.displays(row)]
        rows += _unattributed_of(gpu, board)
    ended = [TableRow(key=row.key, gpu=row.gpu, row=row) for row in board.ended_processes if board.displays(row)]
    if ended:
        present = {row.key for row in rows}
        rows += [row for row in ended if row.key not in present]
    return rows


def unattributed_rows(board: Board) -> list[TableRow]:
    """Return the memory of each GPU and MIG device that no process accounts for."""
    return [row for gpu in board.gpus for row in _unattributed_of(gpu, board)]


def matching(rows: Sequence[TableRow], words: str) -> list[TableRow]:
    """Return the rows that contain every word, in pid, user, command, job, status or ``gpu3``."""
    wanted = words.lower().split()
    return [row for row in rows if matches(row, wanted)] if wanted else list(rows)


def matches(row: TableRow, wanted: Sequence[str]) -> bool:
    """Return True if a row contains every one of these words in small letters."""
    text = _searched_text(row)
    return all(word in text for word in wanted)


def next_sort_key(key: SortKey, columns: Collection[ColumnName]) -> SortKey:
    """Return the sort order after this one; a figure that is read on demand counts only while it is shown.

    Args:
        key: the present one.
        columns: those that are shown.
    """
    keys = [each for each, name in SORTED_BY.items() if name in columns or not is_figure(name)]
    return keys[(keys.index(key) + 1) % len(keys) if key in keys else 0]


def position_of(followed: TableRow, rows: Sequence[TableRow], default: int) -> int:
    """Return where a row is now; if it is gone, the row that shows its process, otherwise the default."""
    keys: dict[RowKey, int] = {}
    for at, row in enumerate(rows):
        keys.setdefault(row.key, at)
    if followed.key in keys:
        return keys[followed.key]
    if followed.group is not None and followed.group.key in keys:
        return keys[followed.group.key]
    shown = {each.key for each in followed.rows}
    showing = (at for at, row in enumerate(rows) if any(each.key in shown for each in row.rows))
    return next(showing, default) if shown else default


def in_order(rows: Sequence[TableRow], by: SortKey) -> list[TableRow]:
    """Return the rows sorted; unknown values come last, and among equals more memory comes first."""
    return sorted(rows, key=lambda row: order_key(row, by))


def order_key(row: TableRow, by: SortKey) -> tuple[Any, ...]:
    """Return what ``in_order`` sorts by."""
    return (row.row is None and not row.rows, *_ORDERS[by](row), -_used(row), _position(row))


def _unattributed_of(gpu: GpuRow, board: Board) -> list[TableRow]:
    displayed = (each for each in (gpu, *gpu.devices) if board.displays_gpu(each.reading))
    return [row for each in displayed for row in _unattributed(each)]


def _unattributed(gpu: GpuRow) -> list[TableRow]:
    reading, size = gpu.reading, gpu.unattributed_bytes
    if isinstance(reading, MigDevice) and (reading.shares_memory_of or reading.processes is None):
        return []  # it is in the row of another device, or of the whole GPU
    if size is None:
        worth_a_row = reading.processes is None or reading.reason("unattributed_bytes") is not None
    else:
        worth_a_row = size >= _MIN_UNATTRIBUTED_BYTES
    return [TableRow(key=(reading.key, None, None), gpu=reading, row=None, rest_bytes=size)] if worth_a_row else []


def _texts_of_rest(row: TableRow) -> dict[ColumnName, str]:
    reading, size = row.gpu, row.rest_bytes
    if reading.processes is None:
        words, size = f"processes n/a: {reading.reason('processes') or 'the driver does not list them'}", None
    else:
        words = f"{unattributed_label(reading)}: driver, display, other containers"
        if size is None and (reason := reading.reason("unattributed_bytes")):
            words = f"unattributed n/a: {reason}"
    return {
        "GPU": short_gpu_list(part.gpu.label for part in row.parts or (row,)),
        "VRAM GiB": format_gib(size),
        "MAX": "",
        "SPREAD": "",
        "COMMAND": printable(words),
    }


def _texts_of_ancestor(ancestor: Ancestor, lead: str) -> dict[ColumnName, str]:
    return {
        "PID": str(ancestor.pid),
        "USER": user_text(ancestor.user) if ancestor.user else "",
        "COMMAND": lead + printable(without_folder(ancestor.command or ancestor.name or "n/a")),
    }


def _searched_text(row: TableRow) -> str:
    cells = " ".join(row.cell(column).text for column in COLUMNS if not column.figure)
    if row.row is None and row.rows:
        return cells.lower()  # its GPUs are found in its processes
    process = row.row.process.command or "" if row.row else ""  # also what the cell leaves out
    job = row.row.job.label if row.row and row.row.job else ""
    user = f"user:{row.row.process.user}" if row.row else ""
    return f"{cells} {job} {process} gpu{row.gpu.index} gpu{row.gpu.label} {user}".lower()


def _position(row: TableRow) -> tuple[float, ...]:
    first = row.row or next(iter(row.rows), None)
    pid, start = first.process.key if first else (0, 0.0)
    return (*row.gpu.order, pid, start or 0.0)


def _used(row: TableRow) -> int:
    whole = row.group.used_bytes if row.group else row.rest_bytes
    size = whole if row.row is None else row.row.process.used_bytes
    return -1 if size is None else size


def _by_status(row: TableRow) -> tuple[float | str, ...]:
    if row.row is not None:  # most of hundreds of rows
        return (severity_rank(row.row),)
    return (min((severity_rank(each) for each in row.rows), default=len(WORST_FIRST)),)


def _by_difference(row: TableRow) -> tuple[float | str, ...]:
    known = [each.comparison.difference_bytes for each in row.rows if each.comparison]
    differences = [difference for difference in known if difference is not None]
    return (not differences, -max(differences, default=0))


def _by_elapsed(row: TableRow) -> tuple[float | str, ...]:
    known = [each.elapsed_seconds for each in row.rows if each.elapsed_seconds is not None]
    return (not known, -max(known, default=0))


def _user(row: TableRow) -> str:
    if row.row is not None:
        return process_user(row.row)
    return group_user(row.group) if row.group else "-"


_ORDERS: dict[SortKey, Callable[[TableRow], tuple[float | str | tuple[int, ...], ...]]] = {
    "STATUS": _by_status,
    "VRAM": lambda row: (-_used(row),),
    "GPU": lambda row: (row.gpu.order,),
    "DIFF": _by_difference,
    "PID": lambda row: (min((each.process.pid for each in row.rows), default=0),),
    "UP": _by_elapsed,
    "USER": lambda row: (_user(row),),
    "SM": lambda row: figure_order("sm_percent", row.present),
    "BW": lambda row: figure_order("bandwidth_percent", row.present),
    "CPU": lambda row: figure_order("cpu_percent", row.present),
    "RAM": lambda row: figure_order("rss_bytes", row.present),
    "THR": lambda row: figure_order("threads", row.present),
}


# Rows of the table that shows runs: one per run or program, with the rows of its processes below it if unfolded.


_SMALL_BYTES = 2 * GIB
"""What the driver itself takes of a GPU is less."""
_MIN_TOGETHER = 3


def run_rows(
    groups: Sequence[ProcessGroup],
    rest: Sequence[TableRow],
    *,
    words: str,
    by: SortKey,
    unfolded: Collection[GroupKey],
) -> list[TableRow]:
    """Return the rows that match the filter, in order; a filter that only some processes match unfolds their group.

    Args:
        groups: all processes of a board.
        rest: rows of memory that no process accounts for.
        words: of the filter.
        by: sort order of the groups, and of the processes of each.
        unfolded: groups whose processes are shown.
    """
    wanted = words.lower().split()
    tops = in_order([*(_top(group) for group in groups), *_together(rest)], by)
    return [row for top in tops for row in _with_children(top, wanted, by, unfolded)]


def run_row_count(groups: Sequence[ProcessGroup], rest: Sequence[TableRow], unfolded: Collection[GroupKey]) -> int:
    """Return how many rows ``run_rows`` has without a filter."""
    tops = (*(_top(group) for group in groups if group.key in unfolded), *_together(rest))
    shown = sum(len(top.group.rows if top.group else top.parts) for top in tops if top.fold and top.key in unfolded)
    return len(groups) + len(_together(rest)) + shown


def _together(rest: Sequence[TableRow]) -> list[TableRow]:
    """Return memory that no process accounts for, what little each GPU has of it as one row."""
    small = [row for row in rest if row.rest_bytes is not None and row.rest_bytes < _SMALL_BYTES]
    if len(small) < _MIN_TOGETHER:
        return list(rest)
    size, gpu = sum(row.rest_bytes or 0 for row in small), small[0].gpu
    row = TableRow(key=("unattributed",), gpu=gpu, row=None, rest_bytes=size, parts=tuple(small), fold="folded")
    return [*(each for each in rest if each not in small), row]


def _top(group: ProcessGroup) -> TableRow:
    first = group.rows[0]
    if len(group.rows) == 1:
        return TableRow(key=first.key, gpu=first.gpu, row=first, group=group)
    gpu = min((row.gpu for row in group.rows), key=lambda gpu: gpu.order)
    return TableRow(key=group.key, gpu=gpu, row=None, group=group, fold="folded")


def _with_children(
    top: TableRow, wanted: Sequence[str], by: SortKey, unfolded: Collection[GroupKey]
) -> Iterator[TableRow]:
    if top.fold is None:
        if not wanted or matches(top, wanted):
            yield top
        return
    is_unfolded = top.key in unfolded
    if not wanted and not is_unfolded:
        yield top
        return
    children = _children(top.group) if top.group else list(top.parts)
    found = [row for row in children if matches(row, wanted)] if wanted else children
    some = 0 < len(found) < len(children)
    if wanted and not found and not matches(top, wanted):
        return
    if not is_unfolded and not some:
        yield top
        return
    yield replace(top, fold="unfolded")
    yield from _connected(sorted(found or children, key=_ORDERS[by]))


def _children(group: ProcessGroup) -> list[TableRow]:
    pids = () if group.run is None or group.ranks_elsewhere else group.run.pids  # elsewhere: which these are is unknown
    ranks = {key: f"rank {at}: " for at, key in enumerate(pids)} if len(pids) > 1 else {}
    leads = [ranks.get(row.process.key, "") for row in group.rows]
    rows = zip(group.rows, leads, strict=True)
    return [TableRow(key=row.key, gpu=row.gpu, row=row, group=group, lead=lead) for row, lead in rows]


def _connected(rows: Sequence[TableRow]) -> Iterator[TableRow]:
    for at, row in enumerate(rows, start=1):
        line = "└ " if at == len(rows) else "├ "
        yield replace(row, lead=f"{line}{row.lead or ''}")


# Rows of the tree view: every process once, below the one that has started it, down from launchers and shells.


class _Node(msgspec.Struct):
    """A process, with those that it has started."""

    row: TableRow | None = None
    """None: it holds no GPU memory."""
    ancestor: Ancestor | None = None
    children: list[_Node] = msgspec.field(default_factory=list)

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """It and all below it, as far as they are on GPUs."""
        own = self.row.rows if self.row else ()
        return (*own, *(each for child in self.children for each in child.processes))

    @property
    def table_row(self) -> TableRow:
        """Its row; the row of an ancestor stands for all processes below it."""
        if self.row is not None:
            return self.row
        below, pid = self.processes, self.ancestor.pid if self.ancestor else 0
        return TableRow(key=("ancestor", pid), gpu=below[0].gpu, row=None, ancestor=self.ancestor, below=below)

    def contains(self, other: _Node) -> bool:
        """Return True if the other node is this one, or below it."""
        return self is other or any(child.contains(other) for child in self.children)


def tree_rows(
    board: Board, rest: Sequence[TableRow], ancestors: Mapping[int, Ancestor], *, words: str, by: SortKey
) -> list[TableRow]:
    """Return the rows that match the filter and those above them, in order.

    Args:
        board: the processes.
        rest: rows of memory that no process accounts for.
        ancestors: processes without GPU memory by pid; of others only what the board knows is shown.
        words: of the filter.
        by: sort order of processes with the same parent.
    """
    wanted = words.lower().split()
    roots = [kept for root in _Tree(board, ancestors).roots if (kept := _matching(root, wanted))]
    found = [row for row in rest if matches(row, wanted)]
    return [*_drawn(roots, by, lines="", is_root=True), *in_order(found, by)]


class _Tree:
    """The processes of a board below their parents."""

    def __init__(self, board: Board, ancestors: Mapping[int, Ancestor]) -> None:
        self.roots: list[_Node] = []
        self._ancestors = ancestors
        self._by_pid: dict[int, _Node] = {}
        rows: dict[ProcessKey, dict[object, ProcessRow]] = {}
        for row in filter(board.displays, (*board.processes, *board.ended_processes)):
            rows.setdefault(row.process.key, {}).setdefault(row.key, row)
        nodes = [
            (found, _Node(_table_row(key, found))) for key, each in rows.items() if (found := tuple(each.values()))
        ]
        for found, node in nodes:
            self._by_pid.setdefault(found[0].process.pid, node)
        for found, node in nodes:
            process = found[0].process
            self._put_below(node, process.parent, process.parent_name)
        self.roots = _with_processes(self.roots)

    def _put_below(self, node: _Node, parent: int | None, parent_name: str | None) -> None:
        above = self._node_of(parent, parent_name)
        if above is None or node.contains(above):
            self.roots.append(node)
        else:
            above.children.append(node)

    def _node_of(self, pid: int | None, name: str | None) -> _Node | None:
        """Return the node of a parent; an ancestor gets one when it is first asked for."""
        if pid is None or pid <= 1 or pid in self._by_pid:
            return self._by_pid.get(pid or 0)
        ancestor = self._ancestors.get(pid)
        if ancestor is None and name is not None and not starts_sessions(name):
            ancestor = Ancestor(pid=pid, name=name)
        if ancestor is None:
            return None
        node = self._by_pid[pid] = _Node(ancestor=ancestor)
        self._put_below(node, ancestor.parent, None)
        return node


def _with_processes(nodes: Sequence[_Node]) -> list[_Node]:
    """Return the nodes without ancestors of nothing: a pid that is reused between two readings may look like a loop."""
    for node in nodes:
        node.children = _with_processes(node.children)
    return [node for node in nodes if node.row or node.children]


def _table_row(key: ProcessKey, rows: Sequence[ProcessRow]) -> TableRow:
    """Return the row of a process, on one GPU or on several."""
    if len(rows) == 1:
        return TableRow(key=rows[0].key, gpu=rows[0].gpu, row=rows[0])
    group = ProcessGroup(key=("process", *key), rows=tuple(rows))
    return TableRow(key=group.key, gpu=rows[0].gpu, row=None, group=group)


def _matching(node: _Node, wanted: Sequence[str]) -> _Node | None:
    """Return the node if it matches, or with only those children that do; None if there are none."""
    if not wanted or matches(node.table_row, wanted):
        return node
    children = [kept for child in node.children if (kept := _matching(child, wanted))]
    return _Node(node.row, node.ancestor, children) if children else None


def _drawn(nodes: Sequence[_Node], by: SortKey, *, lines: str, is_root: bool = False) -> Iterator[TableRow]:
    """Yield the rows of these nodes and of all below them.

    Args:
        nodes: processes with the same parent.
        by: their sort order.
        lines: what connects the nodes above with their next siblings.
        is_root: they have no parent.
    """
    for at, node in enumerate(sorted(nodes, key=lambda node: _order(node, by)), start=1):
        is_last = at == len(nodes)
        corner = "" if is_root else "└ " if is_last else "├ "
        yield replace(node.table_row, lead=lines + corner)
        yield from _drawn(node.children, by, lines=lines + ("" if is_root else "  " if is_last else "│ "))


def _order(node: _Node, by: SortKey) -> tuple[object, ...]:
    """Sort by the most urgent process of a node and of all below it."""
    return min([order_key(node.table_row, by), *(_order(child, by) for child in node.children)])


# Views of the process table: runs, a tree or single processes; and which runs are unfolded.


ViewName = Literal["runs", "tree", "processes"]
VIEWS: tuple[ViewName, ...] = ("runs", "processes", "tree")

_OF_BUDGETS: tuple[ColumnName, ...] = ("BUDGET", "DIFF")
_MAX_GPU_WIDTH = 9
"""Longer lists of GPUs are cut."""


def view_named(name: object) -> ViewName:
    """Return the view of this name; the first one if there is none."""
    return next((view for view in VIEWS if view == name), VIEWS[0])


class TableView:
    """The rows of one board in the chosen view. Runs stay unfolded over boards."""

    def __init__(self) -> None:
        self.name: ViewName = "runs"
        self._board: Board | None = None
        self._groups: Sequence[ProcessGroup] | None = None
        """Groups of the board; None: not needed yet."""
        self.unfolded: set[GroupKey] = set()
        self.ancestors: Mapping[int, Ancestor] = {}
        """Processes without GPU memory that the tree shows, by pid."""

    @property
    def has_groups(self) -> bool:
        """True if it shows a group of several rows."""
        return self.name == "runs" and any(len(group.rows) > 1 for group in self._all_groups())

    @property
    def empty_columns(self) -> Collection[ColumnName]:
        """The columns of budgets while no process has one."""
        rows = (*self._board.processes, *self._board.ended_processes) if self._board else ()
        return () if any(row.budget for row in rows) else _OF_BUDGETS

    @property
    def row_count(self) -> int:
        """Number of its rows without a filter; estimated where counting them costs as much as making them."""
        if self._board is None:
            return 0
        if self.name == "runs":
            return run_row_count(self._all_groups(), unattributed_rows(self._board), self.unfolded)
        return len(self._board.processes) + len(self._board.displayed_gpus)

    def widths(self, rows: Sequence[TableRow]) -> Mapping[ColumnName, int]:
        """Return the least widths of columns whose texts depend on the machine.

        Args:
            rows: all rows that are shown.
        """
        if self._board is None:
            return {}
        groups = [row.group for row in rows if row.row is None and row.group]
        lists = [
            *map(group_gpus, groups),
            *(short_gpu_list(part.gpu.label for part in row.parts) for row in rows if row.parts),
        ]
        longest = max(map(len, lists), default=0)
        labels = [len(gpu.reading.label) for gpu in self._board.displayed_gpus]
        return {
            "GPU": max([min(longest, _MAX_GPU_WIDTH), *labels]),
            "PID": max(map(len, map(group_count, groups)), default=0),
        }

    def show_board(self, board: Board) -> None:
        """Take the rows from this board from now on."""
        self._board, self._groups = board, None

    def rows(self, *, words: str, by: SortKey) -> list[TableRow]:
        """Return the rows that match the filter, in order."""
        if self._board is None:
            return []
        if self.name == "runs":
            rest = unattributed_rows(self._board)
            return run_rows(self._all_groups(), rest, words=words, by=by, unfolded=self.unfolded)
        if self.name == "tree":
            rest = unattributed_rows(self._board)
            return tree_rows(self._board, rest, self.ancestors, words=words, by=by)
        return in_order(matching(table_rows(self._board), words), by)

    def ancestors_to_read(self) -> tuple[set[int], set[int]] | None:
        """Return the pids of the parents of all processes, and those of the processes; None: nothing shows ancestors.

        Those of a recording are not processes of this machine now.
        """
        if self.name != "tree" or self._board is None or not self._board.snapshot.source.is_live:
            return None
        processes = [row.process for row in self._board.processes]
        return {process.parent for process in processes if process.parent}, {process.pid for process in processes}

    def _all_groups(self) -> Sequence[ProcessGroup]:
        if self._groups is None:
            self._groups = _displayed_groups(self._board) if self._board else ()
        return self._groups


def _displayed_groups(board: Board) -> Sequence[ProcessGroup]:
    """Return the groups with those of their rows that are displayed."""
    groups = group_processes(board)
    if board.hidden is None or not board.hidden.rows:
        return groups
    cut = (replace(group, rows=tuple(row for row in group.rows if board.displays(row))) for group in groups)
    return tuple(group for group in cut if group.rows)
