"""Finds out why no measurement is kept of a command that ``vramtop run`` has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...board import REASONS_IN_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...board import Board
    from ...snapshot import ProcessKey
    from .candidates import Candidate

_MOST_KEYS = 4


def why_no_measurement(board: Board, candidate: Callable[[ProcessKey], Candidate | None], *, ended: bool) -> str | None:
    """Return why no measurement of the processes on a board is kept; None: one is, or it is not decided yet.

    Args:
        board: with the processes of one command alone.
        candidate: returns what is known about a process.
        ended: the command has ended, so that nothing more will be read.
    """
    for run in board.runs:
        if run.budget is not None and not run.missing:
            return None
    for run in board.runs:
        known = [found for key in run.pids if (found := candidate(key)) is not None]
        if not ended and any(each.due is not None for each in known):
            return None  # it is read again
        first = run.pids[0][0] if run.pids else None
        if run.missing:
            more = len(run.missing) - _MOST_KEYS
            keys = ", ".join(run.missing[:_MOST_KEYS]) + (f" and {more} more" if more > 0 else "")
            return _sentence(f"{keys} could not be read from it", first, ended=ended, one=len(run.missing) == 1)
        if run.problem is not None:
            return _sentence(f"there is no budget ({run.problem.rstrip('.')})", first, ended=ended)
    for row in board.processes:
        found = candidate(row.process.key)
        if found is None or found.reason is None or not (ended or found.due is None):
            continue
        if words := REASONS_IN_WORDS.get(found.reason):
            return _sentence(words, row.process.pid, ended=ended)
    return None


def _sentence(reason: str, pid: int | None, *, ended: bool, one: bool = False) -> str:
    if ended or pid is None:
        what = "it" if one else "them"
        helps = f"name {what} on its command line, or with vramtop run --fit --set KEY=VALUE -- COMMAND"
    else:
        helps = f"vramtop attach {pid} shows what was read, and with --set KEY=VALUE keeps one"
    return f"no measurement of this run is kept: {reason}; {helps}"
