"""The dashboard screen: every GPU beside its budget, the pending jobs, and all processes."""

from __future__ import annotations

import math
import time
from collections import Counter
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.app import SystemCommand
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.geometry import Offset, Size
from textual.widgets import Input

from vramtop.estimator.common.errors import NOT_REHEARSED
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import BEING_READ, PendingRow
from vramtop.monitor.snapshot.gpu_list import gpu_list
from vramtop.monitor.storage.settings.schema import COLUMNS, HOST_LINE, SORT, VIEW

from ...draw.labels import (
    MUTED,
    SEPARATOR,
    WORST_FIRST,
    alarm,
    badge,
    gpu_labels,
    job_name,
    join_to_width,
    left_and_right,
    legend_line,
    severity_rank,
    shorten,
    urgent_label,
)
from ...draw.palette import STATUSES, VERDICTS, colour_of, on_colour
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.keys_line import KeysLine
from ...widgets.row_table import StaticLines
from ..base import FilterField, feed_signs, is_view_only
from ..registry import screen_bindings
from .gpu_area import DashboardLayout, GpuArea
from .gpu_rows import GpuRows
from .panel_places import PanelNeed, panel_needs, place_panels
from .panel_shape import FRAME_LINES
from .process_columns import columns_named
from .process_table import PROCESS_KEYS, ProcessTable, ProcessTableScreen
from .table_view import view_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.estimator.common.errors import Verdict
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import Board, Hidden, NoBudgetReason, ProcessRow, RunRow
    from vramtop.monitor.board.comparison import Status
    from vramtop.monitor.snapshot.demand import Demand
    from vramtop.monitor.snapshot.snapshot import GpuKey, HostLoad

    from ..base import BoardApp, BoardFeed

# The lines above the GPUs as text: the machine, warnings, and a summary of all jobs.


_SHORTENINGS = ((0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (3, 2))
"""Steps in which running and pending jobs are shortened until the summary fits the width."""
_CALM: tuple[Status, ...] = ("loading", "warming_up", "incomplete", "ended")
"""Statuses that need no attention."""
_MAX_NAMED_JOBS = 2
_MAX_ANOMALY_LINES = 2
"""Lines about anomalies of GPUs: the rest of the screen is for the GPUs themselves."""
_MAX_GPU_FAULTS = 2
"""Sentences about faults of whole GPUs."""
_VERDICTS_WORST_LAST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


def header_line(board: Board | None, feed: BoardFeed, width: int) -> Content:
    """Return the machine at the left, and interval and time of the readings at the right."""
    left: list[Content | str] = [Content.styled("vramtop", "bold")]
    right: list[Content | str] = []
    if feed.recording:
        right.append(
            Content.styled(f" ● recording {printable(feed.recording)} ", f"bold {on_colour(colour_of('bad'))}")
        )
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
        lines.append(
            Content.assemble((" REPLAY ", f"bold {on_colour(colour_of('uncertain'))}"), f" {printable(banner)}")
        )
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
            lines += _planning_lines(board)
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
    tag = Content.styled(" ONLY ", f"bold {on_colour(colour_of('uncertain'))}")
    return Content.assemble(tag, (f" {printable(hidden.by)}: ", "bold"), SEPARATOR.join(words))


def _alarm_lines(sentence: str, width: int) -> list[Content]:
    """Return a warning in full: it also says what to do."""
    words = wrap(printable(sentence), max(20, width - 4))
    return [Content.assemble((" ! ", alarm()) if not at else "   ", f" {line}") for at, line in enumerate(words)]


def _planning_lines(board: Board) -> list[Content]:
    """Return what can be done without a GPU."""
    faults = board.snapshot.faults
    lines = [] if faults else _alarm_lines("no GPU found on this machine", 80)
    if board.snapshot.source.is_live:
        words = f" press {shown_key('dashboard.fit_check')} to check a job against any GPU; --demo plays a recording"
        lines.append(Content.assemble((" PLANNING ", f"bold {on_colour(colour_of('uncertain'))}"), words))
    return lines


def _gpu_faults(board: Board, width: int) -> list[Content]:
    """Return faults of whole GPUs; GPUs with the same fault share a line."""
    gpus: dict[str, list[str]] = {}
    for gpu in board.snapshot.gpus:
        for fault in gpu.faults:
            if fault.field is None:
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


def _anomaly_lines(board: Board) -> list[Content]:
    """Return the anomalies on the GPUs, the one with the most memory first."""
    anomalies = sorted(board.anomalies, key=lambda anomaly: -anomaly.held_bytes)
    shown = anomalies if len(anomalies) <= _MAX_ANOMALY_LINES else anomalies[: _MAX_ANOMALY_LINES - 1]
    lines = [Content.assemble((" ! ", alarm()), f" GPU {each.gpu}: {printable(each.sentence)}") for each in shown]
    if len(anomalies) > len(shown):
        rest = anomalies[len(shown) :]
        gpus = gpu_list(sorted({each.gpu for each in rest}))
        lines.append(
            Content.assemble((" ! ", alarm()), f" {len(rest)} more on GPU {gpus}; vramtop --once shows all of them")
        )
    return lines


def summary_line(board: Board, width: int) -> Content:
    """Return all running jobs in one line, worst first, and whether the next pending one fits."""
    jobs = [*_by_job(board.runs), *_without_job(board)]
    reading = _reading(board)
    if not jobs and not board.pending:
        return Content.styled(reading or _without_budgets(board), MUTED).truncate(width, ellipsis=True)
    present = [status for status in WORST_FIRST if any(status == job.status for job in jobs)]
    settled = [status for status in present if status not in ("loading", "warming_up")]
    pressing = [status for status in settled if status not in ("on_budget", "ended")]
    heads = [[_named(status, jobs) for status in present]]
    heads += [[_count(status, jobs) for status in statuses] for statuses in (present, settled, pressing)]
    if more := reading if board.runs else "no running job has a budget":
        heads[0].append(Content.styled(more, MUTED))
        heads[1].append(Content.styled(more, MUTED))
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
    named = ", ".join([*(_counted(reason, count) for reason, count in reasons.most_common(4)), *unread])
    return f"no running job has a budget ({named}): press {attach} to attach to one, {fit} to check a new job"


_COUNTED: Mapping[NoBudgetReason, tuple[str, str]] = {
    "reading…": ("job being read", "jobs being read"),
    "no access": ("inaccessible process", "inaccessible processes"),
    "left alone": ("process left alone", "processes left alone"),
    "not attached": ("process not attached", "processes not attached"),
    "not training": ("other program", "other programs"),
    "job not read": ("unreadable job", "unreadable jobs"),
    "needs model": ("job with an unknown model", "jobs with an unknown model"),
    "unreadable": ("job with unreadable files", "jobs with unreadable files"),
    "no budget": ("job without an estimate", "jobs without an estimate"),
    "starting": ("starting process", "starting processes"),
    "ended": ("ended process", "ended processes"),
    "too many": ("process beyond the limit", "processes beyond the limit"),
    "server": ("server", "servers"),
    "notebook": ("notebook", "notebooks"),
    "desktop": ("desktop program", "desktop programs"),
    "helper": ("helper process", "helper processes"),
    "too long": ("command line too long", "command lines too long"),
    "too slow": ("job too slow to read", "jobs too slow to read"),
}
"""Reasons for having no budget as nouns, for one process and for several."""


def _counted(reason: NoBudgetReason, count: int) -> str:
    one, several = _COUNTED[reason]
    return f"{count} {one if count == 1 else several}"


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


def _by_job(runs: Sequence[RunRow]) -> list[_Running]:
    jobs = []
    for run in runs:
        ranks = [row for row in run.rows if row.comparison is not None]
        if ranks:
            level = min(severity_rank(row) for row in ranks)
            jobs.append(_Running(WORST_FIRST[level], tuple(row for row in ranks if severity_rank(row) == level)))
    return jobs


def _without_job(board: Board) -> list[_Running]:
    """Return the processes of unknown jobs that need attention: they grow, or have just run out of memory."""
    known = {key for run in board.runs for key in run.pids}
    rows = (row for row in (*board.processes, *board.ended) if row.process.key not in known and board.displays(row))
    return [_Running(row.comparison.status, (row,)) for row in rows if row.comparison and row.comparison.diverges]


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


# The line about the host: processors, RAM, swap and load, beside the limits of vramtop's container.


MIN_HEIGHT = 30
"""Lines of a terminal in which there is room for this one."""
_MIN_OTHER_LINES = 20
"""Lines for everything but the GPUs."""
_HIGH_RAM = 0.95
"""From this share of the RAM on, the kernel may soon end a process."""


def has_room(height: int, gpus: int) -> bool:
    """Return True if a terminal of this height has room for the line beside one line for each of the GPUs."""
    return height >= MIN_HEIGHT and height - gpus >= _MIN_OTHER_LINES


def host_line(load: HostLoad, width: int) -> Content:
    """Return the line, as much of it as fits."""
    parts = [Content("host"), _cpu(load), _ram(load)]
    if load.swap_total_bytes:
        parts.append(Content(f"swap {format_gib(load.swap_used_bytes)} of {format_gib(load.swap_total_bytes)} GiB"))
    if load.load:
        parts.append(Content("load " + " ".join(f"{average:.1f}" for average in load.load)))
    return join_to_width(parts, width).stylize_before(MUTED)


def _cpu(load: HostLoad) -> Content:
    busy = "n/a" if load.cpu_percent is None else f"{load.cpu_percent:.0f} %"
    if load.cpus is None:
        return Content(f"CPU {busy}")
    cores = "core" if load.cpus == 1 else "cores"
    return Content(f"CPU {busy} of {load.cpus:g} {cores}{' (container)' if load.cpu_limited else ''}")


def _ram(load: HostLoad) -> Content:
    used, total = load.ram_used_bytes, load.ram_total_bytes
    if used is None or total is None:
        return Content("RAM n/a")
    words = f"RAM {format_gib(used)} of {format_gib(total)} GiB{' (container)' if load.ram_limited else ''}"
    return Content.styled(f" ! {words} ", alarm()) if used >= _HIGH_RAM * total else Content(words)


# Keys of the dashboard.


DASHBOARD_KEYS: list[BindingType] = [
    *screen_bindings(),
    bind("list.filter", "filter", "Filter", help_text="filter the processes: pid, user, command, job, status, gpu3"),
    *PROCESS_KEYS,
    bind("dashboard.record", "app.record", "Record", show=False),
    bind("dashboard.dismiss", "dismiss_selected", "Dismiss", show=False),
    bind("dashboard.host_line", "host_line", "Host", show=False),
    bind("app.back", "show_all", "Show all"),
]


# The dashboard's layout: panels or rows, their heights, and what is left out when there is little room.


_MAX_GRAPH_HEIGHT = 8
_MIN_TABLE_HEIGHT = 5


def plan_layout(
    *,
    width: int,
    height: int,
    gpus: Sequence[PanelNeed],
    processes: int,
    pending: int,
    budgets: bool,
    hosts: bool = False,
) -> DashboardLayout:
    """Divide ``height`` lines so that all GPUs and some processes are visible, and graphs get the rest.

    Args:
        width: columns of the terminal.
        height: lines between summary and footer.
        gpus: how much room each GPU needs.
        processes: rows of the process table.
        pending: number of pending jobs.
        budgets: a budget is on the screen, so that its letters need a legend.
        hosts: the GPUs are of many hosts: they get rows, and processes at least half of the lines.
    """
    table = min(max(_MIN_TABLE_HEIGHT, processes + 1), max(8, height * 35 // 100))
    waiting = min(pending, max(1, height // 8))
    legend = budgets and height >= 30 and not hosts
    if hosts:
        return _rows(height, min(len(gpus), height // 2), table, waiting, legend=legend)
    places = place_panels(tuple(gpus), width=width, room=height - table - waiting - legend)
    if places is None:
        return _rows(height, len(gpus), table, waiting, legend=legend)
    return DashboardLayout(
        panels=places,
        graph_height=0,
        gpu_height=max((place.y + place.height for place in places), default=0),
        pending_height=waiting,
        legend=legend,
    )


def _rows(height: int, gpus: int, table: int, waiting: int, *, legend: bool) -> DashboardLayout:
    waiting = max(0, min(waiting, height - gpus - _MIN_TABLE_HEIGHT - 1))
    titles = height > _MIN_TABLE_HEIGHT  # of the table's lines, if there are no others
    left = height - gpus - table - waiting - titles - legend
    open_panel = left >= FRAME_LINES
    return DashboardLayout(
        panels=None,
        graph_height=min(_MAX_GRAPH_HEIGHT, left - FRAME_LINES) if open_panel else 0,
        gpu_height=max(1, min(gpus, height - _MIN_TABLE_HEIGHT)),
        titles=titles,
        open_panel=open_panel,
        pending_height=waiting,
        legend=legend and left >= 0,
    )


# The list of pending jobs: their verdicts now, and why.


_HIGHLIGHT_SECONDS = 60.0
"""A job is highlighted this long after it started or ceased to fit."""


class PendingList(StaticLines):
    """One line for each pending job, as many as there is room for."""

    def show_pending(self, rows: Sequence[PendingRow], *, width: int, height: int, now: float) -> None:
        """Show these jobs in ``height`` lines; the last line counts those that do not fit in."""
        shown = list(rows) if len(rows) <= height else list(rows[: max(0, height - 1)])
        asks = not is_view_only(self)
        lines = [pending_line(row, width, now, asks=asks) for row in shown]
        if len(rows) > len(shown):
            lines.append(Content.styled(f"pending … and {len(rows) - len(shown)} more", MUTED))
        self.display = height > 0
        self.show(Content("\n").join(lines[:height]), layout=True)


def pending_line(row: PendingRow, width: int, now: float, *, asks: bool = True) -> Content:
    """Return a pending job with its verdict and the reason; one whose verdict has just changed is highlighted.

    Args:
        row: the job.
        width: in cells.
        now: Unix seconds.
        asks: the fit check can be opened, which asks whether to rehearse a program.
    """
    if row.fit is None:
        verdict, reason = badge(VERDICTS["unknown"], "unknown"), row.problem or "no budget"
        if asks and reason.startswith(NOT_REHEARSED):
            keys = shown_key("dashboard.fit_check"), shown_key("fit.rehearse")
            reason = f"{NOT_REHEARSED}press {keys[0]}, then {keys[1]} to run it"
    else:
        verdict, reason = badge(VERDICTS[row.fit.verdict], row.fit.verdict), row.fit.sentence
        if row.budget is not None and row.budget.learned is not None:
            reason = f"{reason} · corrected, was {format_gib(row.budget.learned.uncorrected.device_bytes)}"
    is_new = row.fits_changed_at is not None and now - row.fits_changed_at < _HIGHLIGHT_SECONDS
    head = Content.styled(" NOW ", alarm()) if is_new else Content.styled("pending", MUTED)
    name = Content.styled(printable(row.job.label), "bold")
    return Content.assemble(head, " ", name, " ", verdict, " ", printable(reason)).truncate(width, ellipsis=True)


_HEAD_LINES = 3
"""Header, summary and footer."""


class DashboardScreen(ProcessTableScreen):
    """The first screen."""

    app: BoardApp
    AUTO_FOCUS = "ProcessTable"
    BINDINGS: ClassVar[list[BindingType]] = DASHBOARD_KEYS

    def __init__(self) -> None:
        super().__init__()
        self._gpu_area = GpuArea(self)
        self._drawn: tuple[Board, Size] | None = None
        """The board that was drawn last, and the size of the screen then."""
        self._head: tuple[Board | None, BoardFeed] | None = None
        """Board and feed that the lines at the top show."""
        self._head_height = 0
        """Lines of head, filter and footer."""
        self._refusal: str | None = ""
        """The refusal that the footer was drawn for; empty before the first board."""

    def compose(self) -> ComposeResult:
        """The machine, the GPUs, the pending jobs, the processes."""
        yield StaticLines(id="header")
        yield StaticLines(id="host")
        yield StaticLines(id="notices")
        yield StaticLines(id="summary")
        yield from self._gpu_area.compose()
        yield PendingList(id="pending")
        yield FilterField("filter: pid, user, command, job, status, gpu3")
        yield StaticLines(id="note")
        yield ProcessTable(id="processes")
        yield StaticLines(id="legend")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the board, if there is one already."""
        self.use_settings()
        if self.app.board:
            self.show_board(self.app.board)
        else:
            self._show_head(None, self.app.feed)

    def use_settings(self) -> None:
        """Show the table as the user has set it."""
        settings = self.app.settings
        self.table.show_view(view_named(settings.get(VIEW)))
        self.table.show_columns(columns_named(settings.get(COLUMNS)))
        self.table.sort_at_start(settings.get(SORT))

    @property
    def selected_gpu(self) -> GpuKey | None:
        """The GPU under the cursor of the rows; otherwise that of the table's row, or the first one."""
        rows, selected = self.query_one(GpuRows), self.table.selected
        if rows.has_focus and rows.selected is not None:
            return rows.selected.reading.key
        if selected is not None:
            return selected.gpu.key
        shown = self.app.board.displayed_gpus if self.app.board else ()
        return shown[0].reading.key if shown else None

    @property
    def demand(self) -> Demand:
        """The figures that it shows beyond memory."""
        return replace(self.table.demand, gpus=self._gpu_area.detailed, host=self._shows_host)

    @property
    def _shows_host(self) -> bool:
        gpus = len(self.app.board.displayed_gpus) if self.app.board else 0
        return bool(self.app.settings.get(HOST_LINE, True)) and has_room(self._area.height, gpus)

    @property
    def _area(self) -> Size:
        """The size of the screen, also before the first layout."""
        return self.size or self.app.size

    def show_board(self, board: Board) -> None:
        """Draw this board."""
        self._drawn = board, self._area
        width, feed = self._area.width, self.app.feed
        with self.app.batch_update():
            self.table.show_board(board, width=width)
            layout = self._plan(board, self._area.height - self._show_head(board, feed))
            self._gpu_area.show(board, layout, width=width, feed=feed, history=self.app.watchlist.history)
            self.query_one(PendingList).show_pending(
                board.pending, width=width - 2, height=layout.pending_height, now=board.snapshot.time
            )
            self.show_table_note()
            legend = self.query_one("#legend", StaticLines)
            legend.display = layout.legend
            if layout.legend:
                legend.show(legend_line(width - 2))
            if self._refusal != self.app.termination_refusal:
                self._refusal = self.app.termination_refusal
                self.refresh_bindings()

    def show_feed(self) -> None:
        """Draw the age of the readings; called once a second, even if none arrive."""
        board, feed, height = self.app.board, self.app.feed, self._head_height
        if self._head is not None and self._head[0] is board and self._head[1] == feed:
            return
        if (feed.age_seconds is None and self._show_head(board, feed) == height) or board is None:
            return
        self.show_board(board)

    @on(ProcessTable.Folded)
    def _draw_again(self) -> None:
        self._draw()

    @on(Resize)
    @on(ScreenResume)
    def _draw_if_outdated(self) -> None:
        if self._drawn is None or self._drawn[0] is not self.app.board or self._drawn[1] != self.size:
            self._draw()

    def _draw(self) -> None:
        if self.app.board and self.app.is_running and self.is_mounted and self.size.width:
            self.show_board(self.app.board)

    @on(GpuRows.Selected)
    def _select_gpu(self, event: GpuRows.Selected) -> None:
        if self.app.board:
            self._gpu_area.select(self.app.board, event.position)
        self._draw()

    @on(GpuRows.Opened)
    def _open_gpu(self, event: GpuRows.Opened) -> None:
        self.app.show_gpu(event.key)

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.table.filter_by(event.value)
        self.show_table_note()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        if not self.table.filter_words:
            self.query_one("#filter").display = False
            self.refresh_bindings()
        self.table.focus()

    @on(ProcessTable.Opened)
    def _show_details(self, event: ProcessTable.Opened) -> None:
        self.app.show_process(event.row)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer only keys that do something; if no process can be terminated, k says why."""
        if action == "show_all":
            return not self.table.marks and bool(self.query_one("#filter").display)
        return self.offers(action)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterField).open()
        self.call_after_refresh(self._draw)

    def action_filter_by_user(self) -> None:
        """Show only the processes of the user under the cursor; again: all."""
        row, field = self.selected_process, self.query_one(FilterField)
        words = f"user:{row.process.user}" if row is not None and row.process.user else ""
        if not words:
            self.notify("There is no process of a known user under the cursor.", severity="warning")
        elif field.value == words:
            self.action_show_all()
        else:
            field.value, field.display = words, True
            self.refresh_bindings()
            self.call_after_refresh(self._draw)

    def action_show_all(self) -> None:
        """Remove the filter."""
        self.query_one(FilterField).close(self.table)
        self.call_after_refresh(self._draw)

    def action_dismiss_selected(self) -> None:
        """Dismiss the ended run under the cursor; otherwise unpin a pending job."""
        row, board, app = self.selected_process, self.app.board, self.app
        if row is not None and row.ended_at is not None and board is not None:
            pids = next((run.pids for run in board.runs if row.process.key in run.pids), (row.process.key,))
            app.watchlist.dismiss_runs(pids)
            app.rebuild_board()
            return
        jobs = app.watchlist.pending()
        if jobs:
            app.choose_job(jobs, self._unpin, Offset(1, self.query_one(PendingList).region.bottom))
        else:
            self.notify("No job is pinned here; jobs of a recording cannot be unpinned.", severity="warning")

    def action_host_line(self) -> None:
        """Show the load of the host, or hide it."""
        self.app.save_setting(HOST_LINE, not self.app.settings.get(HOST_LINE, True))
        self.app.update_demand()
        self._draw()

    def commands(self) -> Iterable[SystemCommand]:
        """Return the commands of the command palette for this screen."""
        yield SystemCommand("Dismiss", "An ended run, or a pending job", self.action_dismiss_selected)
        yield SystemCommand("Filter", "Show only some of the processes", self.action_filter)
        yield from self.process_commands()

    def redraw(self) -> None:
        """Draw everything again, because the theme has changed."""
        self.table.redraw()
        self._draw()

    def _unpin(self, job: Job) -> None:
        self.app.watchlist.remove_pending(job)
        self.notify(f"{job.label} is no longer pending.", markup=False)

    def _show_head(self, board: Board | None, feed: BoardFeed) -> int:
        """Draw the lines at the top; return the lines that they, the filter and the footer take."""
        self._head = board, feed
        width = self._area.width - 2
        self.query_one("#header", StaticLines).show(header_line(board, feed, width))
        host = board.snapshot.host if board and self._shows_host else None
        load = self.query_one("#host", StaticLines)
        load.display = host is not None
        if host:
            load.show(host_line(host, width))
        warnings = notices(board, feed, width)
        self.query_one("#notices", StaticLines).show_if_any(warnings)
        summary = self.query_one("#summary", StaticLines)
        summary.display = board is not None
        if board:
            summary.show(summary_line(board, width))
        self._head_height = _HEAD_LINES + load.display + len(warnings) + bool(self.query_one("#filter").display)
        return self._head_height

    def _plan(self, board: Board, height: int) -> DashboardLayout:
        return plan_layout(
            width=self._area.width,
            height=height,
            gpus=panel_needs(board.displayed_gpus),
            processes=self.table.needed_rows,
            pending=len(board.pending),
            budgets=any(gpu.expected_bytes is not None for gpu in board.gpus),
            hosts=board.sums is not None,
        )
