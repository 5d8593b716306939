"""The summary of all jobs in one line: the worst first, and whether the next pending one fits."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from vramtop.monitor.board.board import BEING_READ, PendingRow
from vramtop.monitor.snapshot.gpu_list import gpu_list

from ...draw.labels import (
    MUTED,
    SEPARATOR,
    WORST_FIRST,
    badge,
    gpu_labels,
    job_name,
    severity_rank,
    shorten,
    urgent_label,
)
from ...draw.palette import STATUSES, VERDICTS, on_colour
from ...draw.text_output import printable
from ...keys import shown_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.board.comparison import Status


_SHORTENINGS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1), (4, 2))
"""Steps in which running and pending jobs are shortened until the summary fits the width; what is urgent stays last."""


def summary_line(board: Board, width: int) -> Content:
    """Return all running jobs in one line, worst first, and whether the next pending one fits."""
    jobs = _running(board)
    reading = _reading(board)
    if not jobs and not board.pending:
        return Content.styled(reading or _without_budgets(board), MUTED).truncate(width, ellipsis=True)
    present = [status for status in WORST_FIRST if any(status == job.status for job in jobs)]
    settled = [status for status in present if status not in ("loading", "warming_up")]
    pressing = [status for status in settled if status not in ("on_budget", "ended")]
    heads = [[_named(status, jobs) for status in statuses] for statuses in (present, pressing or present)]
    heads += [[_count(status, jobs) for status in statuses] for statuses in (present, settled, pressing)]
    if more := reading if board.runs else "no running job has a budget":
        heads[0].append(Content.styled(more, MUTED))
        heads[2].append(Content.styled(more, MUTED))
    tails = [[words] for words in _next(board.pending)] if board.pending else [[]]
    lines = [Content(SEPARATOR).join([*heads[head], *tails[min(tail, len(tails) - 1)]]) for head, tail in _SHORTENINGS]
    fitting = (line for line in lines if line.cell_length <= width)
    return next(fitting, lines[-1].truncate(width, ellipsis=True))


def _reading(board: Board) -> str | None:
    """Return how many running jobs have been read by themselves; None: all that may be."""
    progress = board.attach_progress
    if progress is None:
        return None
    if progress.read < progress.total:
        return f"reading {progress.read + 1} of {progress.total} runs" if progress.total > 1 else "reading a run"
    return "reading the runs" if any(row.no_budget_reason == BEING_READ for row in board.processes) else None


def _without_budgets(board: Board) -> str:
    """Return why there is no budget, and what to do."""
    attach, fit = shown_key("dashboard.attach"), shown_key("dashboard.fit_check")
    if board.sums is not None:
        return "no process has a budget there"
    if board.attach_progress is None:
        return f"no budgets yet: press {attach} to attach to a running job, {fit} to check a new one"
    reasons = Counter(row.no_budget_reason for row in board.processes if row.no_budget_reason)
    unread = unread_processes(board)
    if not reasons and unread:
        return f"{unread[0]}: press {fit} to check whether a job fits"
    if not reasons:
        return f"no processes on these GPUs: press {fit} to check whether a job fits"
    counted = [f"{count} × {reason}" for reason, count in reasons.most_common(4)]
    named = ", ".join([*counted, *unread])
    return f"no running job has a budget ({named}): press {attach} to attach to one, {fit} to check a new job"


def unread_processes(board: Board) -> list[str]:
    """Return which GPUs' processes are unknown, as where the driver does not let this user read them."""
    gpus = [gpu.reading for gpu in board.gpus if board.displays_gpu(gpu.reading)]
    unread = [gpu.index for gpu in gpus if gpu.processes is None]
    return [f"processes of GPU {gpu_list(unread, most=4)} unknown"] if unread else []


class _Running(msgspec.Struct, frozen=True):
    """A running job with all its processes."""

    status: Status
    """The worst status of its processes."""
    worst: tuple[ProcessRow, ...]
    """The processes with that status."""


def _running(board: Board) -> list[_Running]:
    """Return the jobs, and the processes of unknown ones that need attention: they grow, or ran out of memory."""
    jobs = []
    for run in board.runs:
        ranks = [row for row in run.rows if row.comparison is not None]
        if ranks:
            level = min(severity_rank(row) for row in ranks)
            jobs.append(_Running(WORST_FIRST[level], tuple(row for row in ranks if severity_rank(row) == level)))
    known = {key for run in board.runs for key in run.pids}
    rows = (row for row in (*board.processes, *board.ended) if row.process.key not in known and board.displays(row))
    jobs += [_Running(row.comparison.status, (row,)) for row in rows if row.comparison and row.comparison.diverges]
    return jobs


_CALM: tuple[Status, ...] = ("loading", "warming_up", "incomplete", "ended")
"""Statuses that need no attention."""
_MAX_NAMED_JOBS = 2


def _named(status: Status, jobs: Sequence[_Running]) -> Content:
    """Return the jobs of a status, by name if they are few and need attention."""
    mark, those = STATUSES[status], [job for job in jobs if job.status == status]
    if status == "on_budget" and len(those) == len(jobs):
        words = f"all {len(jobs)} jobs are" if len(jobs) > 1 else "the running job is"
        return Content.styled(f"{mark.letter} {words} {mark.word}", "$text-success")
    if status in ("on_budget", *_CALM) or len(those) > _MAX_NAMED_JOBS:
        return _count(status, jobs)
    names = []
    for job in those:
        gpus = gpu_list(gpu_labels(job.worst), most=4)
        parts = (shorten(job_name(job.worst[0]), 24), urgent_label(min(job.worst, key=_urgency)), f"on GPU {gpus}")
        names.append(" ".join(filter(None, parts)))
    sign = (f" {mark.letter} {mark.word} ", f"bold {on_colour(mark.colour)}")
    return Content.assemble(sign, f" {', '.join(names)}")


def _urgency(row: ProcessRow) -> tuple[float, int]:
    """Sort the rank first whose GPU is full first, then the one furthest from its budget."""
    difference = row.comparison.difference_bytes if row.comparison else None
    return (math.inf if row.full_seconds is None else row.full_seconds, -abs(difference or 0))


def _count(status: Status, jobs: Sequence[_Running]) -> Content:
    mark, those = STATUSES[status], [job for job in jobs if job.status == status]
    words = f"{mark.letter} {len(those)} {mark.word}"
    if status == "on_budget":
        return Content.styled(words, "$text-success")
    if status in _CALM:
        return Content.styled(words, MUTED)
    gpus = gpu_labels(row for job in those for row in job.worst)
    where = f"GPU {gpu_list(gpus, most=4)}"
    return Content.assemble((f" {words} ", f"bold {on_colour(mark.colour)}"), f" {where}")


_VERDICTS_WORST_LAST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


def _next(pending: Sequence[PendingRow]) -> list[Content]:
    """Return the first pending job and the verdicts of those behind it: in full, shorter, and shortest."""
    verdicts: list[Verdict] = [row.fit.verdict if row.fit else "unknown" for row in pending]
    first = badge(VERDICTS[verdicts[0]], verdicts[0])
    name = Content.styled(shorten(printable(pending[0].job.label), 32), "bold")
    head = Content.assemble(("next: ", MUTED), name, " ", first)
    behind = len(pending) - 1
    if not behind:
        return [head, Content.assemble(("next: ", MUTED), first)]
    worst = max(verdicts[1:], key=_VERDICTS_WORST_LAST.index)
    count = verdicts[1:].count(worst)
    others = Content.assemble(f" then {behind} more: {count}", badge(VERDICTS[worst], worst))
    return [Content.assemble(head, others), head, Content.assemble(("next: ", MUTED), first)]
