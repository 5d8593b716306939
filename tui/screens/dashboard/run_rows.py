"""Rows of the table that shows runs: one per run or program, with the rows of its processes below it if unfolded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB

from .process_rows import ORDERS, SortKey, TableRow, in_order, matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from vramtop.monitor.board.process_groups import GroupKey, ProcessGroup


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
