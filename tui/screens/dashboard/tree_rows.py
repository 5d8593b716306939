"""Rows of the tree view: every process once, below the one that has started it, down from launchers and shells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.board.process_groups import ProcessGroup
from vramtop.monitor.host.inspect.ancestry import Ancestor
from vramtop.monitor.host.known_programs import starts_sessions
from vramtop.monitor.snapshot.snapshot import ProcessKey

from .process_rows import SortKey, TableRow, in_order, matches, order_key


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
