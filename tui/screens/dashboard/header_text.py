"""The lines above the GPUs: the machine and its readings, the host's load, warnings, anomalies, and a summary."""

from __future__ import annotations

import math
import time
from collections import Counter
from textwrap import wrap
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import BEING_READ, PendingRow
from vramtop.monitor.host.plain_text import gpu_list

from ...draw.labels import (
    MUTED,
    SEPARATOR,
    WORST_FIRST,
    badge,
    gpu_labels,
    job_name,
    join_to_width,
    left_and_right,
    severity_rank,
    shorten,
    tag,
    urgent_label,
)
from ...draw.palette import STATUSES, VERDICTS, on_colour
from ...draw.text_output import printable
from ...keys import shown_key
from ..base import BoardFeed, feed_signs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.board.board import Board, Hidden, ProcessRow
    from vramtop.monitor.board.comparison import Status
    from vramtop.monitor.snapshot.snapshot import HostLoad


def header_line(board: Board | None, feed: BoardFeed, width: int) -> Content:
    """Return the machine at the left, and interval and time of the readings at the right."""
    left: list[Content | str] = [Content.styled("vramtop", "bold")]
    right: list[Content | str] = []
    if feed.recording:
        right.append(tag(f"● recording {printable(feed.recording)}", "bad"))
    right += feed_signs(feed)
    if board:
        source = board.snapshot.source
        left += [printable(source.host or "this machine")]
        left += [f"driver {printable(source.driver_version)}"] if source.driver_version else []
        left += [f"CUDA {printable(source.cuda_version)}"] if source.cuda_version else []
        count = sum(bool(gpu.reading.column_label) for gpu in board.gpus)
        right += [f"{count} GPU{'' if count == 1 else 's'}", f"every {feed.interval:g} s"]
        right += [time.strftime("%H:%M:%S", time.localtime(board.snapshot.time))]
    shown = join_to_width(right, width)
    while len(right) > 1 and shown.cell_length > width - 12:
        del right[-2]
        shown = join_to_width(right, width)
    return left_and_right(join_to_width(left, max(0, width - 3 - shown.cell_length)), shown, width)


def notices(board: Board | None, feed: BoardFeed, width: int) -> list[Content]:
    """Return the warnings and the banner, one or more lines each; usually none."""
    lines = []
    banner = feed.banner
    if board and not banner and not board.snapshot.source.is_live and board.sums is None:
        banner = "a recording, not this machine's current state"
    if banner:
        lines.append(Content.assemble(tag("REPLAY", "uncertain"), f" {printable(banner)}"))
    if feed.failure:
        lines += _alarm_lines(feed.failure, width)
    elif board is None:
        lines.append(Content.styled("waiting for the first reading …", MUTED))
    if board and board.hidden:
        lines.append(_filter_line(board, board.hidden))
    if board:
        lines += [Content(board.sums)] if board.sums else []
        for fault in board.snapshot.faults:
            lines += _alarm_lines(fault.message, width)
        if not board.gpus:
            lines += [] if board.snapshot.faults else _alarm_lines("no GPU found on this machine", width)
            if board.snapshot.source.is_live:
                key = shown_key("dashboard.fit_check")
                check = f" press {key} to check a job against any GPU; --demo plays a recording"
                lines.append(Content.assemble(tag("PLANNING", "uncertain"), check))
        lines += _gpu_faults(board, width)
        lines += _anomaly_lines(board)
    return [line.truncate(width, ellipsis=True) for line in lines]


def _filter_line(board: Board, hidden: Hidden) -> Content:
    """Return what the command line asks for, and what is hidden because of it."""
    every = len({row.process.key for row in board.processes})
    words = [f"{every - hidden.processes} of {every} processes", *_unread_processes(board)]
    if hidden.processes:
        words.append(f"hidden: {hidden.processes} with {format_gib(hidden.used_bytes)} GiB")
    words += [f"GPU {gpu_list(hidden.labels, most=4)} hidden"] if hidden.labels else []
    words += [f"no GPU {', '.join(map(printable, hidden.missing))} here"] if hidden.missing else []
    return Content.assemble(tag("ONLY", "uncertain"), (f" {printable(hidden.by)}: ", "bold"), SEPARATOR.join(words))


def _alarm_lines(sentence: str, width: int) -> list[Content]:
    """Return a warning in full: it also says what to do."""
    words = wrap(printable(sentence), max(20, width - 4))
    return [Content.assemble("   " if at else tag("!"), f" {line}") for at, line in enumerate(words)]


_MAX_GPU_FAULTS = 2
"""Sentences about faults of whole GPUs."""


def _gpu_faults(board: Board, width: int) -> list[Content]:
    """Return faults of whole GPUs; GPUs with the same fault share a line. Rows of hosts without GPUs say theirs."""
    gpus: dict[str, list[str]] = {}
    for gpu in board.snapshot.gpus:
        for fault in gpu.faults:
            if fault.field is None and gpu.column_label:
                gpus.setdefault(fault.message, []).append(gpu.label)
                break
    shown = list(gpus.items())[: _MAX_GPU_FAULTS if len(gpus) <= _MAX_GPU_FAULTS else _MAX_GPU_FAULTS - 1]
    words = "" if board.sums else "GPU "  # many hosts: labels begin with the name of the host
    lines = [line for message, those in shown for line in _alarm_lines(f"{words}{gpu_list(those)}: {message}", width)]
    if len(gpus) > len(shown):
        unnamed = {label for message, those in gpus.items() if message not in dict(shown) for label in those}
        rest = [gpu.label for gpu in board.snapshot.gpus if gpu.label in unnamed]
        lines += _alarm_lines(f"{words}{gpu_list(rest, most=8)}: more faults; vramtop --once shows all of them", width)
    return lines


_MAX_ANOMALY_LINES = 2
"""Lines about anomalies of GPUs: the rest of the screen is for the GPUs themselves."""


def _anomaly_lines(board: Board) -> list[Content]:
    """Return the anomalies on the GPUs, the one with the most memory first."""
    anomalies = sorted(board.anomalies, key=lambda anomaly: -anomaly.held_bytes)
    shown = anomalies if len(anomalies) <= _MAX_ANOMALY_LINES else anomalies[: _MAX_ANOMALY_LINES - 1]
    lines = [Content.assemble(tag("!"), f" GPU {each.gpu}: {printable(each.sentence)}") for each in shown]
    if len(anomalies) > len(shown):
        rest = anomalies[len(shown) :]
        gpus = gpu_list(sorted({each.gpu for each in rest}))
        lines.append(Content.assemble(tag("!"), f" {len(rest)} more on GPU {gpus}; vramtop --once shows all of them"))
    return lines


_MIN_HEIGHT = 30
"""Lines of a terminal in which there is room for this one."""
_MIN_OTHER_LINES = 20
"""Lines for everything but the GPUs."""


def needed_height(board: Board | None) -> int:
    """Return the lines of a terminal that has room for the line beside one line for each of the GPUs."""
    return max(_MIN_HEIGHT, (len(board.displayed_gpus) if board else 0) + _MIN_OTHER_LINES)


def host_line(load: HostLoad, width: int) -> Content:
    """Return the line, as much of it as fits."""
    busy = "n/a" if load.cpu_percent is None else f"{load.cpu_percent:.0f} %"
    if load.cpus is not None:
        cores = "core" if load.cpus == 1 else "cores"
        busy = f"{busy} of {load.cpus:g} {cores}{' (container)' if load.cpu_limited else ''}"
    parts = [Content("host"), Content(f"CPU {busy}"), _ram(load)]
    if load.swap_total_bytes:
        parts.append(Content(f"swap {format_gib(load.swap_used_bytes)} of {format_gib(load.swap_total_bytes)} GiB"))
    if load.load:
        parts.append(Content("load " + " ".join(f"{average:.1f}" for average in load.load)))
    return join_to_width(parts, width).stylize_before(MUTED)


_HIGH_RAM = 0.95
"""From this share of the RAM on, the kernel may soon end a process."""


def _ram(load: HostLoad) -> Content:
    used, total = load.ram_used_bytes, load.ram_total_bytes
    if used is None or total is None:
        return Content("RAM n/a")
    words = f"RAM {format_gib(used)} of {format_gib(total)} GiB{' (container)' if load.ram_limited else ''}"
    return tag(f"! {words}") if used >= _HIGH_RAM * total else Content(words)


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
    unread = _unread_processes(board)
    if not reasons and unread:
        return f"{unread[0]}: press {fit} to check whether a job fits"
    if not reasons:
        return f"no processes on these GPUs: press {fit} to check whether a job fits"
    counted = [f"{count} × {reason}" for reason, count in reasons.most_common(4)]
    named = ", ".join([*counted, *unread])
    return f"no running job has a budget ({named}): press {attach} to attach to one, {fit} to check a new job"


def _unread_processes(board: Board) -> list[str]:
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
