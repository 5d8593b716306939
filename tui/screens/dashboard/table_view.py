"""Views of the process table: runs, a tree or single processes; and which runs are unfolded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.process_groups import GroupKey, ProcessGroup, group_processes

from .process_cells import group_count, group_gpus, short_gpu_list
from .process_rows import SortKey, TableRow, in_order, matching, table_rows, unattributed_rows
from .run_rows import run_row_count, run_rows
from .tree_rows import tree_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vramtop.monitor.board.board import Board
    from vramtop.monitor.host.inspect.ancestry import Ancestor

    from .process_columns import ColumnName


ViewName = Literal["runs", "tree", "processes"]
VIEWS: tuple[ViewName, ...] = ("runs", "processes", "tree")
_OF_BUDGETS: tuple[ColumnName, ...] = ("BUDGET", "DIFF")
_MAX_GPU_WIDTH = 9
"""Longer lists of GPUs are cut."""
_MAX_HOST_WIDTH = 20
"""Longer names of hosts are cut."""


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
            *(short_gpu_list(part.gpu.column_label for part in row.parts) for row in rows if row.parts),
        ]
        longest = max(map(len, lists), default=0)
        labels = [len(gpu.reading.column_label) for gpu in self._board.displayed_gpus]
        return {
            "GPU": max([min(longest, _MAX_GPU_WIDTH), *labels]),
            "PID": max(map(len, map(group_count, groups)), default=0),
        }

    @property
    def host_width(self) -> int:
        """Width of the column of hosts; 0: the board is of one machine."""
        if self._board is None or self._board.sums is None:
            return 0
        return min(_MAX_HOST_WIDTH, max((len(gpu.reading.host or "") for gpu in self._board.gpus), default=0))

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
