"""Rows of the process table as plain data: cells, sort orders, filter and columns.

Every used byte of a GPU is in some row: memory that no process accounts for has a row of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import Board, GpuRow, ProcessRow
from vramtop.monitor.snapshot import GpuKey, GpuReading, MigDevice

from ....draw import (
    STATUSES,
    WORST_FIRST,
    CellText,
    Tone,
    format_duration,
    printable,
    severity_rank,
    shorten,
    signed_gib,
    status_tone,
    unattributed_label,
)

ColumnName = Literal["PID", "USER", "GPU", "VRAM GiB", "BUDGET", "DIFF", "STATUS", "UP", "COMMAND"]
SortKey = Literal["STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER"]
RowKey = tuple[GpuKey, int | None, float | None]
"""Key of the GPU or MIG device, pid and start time; pid None: memory that no process accounts for."""

SORT_KEYS: tuple[SortKey, ...] = ("STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER")
_MIN_UNATTRIBUTED_BYTES = 54_000_000
"""Less unattributed memory would be shown as 0.0 GiB, and gets no row."""
_MIN_COMMAND_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    name: ColumnName
    width: int
    """Cells; the last column takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""


COLUMNS = (
    Column("PID", 7, right=True),
    Column("USER", 9),
    Column("GPU", 3, right=True),
    Column("VRAM GiB", 8, right=True),
    Column("BUDGET", 6, right=True),
    Column("DIFF", 6, right=True),
    Column("STATUS", 12),
    Column("UP", 7, right=True),
    Column("COMMAND", _MIN_COMMAND_WIDTH),
)
_BY_IMPORTANCE: tuple[ColumnName, ...] = (
    "PID", "GPU", "VRAM GiB", "STATUS", "COMMAND", "DIFF", "BUDGET", "USER", "UP",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of the table; ``key`` is the same on every board for the same process on the same GPU."""

    key: RowKey
    gpu: GpuReading
    row: ProcessRow | None
    """None: memory that no process accounts for."""
    rest_bytes: int | None = None
    """Bytes of that memory."""
    ended: bool = False
    """The process has ended."""

    @property
    def cells(self) -> dict[ColumnName, CellText]:
        """Texts by column; not cached, because most of hundreds of rows are not visible."""
        if self.row is None:
            return _cells_of_rest(self.gpu, self.rest_bytes)
        return _cells_of_ended(self.row) if self.ended else _cells(self.row)


def columns_for(width: int, gap: int = 2, *, gpu_width: int = 3) -> list[Column]:
    """Return the columns that fit, in order; the least important are dropped first, and the last fills the width.

    Args:
        width: cells of the table.
        gap: cells between two columns.
        gpu_width: cells of the longest GPU or MIG device name.
    """
    chosen: set[ColumnName] = set()
    left = width
    every = [
        replace(column, width=max(column.width, gpu_width)) if column.name == "GPU" else column for column in COLUMNS
    ]
    widths = {column.name: column.width + gap for column in every}
    for name in _BY_IMPORTANCE:
        if widths[name] > left and chosen:
            break
        chosen.add(name)
        left -= widths[name]
    shown = [column for column in every if column.name in chosen]
    last = shown[-1]
    return [*shown[:-1], Column(last.name, max(1, last.width + left), last.right)]


def table_rows(board: Board) -> list[TableRow]:
    """Return the processes of all GPUs, unattributed memory, and ended processes that are not dismissed."""
    rows = []
    for gpu in board.gpus:
        rows += [TableRow(key=row.key, gpu=row.gpu, row=row) for row in gpu.rows]
        rows += [row for each in (gpu, *gpu.devices) for row in _unattributed(each)]
    ended = [TableRow(key=row.key, gpu=row.gpu, row=row, ended=True) for row in board.ended_processes]
    if ended:
        present = {row.key for row in rows}
        rows += [row for row in ended if row.key not in present]
    return rows


def matching(rows: Sequence[TableRow], words: str) -> list[TableRow]:
    """Return the rows that contain every word, in pid, user, command, job, status or ``gpu3``."""
    wanted = words.lower().split()
    return [row for row in rows if all(word in _searched_text(row) for word in wanted)] if wanted else list(rows)


def in_order(rows: Sequence[TableRow], by: SortKey) -> list[TableRow]:
    """Return the rows sorted; unknown values come last, and among equals more memory comes first."""
    order = _ORDERS[by]
    return sorted(rows, key=lambda row: (row.row is None, *order(row), -_used(row), _position(row)))


def _cells(row: ProcessRow) -> dict[ColumnName, CellText]:
    process, comparison = row.process, row.comparison
    budget = CellText("-", "muted") if row.budget is None else CellText(format_gib(row.budget.steady_device_bytes))
    command = printable(process.command or process.name or process.note or "n/a")
    if process.note and process.command:
        command = f"({printable(process.note)}) {command}"
    if row.job:
        command = f"{printable(row.job.label)}: {command}"
    figures: Tone = "muted" if row.gpu.is_stale else "plain"
    return {
        "PID": CellText(str(process.pid)),
        "USER": CellText(_user(row)),
        "GPU": CellText(row.gpu.label),
        "VRAM GiB": CellText(format_gib(process.used_bytes), figures),
        "BUDGET": budget,
        "DIFF": CellText("-" if comparison is None else signed_gib(comparison.difference_bytes), status_tone(row)),
        "STATUS": _status(row),
        "UP": CellText(format_duration(row.elapsed_seconds)),
        "COMMAND": CellText(command),
    }


def _cells_of_ended(row: ProcessRow) -> dict[ColumnName, CellText]:
    gone: dict[ColumnName, str] = {"VRAM GiB": "-", "DIFF": "-"}
    return {
        name: CellText(gone.get(name, cell.text), cell.tone if name == "STATUS" else "muted")
        for name, cell in _cells(row).items()
    }


def _unattributed(gpu: GpuRow) -> list[TableRow]:
    reading, size = gpu.reading, gpu.unattributed_bytes
    if isinstance(reading, MigDevice) and (reading.shares_memory_of or reading.processes is None):
        return []  # it is in the row of another device, or of the whole GPU
    if size is None:
        worth_a_row = reading.processes is None or reading.reason("unattributed_bytes") is not None
    else:
        worth_a_row = size >= _MIN_UNATTRIBUTED_BYTES
    return [TableRow(key=(reading.key, None, None), gpu=reading, row=None, rest_bytes=size)] if worth_a_row else []


def _cells_of_rest(reading: GpuReading, size: int | None) -> dict[ColumnName, CellText]:
    if reading.processes is None:
        words, size = f"processes n/a: {reading.reason('processes') or 'the driver does not list them'}", None
    else:
        words = f"{unattributed_label(reading)}: driver, display, other containers"
        if size is None and (reason := reading.reason("unattributed_bytes")):
            words = f"unattributed n/a: {reason}"
    texts: dict[ColumnName, str] = {
        "GPU": reading.label, "VRAM GiB": format_gib(size), "COMMAND": printable(words),
    }  # fmt: skip
    return {column.name: CellText(texts.get(column.name, "-"), "muted") for column in COLUMNS}


def _user(row: ProcessRow) -> str:
    return shorten(printable(row.process.user or "n/a"), 9)


def _status(row: ProcessRow) -> CellText:
    if row.gpu.is_stale and row.ended_at is None:
        return CellText("! old figure", "over")
    if row.comparison:
        mark = STATUSES[row.comparison.status]
        word = "OUT OF MEM" if row.comparison.status == "out_of_memory" else mark.word  # the column is no wider
        return CellText(f"{mark.letter} {word}", status_tone(row))
    return CellText(row.no_budget_reason or ("? no budget" if row.problem else "-"), "muted")


def _searched_text(row: TableRow) -> str:
    cells = " ".join(cell.text for cell in row.cells.values())
    return f"{cells} gpu{row.gpu.index} gpu{row.gpu.label}".lower()


def _position(row: TableRow) -> tuple[float, ...]:
    _, pid, start = row.key
    return (*row.gpu.order, pid or 0, start or 0.0)


def _used(row: TableRow) -> int:
    size = row.row.process.used_bytes if row.row else row.rest_bytes
    return -1 if size is None else size


def _difference(row: TableRow) -> int | None:
    return row.row.comparison.difference_bytes if row.row and row.row.comparison else None


def _by_status(row: TableRow) -> tuple[float | str, ...]:
    return (severity_rank(row.row) if row.row else len(WORST_FIRST),)


def _by_difference(row: TableRow) -> tuple[float | str, ...]:
    difference = _difference(row)
    return (difference is None, -(difference or 0))


def _by_elapsed(row: TableRow) -> tuple[float | str, ...]:
    elapsed = row.row.elapsed_seconds if row.row else None
    return (elapsed is None, -(elapsed or 0))


_ORDERS: dict[SortKey, Callable[[TableRow], tuple[float | str | tuple[int, ...], ...]]] = {
    "STATUS": _by_status,
    "VRAM": lambda row: (-_used(row),),
    "GPU": lambda row: (row.gpu.order,),
    "DIFF": _by_difference,
    "PID": lambda row: (row.row.process.pid if row.row else 0,),
    "UP": _by_elapsed,
    "USER": lambda row: (_user(row.row) if row.row else "-",),
}
