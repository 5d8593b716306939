"""Views of the process table: by run (each folded or unfolded), as a tree of processes, or as a list."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.board.process_groups import GroupKey, ProcessGroup, group_processes
from vramtop.monitor.host.known_programs import starts_sessions
from vramtop.monitor.host.process_directory import Ancestor
from vramtop.monitor.snapshot.snapshot import ProcessKey

from .process_columns import ColumnName, group_count, group_gpus, short_gpu_list
from .process_rows import (
    ORDERS,
    SortKey,
    TableRow,
    in_order,
    matches,
    matching,
    order_key,
    table_rows,
    unattributed_rows,
)

ViewName = Literal["runs", "tree", "processes"]
VIEWS: tuple[ViewName, ...] = ("runs", "processes", "tree")
_OF_BUDGETS: tuple[ColumnName, ...] = ("BUDGET", "DIFF")
_MAX_GPU_WIDTH = 9
"""Longer lists of GPUs are cut."""
_MAX_HOST_WIDTH = 20
"""Longer names of hosts are cut."""


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
            return len(self.rows(words="", by="PID"))
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
        """Return the groups with those of their rows that are displayed."""
        if self._groups is None:
            board = self._board
            groups = group_processes(board) if board else ()
            if board and board.hidden and board.hidden.rows:
                cut = (replace(group, rows=tuple(filter(board.displays, group.rows))) for group in groups)
                groups = tuple(group for group in cut if group.rows)
            self._groups = groups
        return self._groups


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


_SMALL_BYTES = 2 * GIB
"""What the driver itself takes of a GPU is less."""
_MIN_TOGETHER = 3


def _together(rest: Sequence[TableRow]) -> list[TableRow]:
    """Return memory that no process accounts for, what little each GPU has of it as one row."""
    small = [row for row in rest if row.rest_bytes is not None and row.rest_bytes < _SMALL_BYTES]
    if len(small) < _MIN_TOGETHER:
        return list(rest)
    row = TableRow(rest_bytes=sum(row.rest_bytes or 0 for row in small), parts=tuple(small), fold="folded")
    return [*(each for each in rest if each not in small), row]


def _top(group: ProcessGroup) -> TableRow:
    return TableRow(row=group.rows[0], group=group) if len(group.rows) == 1 else TableRow(group=group, fold="folded")


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
    shown = sorted(found or children, key=ORDERS[by])
    for at, row in enumerate(shown, start=1):
        yield replace(row, lead=f"{'└ ' if at == len(shown) else '├ '}{row.lead or ''}")


def _children(group: ProcessGroup) -> list[TableRow]:
    pids = () if group.run is None or group.ranks_elsewhere else group.run.pids  # elsewhere: which these are is unknown
    ranks = {key: f"rank {at}: " for at, key in enumerate(pids)} if len(pids) > 1 else {}
    return [TableRow(row=row, group=group, lead=ranks.get(row.process.key, "")) for row in group.rows]


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
        return TableRow(ancestor=self.ancestor, below=self.processes)

    def contains(self, other: _Node) -> bool:
        """Return True if the other node is this one, or below it."""
        return self is other or any(child.contains(other) for child in self.children)


class _Tree:
    """The processes of a board below their parents."""

    def __init__(self, board: Board, ancestors: Mapping[int, Ancestor]) -> None:
        self.roots: list[_Node] = []
        self._ancestors = ancestors
        self._by_pid: dict[int, _Node] = {}
        rows: dict[ProcessKey, dict[object, ProcessRow]] = {}
        for row in filter(board.displays, (*board.processes, *board.ended_processes)):
            rows.setdefault(row.process.key, {}).setdefault(row.key, row)
        nodes = []
        for key, each in rows.items():  # a process on several GPUs is one row
            found = tuple(each.values())
            group = ProcessGroup(key=("process", *key), rows=found) if found[1:] else None
            nodes.append((found, _Node(TableRow(group=group) if group else TableRow(row=found[0]))))
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
