"""The process screen: what one process does now, and everything about it that this user may read."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input

from vramtop.estimator.common.sizes import GIB, KIB, MIB, format_gib
from vramtop.monitor.board.board import REASONS_IN_WORDS
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot.snapshot import DRIVER_FIGURES, Demand, ProcessKey

from ..background.latest_only_task import LatestOnlyTask
from ..draw.labels import (
    FAINT,
    MUTED,
    SEPARATOR,
    badge,
    budget_label,
    figure_reason,
    figure_text,
    format_duration,
    left_and_right,
    process_name,
    shorten,
    urgent_label,
)
from ..draw.memory_graph import EIGHTHS
from ..draw.palette import STATUSES
from ..draw.text_output import printable
from ..keys import bind, shown_key
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import StaticLines
from .base import BoardApp, DrawnScreen, FilterField, ShowsProcess, is_ascii_only, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.host.inspect.process_details import CgroupFacts, Limit, OpenFile, ProcessDetails
    from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessFigure

# Lines about what a process does now: its memory and utilisation on each GPU, processors, RAM and threads.


FIGURES: tuple[ProcessFigure, ...] = ("sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads")
"""All figures: the screen shows each of them."""
MAX_SAMPLES = 120
"""Readings that a graph can show: as many as the widest has columns."""
_NAMED_KINDS = ("training", "notebook", "helper")
NO_SAMPLE = "·"
"""In a graph: the figure was not read, or is unknown."""
_NARROW_COLUMNS = 100
_FIXED_COLUMNS = 61
"""Width of a line about a GPU, without its two graphs."""
_ASCII_LEVELS = " .:-=+*#@"


class FigureHistory:
    """The latest readings of the figures of one process, from when its screen was opened."""

    def __init__(self) -> None:
        self._samples: defaultdict[tuple[str, ProcessFigure], deque[float | None]] = defaultdict(
            lambda: deque(maxlen=MAX_SAMPLES)
        )

    def record(self, rows: Sequence[ProcessRow]) -> None:
        """Add the figures of a board."""
        for row in rows:
            for figure in FIGURES:
                if figure in DRIVER_FIGURES or row is rows[0]:
                    value = None if row.gpu.is_stale else getattr(row.process.figures, figure, None)
                    self._samples[self._place(row, figure), figure].append(value)

    def graph(self, row: ProcessRow, figure: ProcessFigure, width: int, top: float, *, ascii_only: bool) -> str:
        """Return the latest readings, the last at the right; a dot (in ASCII a blank) is a missing one.

        Args:
            row: the process on one GPU.
            figure: which.
            width: columns.
            top: value of a full column, unless there was a higher one.
            ascii_only: draw with ASCII characters only.
        """
        levels, none = (_ASCII_LEVELS, " ") if ascii_only else (EIGHTHS, NO_SAMPLE)
        samples = list(self._samples[self._place(row, figure), figure])[-width:] if width > 0 else []
        top = max([top, *(value for value in samples if value is not None)])
        steps = len(levels) - 1
        columns = (
            none if value is None else levels[max(1, min(steps, round(value / top * steps)))] if value > 0 else "_"
            for value in samples
        )
        return "".join(columns).rjust(width, none)

    def _place(self, row: ProcessRow, figure: ProcessFigure) -> str:
        return row.gpu.label if figure in DRIVER_FIGURES else ""


def figure_lines(
    rows: Sequence[ProcessRow], history: FigureHistory, width: int, *, live: bool, ascii_only: bool
) -> Iterator[Content]:
    """Yield a line for each GPU that the process is on, one for the host, and why figures are n/a.

    Args:
        rows: the process on each of its GPUs; at least one.
        history: earlier figures.
        width: cells of a line.
        live: the snapshots are of this machine now.
        ascii_only: draw with ASCII characters only.
    """
    graph_width = max(0, min(MAX_SAMPLES, (width - _FIXED_COLUMNS) // 2))

    def with_graph(row: ProcessRow, name: str, figure: ProcessFigure, unit: str, top: float) -> Content:
        text = figure_text(figure, row.process.figures, live=live)
        graph = history.graph(row, figure, graph_width, top, ascii_only=ascii_only)
        known = text not in ("n/a", "…")
        return Content.assemble(
            (f"{name:<4}", MUTED),
            (f"{text:>5}", "bold" if known else MUTED),
            (f" {unit if known else ' ' * len(unit)} ", MUTED),
            *((run, FAINT if run[0] == NO_SAMPLE else "$text-primary") for run in _runs(graph)),
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
            with_graph(row, "SM", "sm_percent", "%", 100.0),
            "   ",
            with_graph(row, "bandwidth ", "bandwidth_percent", "%", 100.0),
        )
    first = rows[0]
    rss, threads = (figure_text(name, first.process.figures, live=live) for name in ("rss_bytes", "threads"))
    if first.process.figures and first.process.figures.rss_bytes is not None:
        rss = size_text(first.process.figures.rss_bytes)
    yield Content.assemble(
        ("host      RAM  ", MUTED),
        (f"{rss:>10}", "bold"),
        "   ",
        with_graph(first, "CPU", "cpu_percent", "%", 100.0),
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


def _runs(graph: str) -> Iterator[str]:
    """Yield the dots of a graph, and what is between them."""
    return ("".join(run) for _, run in groupby(graph, key=lambda column: column == NO_SAMPLE))


def _reasons(rows: Sequence[ProcessRow], *, live: bool) -> Iterator[Content]:
    """Yield why figures are n/a, each reason once."""
    reasons: dict[str, None] = {}
    for row in rows:
        for figure in FIGURES:
            reason = figure_reason(figure, row.process.figures, live=live)
            if reason:
                reasons.setdefault(reason)
    yield from (Content.styled(f"n/a: {printable(reason)}", MUTED) for reason in reasons)


# The parts of the process screen as text: command, place, parents, environment, open files, limits.


MAX_LINES = 1000
"""Limit of one part: a process may have a million files open."""
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
_UNITS = {"bytes": "bytes", "seconds": "s", "us": "µs"}
"""Units of limits that their names do not say."""
_HIDDEN = "hidden from this user: only its owner and root can read it"


class Part(msgspec.Struct, frozen=True):
    """A part of the screen."""

    title: str
    lines: tuple[Content, ...]


def detail_parts(details: ProcessDetails) -> tuple[Part, ...]:
    """Return all parts, the one that is asked for most first."""
    return (
        Part("Command", tuple(_command_lines([printable(argument) for argument in details.arguments]))),
        Part("Place", tuple(_place_lines(details))),
        Part(f"Parents ({len(details.parents)})", tuple(_parent_lines(details))),
        Part(*_environment(details)),
        Part(*_files(details)),
        Part("Limits", tuple(_limit_lines(details.limits))),
    )


def listed_part(process: GpuProcess) -> Part:
    """Return what a snapshot knows of a process: its command, its parent, and what is unusual about it."""
    lines = [*_command_lines(printable(process.command or process.name or "").split())]
    lines += [_named("parent", str(process.parent))] if process.parent else []
    lines += [_named("note", process.note)] if process.note else []
    return Part("Command", tuple(lines))


def matching_parts(parts: Iterable[Part], words: str) -> tuple[Part, ...]:
    """Return the parts with only those lines that contain every word, in any case; parts without one are left out."""
    wanted = words.lower().split()
    if not wanted:
        return tuple(parts)
    found = (
        Part(part.title, tuple(line for line in part.lines if all(word in line.plain.lower() for word in wanted)))
        for part in parts
    )
    return tuple(part for part in found if part.lines)


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
    ram = details.ram
    if ram:
        parts = [f"{size_text(ram[name])} {word}" for name, word in _RAM_WORDS.items() if ram.get(name)]
        yield _named("RAM", f"{size_text(ram.get('resident'))} resident: {', '.join(parts)}")
        more = [f"peak {size_text(ram['peak'])}"] if "peak" in ram else []
        more += [f"swapped out {size_text(ram['swap'])}"] if "swap" in ram else []
        yield _named("", ", ".join(more))
    if details.cpus is not None:
        yield _named("CPUs", f"allowed CPUs {details.cpus}")


_RAM_WORDS = {"own": "its own", "files": "of files", "shared": "shared memory", "locked": "locked"}


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


def _environment(details: ProcessDetails) -> tuple[str, tuple[Content, ...]]:
    if details.environment is None:
        return "Environment", (Content.styled(_HIDDEN, MUTED),)
    items = sorted(details.environment.items(), key=lambda item: (not item[0].startswith(_TRAINING_VARIABLES), item))
    lines = [
        Content.assemble(
            (printable(name), "bold" if name.startswith(_TRAINING_VARIABLES) else ""), ("=", MUTED), printable(value)
        )
        for name, value in items
    ]
    title = f"Environment at its start ({len(items)})"
    return title, _capped(lines, "variables") or (Content.styled("empty", MUTED),)


def _files(details: ProcessDetails) -> tuple[str, tuple[Content, ...]]:
    if details.files is None:
        return "Open files", (Content.styled(_HIDDEN, MUTED),)
    counts = sorted(details.other_descriptors.items())
    others = ", ".join(f"{count:,} {kind.removesuffix('s') if count == 1 else kind}" for kind, count in counts)
    title = f"Open files ({len(details.files):,}{'; ' + others if others else ''})"
    return title, _capped([_file_line(file) for file in details.files], "files") or (Content.styled("none", MUTED),)


def _file_line(file: OpenFile) -> Content:
    notes = [f"× {file.descriptors}"] if file.descriptors > 1 else []
    notes += ["deleted; its disk space is freed when it is closed"] if file.deleted else []
    return Content.assemble(printable(file.path), (f"  {', '.join(notes)}" if notes else "", MUTED))


def _limit_lines(limits: Sequence[Limit] | None) -> Iterable[Content]:
    if limits is None:
        yield Content.styled(_HIDDEN, MUTED)
        return
    for limit in limits:
        soft, hard = _limit_value(limit.soft, limit.unit), _limit_value(limit.hard, limit.unit)
        at_most = "" if soft == hard else f" (can be raised to {hard})"
        yield _named(limit.name, f"{soft}{at_most}", width=18)


def _limit_value(value: int | None, unit: str) -> str:
    if value is None:
        return "unlimited"
    if unit == "bytes" and value >= 2**20:
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:,} {_UNITS.get(unit, '')}".rstrip()


def _capped(lines: Sequence[Content], what: str) -> tuple[Content, ...]:
    if len(lines) <= MAX_LINES:
        return tuple(lines)
    more = Content.styled(f"and {len(lines) - MAX_LINES:,} more {what}", MUTED)
    return (*lines[:MAX_LINES], more)


def _named(name: str, text: str | None, *, width: int = 12) -> Content:
    shown = (_HIDDEN, MUTED) if text is None else printable(text)
    return Content.assemble((f"{name:<{width}}", MUTED), shown)


# Keys of the process screen.


PROCESS_INFO_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.process", "leave", help_text=""),
    bind("list.filter", "filter", "Filter", help_text="show only lines with these words; Back shows all again"),
    bind("process.next_part", "section(1)", "Next"),
    bind("process.previous_part", "section(-1)"),
    bind("process.read", "read", "Read again"),
    bind("dashboard.attach", "attach", "Attach", help_text="the settings and the budget of this process"),
    bind("list.down", "scroll(1)"),
    bind("list.up", "scroll(-1)"),
    bind("list.page_down", "scroll_page(1)"),
    bind("list.page_up", "scroll_page(-1)"),
    bind("list.first", "scroll_to_edge(-1)"),
    bind("list.last", "scroll_to_edge(1)"),
]


# The process screen: the figures of one process at each reading, and its details as they were read.


_MAX_PARTS = 8
"""Six, and two lines that say why they cannot be read again."""


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
    ProcessInfoScreen #figures { padding: 0 1; }
    ProcessInfoScreen #parts {
        height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; border-top: hkey $foreground 20%;
    }
    ProcessInfoScreen .part { text-wrap: wrap; padding: 0 0 1 0; }
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
        self._history = FigureHistory()
        self._details: ProcessDetails | None = None
        self._problem: str | None = None
        """Why there are no details."""
        self._parts: tuple[Part, ...] = ()
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
        yield FilterField("show only lines with these words, such as CUDA")
        with VerticalScroll(id="parts", can_focus=True):
            for at in range(_MAX_PARTS):
                yield StaticLines(id=f"part-{at}", classes="part")
        yield KeysLine()

    def on_mount(self) -> None:
        """Read the details."""
        if not is_complete(self):  # the app is being closed
            return
        self.query_one("#parts").focus()
        if self.app.board:
            self.show_board(self.app.board)
        self._draw_parts()
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
            self._history.record(rows)
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Before the screen has its widgets it can only be left."""
        return action == "leave" or is_complete(self)

    def action_read(self) -> None:
        """Read the details again."""
        pid, start_time = self._key
        if not self._is_live:
            self._show_problem("The process is in the open recording, not on this machine.")
        elif start_time is None:
            self._show_problem(f"Process {pid} is not visible from here: it has ended, or runs in another container.")
        else:
            self._read_task.submit(partial(self._read, pid, start_time))

    def action_attach(self) -> None:
        """Open the attach screen on this process."""
        if self._rows:
            self.app.show_process(self._rows[0])
        else:
            self.notify("This process is not on a GPU now.", severity="warning")

    def action_leave(self) -> None:
        """Show all lines again; if all are shown, leave the screen."""
        box = self.query_one(FilterField) if is_complete(self) else None
        if box and box.display:
            box.close(self.query_one("#parts"))
        else:
            self.app.pop_screen()

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterField).open()

    @on(Input.Changed, "#filter")
    def _filter(self) -> None:
        self._draw_parts()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        self.query_one("#parts").focus()

    def action_section(self, by: int) -> None:
        """Scroll to the next part (1), or to the previous one (-1)."""
        scroll = self.query_one("#parts", VerticalScroll)
        tops = [part.virtual_region.y for part in scroll.query(StaticLines) if part.display]
        at = scroll.scroll_offset.y
        found = [top for top in tops if top > at] if by > 0 else [top for top in reversed(tops) if top < at]
        target = found[0] if found and at < scroll.max_scroll_y + (by < 0) else 0
        scroll.scroll_to(y=target, animate=False, immediate=True)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#parts").scroll_relative(y=by, animate=False)

    def action_scroll_page(self, by: int) -> None:
        """Scroll by pages."""
        parts = self.query_one("#parts")
        parts.scroll_relative(y=by * max(1, parts.size.height - 1), animate=False)

    def action_scroll_to_edge(self, to: int) -> None:
        """Scroll to the beginning (-1), or to the end (1)."""
        parts = self.query_one("#parts")
        parts.scroll_home(animate=False) if to < 0 else parts.scroll_end(animate=False)

    @property
    def _is_live(self) -> bool:
        board = self.app.board
        return board is None or board.snapshot.source.is_live

    @property
    def _listed_part(self) -> tuple[Part, ...]:
        """What the snapshot says of the process, where it cannot be read itself."""
        return tuple(listed_part(row.process) for row in self._rows[:1])

    def _show_details(self, details: ProcessDetails) -> None:
        self._details, self._problem = details, None
        self._parts = detail_parts(details)
        self.redraw()
        self._draw_parts()

    def _show_problem(self, sentence: str) -> None:
        self._problem = sentence
        self.redraw()
        self._draw_parts()

    def draw(self) -> None:
        """Draw title and figures."""
        width = self.size.width - 2
        self.query_one("#title", StaticLines).show(self._title(width))
        if self._present:
            lines = figure_lines(self._rows, self._history, width, live=self._is_live, ascii_only=is_ascii_only(self))
        else:
            lines = iter([Content.styled("The process is not on a GPU now, so there are no figures.", MUTED)])
        self.query_one("#figures", StaticLines).show(Content("\n").join(lines), layout=True)

    def _title(self, width: int) -> Content:
        pid, start_time = self._key
        row = self._rows[0] if self._rows else None
        name = process_name(row.process) if row else ""
        user = (self._details.user if self._details else None) or (row.process.user if row else None)
        facts = [f"Process {pid}", *([name] if name else []), printable(user or "user n/a")]
        if start_time is not None:
            now = self.app.board.snapshot.time if self.app.board else time.time()
            started = datetime.fromtimestamp(start_time).astimezone()
            facts += [f"started {started:%d %b %H:%M:%S}", f"up {format_duration(max(0.0, now - start_time))}"]
        read = datetime.fromtimestamp(self._details.time).astimezone() if self._details else None
        right = Content.styled(f"details of {read:%H:%M:%S}", MUTED) if read and width >= 100 else Content()
        return left_and_right(Content(" · ".join(facts)), right, width)

    def _draw_parts(self) -> None:
        if not is_complete(self):
            return
        box = self.query_one(FilterField)
        words = box.value if box.display else ""
        parts = matching_parts(self._parts or self._listed_part, words)
        if self._problem is not None:
            old = [Part("Below: last reading", ())] if self._parts and parts else []
            parts = (Part("", (Content.styled(self._problem, "$text-warning"),)), *old, *parts)[:_MAX_PARTS]
        elif words.split() and not parts:
            parts = (
                Part("", (Content.styled(f"no line contains {words!r}; {shown_key('app.back')} shows all", MUTED),)),
            )
        elif not parts:
            parts = (Part("", (Content.styled("… reading the process", MUTED),)),)
        for at in range(_MAX_PARTS):
            widget = self.query_one(f"#part-{at}", StaticLines)
            widget.display = at < len(parts)
            if at < len(parts):
                title = [Content.styled(parts[at].title, "bold underline")] if parts[at].title else []
                widget.show(Content("\n").join([*title, *parts[at].lines]), layout=True)


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
