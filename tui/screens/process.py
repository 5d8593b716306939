"""The process screen: what one process does now, and everything about it that this user may read."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.content import Content

from vramtop.estimator.common.sizes import GIB, KIB, MIB, format_gib
from vramtop.monitor.board.board import REASONS_IN_WORDS
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.host.process_directory import GONE_NOTE
from vramtop.monitor.snapshot.demand import Demand

from ..background.latest_only_task import LatestOnlyTask
from ..draw.labels import (
    MUTED,
    SEPARATOR,
    badge,
    budget_label,
    format_duration,
    left_and_right,
    process_name,
    shorten,
    urgent_label,
)
from ..draw.palette import STATUSES
from ..draw.process_figures import figure_reason, figure_text
from ..draw.text_output import printable
from ..keys import bind
from ..widgets.keys_line import KeysLine
from ..widgets.static_lines import StaticLines
from .base import BoardApp, DrawnScreen, ShowsProcess, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.host.inspect.process_details import CgroupFacts, ProcessDetails
    from vramtop.monitor.snapshot.demand import ProcessFigure
    from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessKey

# Lines about what a process does now: its memory and utilisation on each GPU, processors, RAM and threads.


FIGURES: tuple[ProcessFigure, ...] = ("sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads")
"""All figures: the screen shows each of them."""
_NAMED_KINDS = ("training", "notebook", "helper")
_NARROW_COLUMNS = 100


def figure_lines(rows: Sequence[ProcessRow], width: int, *, live: bool) -> Iterator[Content]:
    """Yield a line for each GPU that the process is on, one for the host, and why figures are n/a.

    Args:
        rows: the process on each of its GPUs; at least one.
        width: cells of a line.
        live: the snapshots are of this machine now.
    """

    def share(row: ProcessRow, name: str, figure: ProcessFigure) -> Content:
        text = figure_text(figure, row.process.figures, live=live)
        known = text not in ("n/a", "…")
        return Content.assemble(
            (f"{name:<4}", MUTED), (f"{text:>5}", "bold" if known else MUTED), " % " if known else ""
        )

    yield _job_line(rows[0])
    for row in rows:
        held = size_text(row.process.used_bytes)
        yield Content.assemble(
            ("GPU ", MUTED),
            (f"{row.gpu.label:<4}", "bold"),
            ("  VRAM ", MUTED),
            (f"{held:>10}", "bold"),
            "   ",
            share(row, "SM", "sm_percent"),
            "   ",
            share(row, "bandwidth ", "bandwidth_percent"),
        )
    first = rows[0]
    rss, threads = (figure_text(name, first.process.figures, live=live) for name in ("rss_bytes", "threads"))
    if first.process.figures and first.process.figures.rss_bytes is not None:
        rss = size_text(first.process.figures.rss_bytes)
    yield Content.assemble(
        ("host      RAM  ", MUTED),
        (f"{rss:>10}", "bold"),
        "   ",
        share(first, "CPU", "cpu_percent"),
        ("   threads ", MUTED),
        (threads, "bold"),
        ("   CPU: 100 % is one core", MUTED) if width >= _NARROW_COLUMNS else "",
    )
    yield from _reasons(rows, live=live)


def size_text(size: int | None) -> str:
    """Return a size in GiB, or in MiB or KiB if it is small; n/a if it is unknown."""
    if size is None or size >= GIB // 10:
        return "n/a" if size is None else f"{format_gib(size)} GiB"
    return f"{size / MIB:.0f} MiB" if size >= MIB else f"{size / KIB:.0f} KiB" if size else "0"


def _job_line(row: ProcessRow) -> Content:
    """Return what the process is, its job, and how it compares with its budget."""
    kind = kind_label(row.kind, row.program_name) or (row.kind if row.kind in _NAMED_KINDS else "not a known program")
    parts = [Content.styled(printable(row.job.label), "bold") if row.job else Content(printable(kind))]
    if row.budget:
        parts.append(Content(f"budget {budget_label(row)} GiB"))
    if row.comparison:
        status = badge(STATUSES[row.comparison.status], row.comparison.status)
        parts.append(Content.assemble(status, urgent_label(row, unit=" GiB")))
    elif row.no_budget_reason:
        reason = REASONS_IN_WORDS.get(row.no_budget_reason, row.no_budget_reason)
        parts.append(Content.styled(f"no budget: {reason}", MUTED))
    return Content.assemble(("is        ", MUTED), Content.styled(SEPARATOR, MUTED).join(parts))


def _reasons(rows: Sequence[ProcessRow], *, live: bool) -> Iterator[Content]:
    """Yield why figures are n/a, each reason once."""
    reasons: dict[str, None] = {}
    for row in rows:
        for figure in FIGURES:
            reason = figure_reason(figure, row.process.figures, live=live)
            if reason:
                reasons.setdefault(reason)
    yield from (Content.styled(f"n/a: {printable(reason)}", MUTED) for reason in reasons)


_MAX_COMMAND_WIDTH = 100
"""A longer command line has a line for each option."""
_MAX_PARENT_WIDTH = 140
"""Limit of the command of a parent: only this process's own is shown whole."""
_TRAINING_VARIABLES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_"),
    *("DEEPSPEED_", "DS_", "FSDP_", "XFORMERS_", "VLLM_", "SGLANG_", "TRITON_", "TOKENIZERS_", "WANDB_", "MLFLOW_"),
    *("SLURM_", "OMPI_", "PMI_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("OMP_", "MKL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "VIRTUAL_ENV", "CONDA_", "UCX_", "GLOO_"),
)
"""Beginnings of the names of variables that a training job depends on: they come first."""
_HIDDEN = "hidden from this user: only its owner and root can read it"


def detail_lines(details: ProcessDetails) -> Iterator[Content]:
    """Yield all details under their headings, the one that is asked for most first."""
    yield from _part("Command", _command_lines([printable(argument) for argument in details.arguments]))
    yield from _part("Place", _place_lines(details))
    yield from _part(f"Parents ({len(details.parents)})", _parent_lines(details))
    yield from _part("Environment at its start", _environment_lines(details))


def listed_lines(process: GpuProcess) -> Iterator[Content]:
    """Yield what a snapshot knows of a process: its command, its parent, and anything unusual but that it is gone."""
    lines = [*_command_lines(printable(process.command or process.name or "").split())]
    lines += [_named("parent", str(process.parent))] if process.parent else []
    lines += [_named("note", process.note)] if process.note not in (None, GONE_NOTE) else []
    yield from _part("Command", lines)


def _part(title: str, lines: Iterable[Content]) -> Iterator[Content]:
    yield Content.styled(title, "bold underline")
    yield from lines
    yield Content()


def _command_lines(arguments: Sequence[str]) -> Iterable[Content]:
    """Yield the command line; if it is long, each option with its values on a line of its own."""
    whole = " ".join(arguments)
    if len(whole) <= _MAX_COMMAND_WIDTH:
        yield Content(whole) if whole else Content.styled("hidden, or a kernel thread", MUTED)
        return
    line: list[str] = []
    for argument in arguments:
        if argument.startswith("-") and len(argument) > 1 and not argument[1].isdigit() and line:
            yield Content(" ".join(line))
            line = [" "]
        line.append(argument)
    yield Content(" ".join(line))


def _place_lines(details: ProcessDetails) -> Iterable[Content]:
    yield _named("directory", details.folder)
    yield _named("program", details.program)
    for container in details.containers:
        yield _named("runs in", container)
    yield _named("cgroup", details.cgroup.path if details.cgroup else None)
    if details.cgroup and (limits := _group_limits(details.cgroup)):
        yield _named("", limits)


def _group_limits(cgroup: CgroupFacts) -> str:
    """Return what the processes of a control group use together, and its limits."""
    limits = []
    if cgroup.memory_bytes is not None:
        limits.append(f"RAM of all its processes {size_text(cgroup.memory_bytes)}")
    if cgroup.memory_limit_bytes is not None:
        limits.append(f"limit {size_text(cgroup.memory_limit_bytes)}")
    elif cgroup.memory_bytes is not None:
        limits.append("no limit")
    limits += [] if cgroup.cpu_limit is None else [f"at most {cgroup.cpu_limit:g} CPUs"]
    limits += [] if cgroup.tasks_limit is None else [f"at most {cgroup.tasks_limit:,} processes and threads"]
    return ", ".join(limits)


def _parent_lines(details: ProcessDetails) -> Iterable[Content]:
    """Yield the ancestors, the first of them at the top, each line further in than the one before."""
    chain = [(each.pid, each.user, each.command) for each in reversed(details.parents)]
    if not chain:
        yield Content.styled("none visible", MUTED)
        return
    chain.append((details.pid, details.user, "this process"))
    for depth, (pid, user, command) in enumerate(chain):
        branch = "  " * max(0, depth - 1) + ("└ " if depth else "")
        words = shorten(printable(command), _MAX_PARENT_WIDTH)
        yield Content.assemble(branch, (str(pid), "bold"), (f" {printable(user or 'n/a')} ", MUTED), words)


def _environment_lines(details: ProcessDetails) -> Iterable[Content]:
    if details.environment is None:
        yield Content.styled(_HIDDEN, MUTED)
        return
    items = sorted(details.environment.items(), key=lambda item: (not item[0].startswith(_TRAINING_VARIABLES), item))
    for name, value in items:
        style = "bold" if name.startswith(_TRAINING_VARIABLES) else ""
        yield Content.assemble((printable(name), style), ("=", MUTED), printable(value))


def _named(name: str, text: str | None) -> Content:
    shown = (_HIDDEN, MUTED) if text is None else printable(text)
    return Content.assemble((f"{name:<12}", MUTED), shown)


PROCESS_INFO_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("dashboard.process", "app.pop_screen", help_text=""),
    bind("process.read", "read", "Read again"),
    bind("dashboard.attach", "attach", "Attach", help_text="settings and budget: those of this process"),
]


def _read_details(pid: int, start_time: float | None) -> ProcessDetails:
    from vramtop.monitor.host.inspect.process_details import (
        read_details,  # on the thread that reads: it brings the readers of jobs
    )

    return read_details(pid, start_time)


class ProcessInfoScreen(DrawnScreen[None]):
    """Shows one process; its details are read off the UI thread, once and at the key for it.

    Args:
        key: pid and start time of the process.
        read: reads the details of a process; called off the UI thread.
    """

    app: BoardApp
    TITLE = "Process"
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = PROCESS_INFO_KEYS
    DEFAULT_CSS = """
    ProcessInfoScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    ProcessInfoScreen #figures { padding: 0 1; text-wrap: wrap; }
    ProcessInfoScreen #parts {
        height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; border-top: hkey $foreground 20%;
    }
    ProcessInfoScreen #details { text-wrap: wrap; }
    """

    def __init__(self, key: ProcessKey, *, read: Callable[[int, float | None], ProcessDetails] = _read_details) -> None:
        super().__init__()
        self._key = key
        self._read = read
        self._rows: tuple[ProcessRow, ...] = ()
        """The process on each of its GPUs, as of the last board that had it."""
        self._board: Board | None = None
        """The board that was shown last."""
        self._present = False
        """The latest board has it."""
        self._details: ProcessDetails | None = None
        self._problem: str | None = None
        """Why there are no details."""
        self._read_task = LatestOnlyTask("process", self.call_later, self._show_details, self._show_problem)

    @property
    def demand(self) -> Demand:
        """All figures of this process."""
        return Demand(process_figures=frozenset(FIGURES), processes=frozenset({self._key}))

    @property
    def shown_process(self) -> ProcessKey:
        """The process."""
        return self._key

    def compose(self) -> ComposeResult:
        """The figures, and the details below."""
        yield StaticLines(id="title")
        yield StaticLines(id="figures")
        with VerticalScroll(id="parts", can_focus=True):
            yield StaticLines(id="details")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the details."""
        if not is_complete(self):  # the app is being closed
            return
        self.query_one("#parts").focus()
        if self.app.board:
            self.show_board(self.app.board)
        self.action_read()

    def on_unmount(self) -> None:
        """Deliver no result any more."""
        self._read_task.cancel()

    def show_board(self, board: Board) -> None:
        """Show the figures of this board."""
        if board is self._board:
            return
        self._board = board
        rows = tuple(row for row in board.processes if row.process.key == self._key)
        self._present = bool(rows)
        if rows:
            self._rows = rows
        self.redraw()

    def action_read(self) -> None:
        """Read the details again."""
        pid, start_time = self._key
        if not self._is_live:
            of_hosts = self.app.board is not None and self.app.board.sums is not None
            where = "on another host" if of_hosts else "in the open recording"
            self._show_problem(f"The process is {where}, not on this machine.")
        elif start_time is not None:
            self._read_task.submit(partial(self._read, pid, start_time))
        elif not self._present:  # else the figures say so
            self._show_problem(f"Process {pid} is not visible from here: it has ended, or runs in another container.")

    def action_attach(self) -> None:
        """Open the attach screen on this process."""
        if self._rows:
            self.app.show_process(self._rows[0])
        else:
            self.notify("This process is not on a GPU now.", severity="warning")

    @property
    def _is_live(self) -> bool:
        board = self.app.board
        return board is None or board.snapshot.source.is_live

    def _show_details(self, details: ProcessDetails) -> None:
        self._details, self._problem = details, None
        self.redraw()

    def _show_problem(self, sentence: str) -> None:
        self._problem = sentence
        self.redraw()

    def draw(self) -> None:
        """Draw everything."""
        width = self.size.width - 2
        self.query_one("#title", StaticLines).show(self._title(width))
        if self._present:
            lines = figure_lines(self._rows, width, live=self._is_live)
        else:
            lines = iter([Content.styled("The process is not on a GPU now, so there are no figures.", MUTED)])
        self.query_one("#figures", StaticLines).show(Content("\n").join(lines), layout=True)
        self.query_one("#details", StaticLines).show(Content("\n").join(self._lines()), layout=True)

    def _lines(self) -> Iterator[Content]:
        """Yield the details; where the process cannot be read, why, and what was known of it before."""
        if self._problem is not None:
            yield Content.styled(self._problem, "$text-warning")
            yield Content.styled("Below: last reading" if self._details or self._rows else "", MUTED)
        if self._details is not None:
            yield from detail_lines(self._details)
        elif self._rows:
            if not self._is_live and (comparison := self._rows[0].comparison):
                yield Content(printable(comparison.sentence))
            yield from listed_lines(self._rows[0].process)
        elif self._problem is None:
            yield Content.styled("… reading the process", MUTED)

    def _title(self, width: int) -> Content:
        pid, start_time = self._key
        row = self._rows[0] if self._rows else None
        name = process_name(row.process) if row else ""
        user = (self._details.user if self._details else None) or (row.process.user if row else None)
        facts = [f"Process {pid}" if pid >= 0 else "Process", *([name] if name else []), printable(user or "user n/a")]
        if start_time is not None and start_time >= 0:
            now = self.app.board.snapshot.time if self.app.board else time.time()
            started = datetime.fromtimestamp(start_time).astimezone()
            facts += [f"started {started:%d %b %H:%M:%S}", f"up {format_duration(max(0.0, now - start_time))}"]
        read = datetime.fromtimestamp(self._details.time).astimezone() if self._details else None
        right = Content.styled(f"details of {read:%H:%M:%S}", MUTED) if read and width >= 100 else Content()
        return left_and_right(Content(" · ".join(facts)), right, width)


# Opens the process screen on the process that the screen in front shows.


def open_process(app: BoardApp) -> None:
    """Show the process under the cursor of the dashboard or of the attach screen."""
    front = app.screen
    if isinstance(front, ShowsProcess):
        key = front.shown_process
    else:
        key = app.selected_process.process.key if app.selected_process else None
    show_process_details(app, key)


def show_process_details(app: BoardApp, key: ProcessKey | None) -> None:
    """Show a process; None: there is none, and a notification says so."""
    if key is None:
        app.notify("There is no process under the cursor.", severity="warning")
    else:
        app.push_once(ProcessInfoScreen(key))
