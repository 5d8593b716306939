"""The process table as plain data: its rows with their cells, sort orders and filter.

Every used byte of a GPU is in some row: memory that no process accounts for has a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib
from vramtop.monitor.board.board import Board, GpuRow, ProcessRow
from vramtop.monitor.board.process_groups import GroupKey, ProcessGroup
from vramtop.monitor.host.inspect.ancestry import Ancestor
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuReading

from ...draw.labels import WORST_FIRST, CellText, severity_rank
from ...draw.palette import unattributed_label
from ...draw.text_output import printable
from .process_columns import (
    COLUMNS,
    ColumnName,
    ProcessColumn,
    ended_size,
    figure_order,
    group_user,
    process_command,
    short_gpu_list,
    user_text,
    without_folder,
)

SortKey = Literal["STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER", "SM", "BW", "CPU", "RAM", "THR"]
RowKey = GroupKey
"""Key of the GPU or MIG device, pid and start time (pid None: memory that no process accounts for); or of a group."""
Fold = Literal["folded", "unfolded"]
SORTED_BY: dict[SortKey, ColumnName] = {
    "STATUS": "STATUS", "VRAM": "VRAM GiB", "GPU": "GPU", "DIFF": "DIFF", "PID": "PID", "UP": "UP", "USER": "USER",
    "SM": "SM %", "BW": "BW %", "CPU": "CPU %", "RAM": "RAM GiB", "THR": "THR",
}  # fmt: skip
"""The column of each sort order, in the order in which a key steps through them."""
_OF_ENDED: dict[ColumnName, str] = {
    "DIFF": "-", **{column.name: "-" for column in COLUMNS if column.figure},
}  # fmt: skip


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a process on a GPU, a group of such rows, or memory that no process accounts for.

    The board's row is no row of the table, because the same process stands alone, below its run or below its parent:
    this adds the place, and copies no figure.
    """

    row: ProcessRow | None = None
    """The process; None: a group, or memory that no process accounts for."""
    group: ProcessGroup | None = None
    """The group, or the one that the process belongs to."""
    fold: Fold | None = None
    """Whether the rows of a group are shown below it."""
    lead: str | None = None
    """Lines that connect a process with its group above, and its rank; None: it stands below none."""
    rest_of: GpuReading | None = None
    """The GPU whose memory it shows that no process accounts for."""
    rest_bytes: int | None = None
    """Bytes of such memory."""
    parts: tuple[TableRow, ...] = ()
    """Rows of each GPU, of a row for such memory on several GPUs."""
    ancestor: Ancestor | None = None
    """A process that holds no GPU memory, and has started some that do."""
    below: tuple[ProcessRow, ...] = ()
    """Processes that an ancestor has started, directly or not."""

    @property
    def key(self) -> RowKey:
        """Key of the row, equal on every board for the same thing."""
        if self.row is not None:
            return self.row.key
        if self.group is not None:
            return self.group.key
        if self.ancestor is not None:
            return ("ancestor", self.ancestor.pid)
        return ("unattributed",) if self.parts else (self.gpu.key, None, None)

    @property
    def gpu(self) -> GpuReading:
        """GPU of the process; of a group, the first of its GPUs."""
        if self.row is not None:
            return self.row.gpu
        if self.group is not None:
            return min((row.gpu for row in self.group.rows), key=lambda gpu: gpu.order)
        return self.rest_of or (self.parts[0].gpu if self.parts else self.below[0].gpu)

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
    def host(self) -> CellText:
        """Name of the host, or how many hosts a run spans; empty on a single machine."""
        hosts = {part.gpu.host for part in self.parts} or {self.gpu.host}
        return CellText(printable(self.gpu.host or "") if len(hosts) == 1 else f"{len(hosts)} hosts")

    def cell(self, column: ProcessColumn) -> CellText:
        """Return the cell of a column; not cached, because most of hundreds of rows are not visible."""
        if self.row is not None:
            return self._process_cell(self.row, column)
        if self.group is not None:
            cell = column.group(self.group)
            return CellText(f"{self.lead or ''}{cell.text}", cell.tone) if column.name == "COMMAND" else cell
        if self.ancestor is not None:
            above = self.ancestor
            texts: dict[ColumnName, str] = {
                "PID": str(above.pid),
                "USER": user_text(above.user) if above.user else "",
                "COMMAND": f"{self.lead or ''}{printable(without_folder(above.command or above.name or 'n/a'))}",
            }
            return CellText(texts.get(column.name, ""), "muted")
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
        rows += [TableRow(row=row) for row in gpu.rows if board.displays(row)]
        rows += _unattributed_of(gpu, board)
    ended = [TableRow(row=row) for row in board.ended_processes if board.displays(row)]
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
    text = " ".join(row.cell(column).text for column in COLUMNS if not column.figure)
    if row.row is not None or not row.rows:  # the GPUs of a group are found in its processes
        process = row.row.process.command or "" if row.row else ""  # also what the cell leaves out
        job = row.row.job.label if row.row and row.row.job else ""
        user = f"user:{row.row.process.user}" if row.row else ""
        text = f"{text} {job} {process} gpu{row.gpu.index} gpu{row.gpu.label} {user}"
    text = text.lower()
    return all(word in text for word in wanted)


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
    return (row.row is None and not row.rows, *ORDERS[by](row), -_used(row), _position(row))


def _unattributed_of(gpu: GpuRow, board: Board) -> list[TableRow]:
    displayed = (each for each in (gpu, *gpu.devices) if board.displays_gpu(each.reading))
    return [row for each in displayed for row in _unattributed(each)]


def _unattributed(gpu: GpuRow) -> list[TableRow]:
    reading, size = gpu.reading, gpu.unattributed_bytes
    if isinstance(reading, MigDevice) and (reading.shares_memory_of or reading.processes is None):
        return []  # it is in the row of another device, or of the whole GPU
    if not reading.column_label:
        return []  # it is a host without figures
    if size is None:
        worth_a_row = reading.processes is None or reading.reason("unattributed_bytes") is not None
    else:
        worth_a_row = size >= UNSEEN_BYTES  # less would be shown as 0.0 GiB
    return [TableRow(rest_of=reading, rest_bytes=size)] if worth_a_row else []


def _texts_of_rest(row: TableRow) -> dict[ColumnName, str]:
    reading, size = row.gpu, row.rest_bytes
    if reading.processes is None:
        words, size = f"processes n/a: {reading.reason('processes') or 'the driver does not list them'}", None
    else:
        words = f"{unattributed_label(reading)}: driver, display, other containers"
        if size is None and (reason := reading.reason("unattributed_bytes")):
            words = f"unattributed n/a: {reason}"
    return {
        "GPU": short_gpu_list(part.gpu.column_label for part in row.parts or (row,)),
        "VRAM GiB": format_gib(size),
        "MAX": "",
        "SPREAD": "",
        "COMMAND": printable(words),
    }


def _position(row: TableRow) -> tuple[float, ...]:
    first = row.row or next(iter(row.rows), None)
    pid, start = first.process.key if first else (0, 0.0)
    return (*row.gpu.order, pid, start or 0.0)


def _used(row: TableRow) -> int:
    whole = row.group.used_bytes if row.group else row.rest_bytes
    size = whole if row.row is None else row.row.process.used_bytes
    return -1 if size is None else size


def _highest(figures: Iterable[float | None]) -> tuple[float, ...]:
    """Return a sort key: the highest known figure first, rows without one last."""
    known = [figure for figure in figures if figure is not None]
    return (not known, -max(known, default=0))


def _user(row: TableRow) -> str:
    if row.row is not None:
        return user_text(row.row.process.user)
    return group_user(row.group) if row.group else "-"


ORDERS: dict[SortKey, Callable[[TableRow], tuple[float | str | tuple[int, ...], ...]]] = {
    "STATUS": lambda row: (min((severity_rank(each) for each in row.rows), default=len(WORST_FIRST)),),
    "VRAM": lambda row: (-_used(row),),
    "GPU": lambda row: (row.gpu.order,),
    "DIFF": lambda row: _highest(each.comparison.difference_bytes for each in row.rows if each.comparison),
    "PID": lambda row: (min((each.process.pid for each in row.rows), default=0),),
    "UP": lambda row: _highest(each.elapsed_seconds for each in row.rows),
    "USER": lambda row: (_user(row),),
    "SM": lambda row: figure_order("sm_percent", row.present),
    "BW": lambda row: figure_order("bandwidth_percent", row.present),
    "CPU": lambda row: figure_order("cpu_percent", row.present),
    "RAM": lambda row: figure_order("rss_bytes", row.present),
    "THR": lambda row: figure_order("threads", row.present),
}
