"""The GPUs of the dashboard: panels and rows, as text and as widgets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from rich.cells import cell_len, set_cell_size
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.message import Message

from vramtop.estimator.common.sizes import GIB, UNSEEN_BYTES, format_gib
from vramtop.monitor.snapshot.snapshot import GpuKey, GpuReading, MigDevice

from ...draw.bars import Cell
from ...draw.labels import (
    BUDGET_LINE,
    FAINT,
    MUTED,
    SEPARATOR,
    WORST_FIRST,
    alarm,
    badge,
    bar_content,
    budget_cells,
    format_duration,
    gpu_figure_parts,
    gpu_status,
    hardware_cell,
    held_cells,
    held_cells_with_budget_mark,
    held_colour,
    is_uncertain,
    job_name,
    join_to_width,
    left_and_right,
    process_name,
    run_moments,
    severity_rank,
    shorten,
    urgent_label,
    worst_row,
)
from ...draw.memory_graph import Readings, TimelineMark, graph_levels, level_rows, timeline_cells, timeline_marks
from ...draw.palette import STATUSES, budget_size, colour_of, ink_on, unattributed_label
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.row_table import ContentLines, RowTable, StaticLines
from ..base import STALE_INTERVALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.events import Click
    from textual.screen import Screen

    from vramtop.monitor.board.board import Board, GpuRow, ProcessRow
    from vramtop.monitor.snapshot.gpu_details import DetailLevel
    from vramtop.monitor.snapshot.snapshot import MemoryHistory

    from ..base import BoardFeed

# A GPU or MIG device as one line of text: bar with a budget mark, figures, and status.


_STATUS_WIDTH = 20
_UTIL_WIDTH = 5
_MIN_UTIL_WIDTH = 72
"""Width of lines with utilisation."""
_MIN_JOB_WIDTH = 100
"""Width of lines with the job."""
_MIN_HARDWARE_WIDTH, _MIN_BOTH_WIDTH = 95, 115
"""Width of lines, without the names of GPUs, with power, temperature and what slows the GPU down; with jobs, too."""
_HARDWARE_WIDTH = 20
_JOB_WIDTH = 22
_INDEX_WIDTH = 2
_PROFILE_WIDTH = 12
"""Length of ``1c.7g.141gb``, plus one."""


def gpu_name_width(gpus: Sequence[GpuRow]) -> int:
    """Return the width of the names at the left: GPU indices, or MIG devices with their profiles."""
    if not any(gpu.devices for gpu in gpus):
        return _INDEX_WIDTH
    return max(cell_len(_title_gpu_row_text(gpu.reading)) for gpu in gpus)


def gpu_row_line(
    gpu: GpuRow,
    width: int,
    *,
    selected: bool,
    names: int = _INDEX_WIDTH,
    stale_seconds: float | None = None,
    jobs: bool = True,
) -> Content:
    """Return the GPU's line, exactly ``width`` cells wide.

    Args:
        gpu: the GPU to show.
        width: cells of the line.
        names: cells for the name at the left, from ``gpu_name_width``.
        selected: the cursor is on this GPU.
        stale_seconds: age of its reading if that is stale.
        jobs: some GPU has a job to name.
    """
    reading = gpu.reading
    mark = "▶" if selected else " "
    index = Content.styled(f"{mark}{set_cell_size(_title_gpu_row_text(reading), names)} ", "bold" if selected else "")
    if names == _INDEX_WIDTH:
        index = Content.styled(f"{mark}{reading.index:>{names}} ", "bold" if selected else "")
    right = [_memory(gpu), _free(gpu), _status(gpu, stale_seconds)]
    if width >= _MIN_UTIL_WIDTH:
        util = "n/a" if reading.utilisation_percent is None else f"{reading.utilisation_percent} %"
        right.insert(2, Content(f"{util:>{_UTIL_WIDTH}}"))
    if jobs and width >= _MIN_JOB_WIDTH:
        right.append(_job_gpu_row_text(gpu))
    if shows_hardware(width - names, jobs=jobs):
        right.insert(3, hardware_cell(reading, _HARDWARE_WIDTH))
    words = Content("  ").join(right)
    room = max(4, width - index.cell_length - words.cell_length - 2)
    drawn = _drawn_gpu_row_text(gpu, room)
    return Content.assemble(index, drawn, " ", words).truncate(width)


def _title_gpu_row_text(reading: GpuReading) -> str:
    """Return the name, such as ``0`` or ``0:3 1g.10gb``."""
    if not isinstance(reading, MigDevice):
        return reading.label
    return f"{reading.label} {shorten(printable(reading.device.profile or 'MIG'), _PROFILE_WIDTH)}"


def _drawn_gpu_row_text(gpu: GpuRow, room: int) -> Content:
    """Return the bar and its end mark, or why there is none."""
    reading = gpu.reading
    if isinstance(reading, MigDevice) and reading.shares_memory_of:
        of = reading.shares_memory_of
        variants = (f"shares the memory of {of}", f"shares {of}'s memory", f"shares {of}'s", f"as {of}")
        words = next((words for words in variants if cell_len(words) <= room), variants[-1])
        return Content.styled(set_cell_size(words, room + 1), MUTED)
    if reading.total_bytes:
        return Content.assemble(bar_content(held_cells_with_budget_mark(gpu, room)), ("▏", FAINT))
    reason = reading.reason("total_bytes") or "total unknown"
    return Content.styled(set_cell_size(shorten(f"n/a: {printable(reason)}", room), room + 1), MUTED)


def shows_hardware(width: int, *, jobs: bool) -> bool:
    """Return True if lines have power and temperature, beside the jobs if there are any.

    Args:
        width: of a line without the name of its GPU.
        jobs: some GPU has a job to name.
    """
    return width >= (_MIN_BOTH_WIDTH if jobs else _MIN_HARDWARE_WIDTH)


def names_jobs(gpus: Sequence[GpuRow]) -> bool:
    """Return True if the line of some GPU names a job or, of a MIG device, a process."""
    return any(row.job or isinstance(gpu.reading, MigDevice) for gpu in gpus for row in gpu.rows)


def gpu_row_titles(width: int, *, names: int = _INDEX_WIDTH, jobs: bool = True) -> Content:
    """Return the titles above the lines of ``gpu_row_line``."""
    right = [f"{'used/total':>11}", f"{'free':>5}", f"{' status':{_STATUS_WIDTH}}"]
    if width >= _MIN_UTIL_WIDTH:
        right.insert(2, f"{'util':>{_UTIL_WIDTH}}")
    if jobs and width >= _MIN_JOB_WIDTH:
        right.append(f"{'job':{_JOB_WIDTH}}")
    if shows_hardware(width - names, jobs=jobs):
        right.insert(3, f"{'power    temp':>{_HARDWARE_WIDTH}}")
    words = "  ".join(right)
    room = max(4, width - names - 2 - len(words) - 2)
    held = shorten("GiB in use, ┃ budget", room + 1)
    return Content.styled(f"{'GPU':{names + 1}} {held:{room + 1}} {words}", MUTED).truncate(width)


def _memory(gpu: GpuRow) -> Content:
    if is_shared(gpu):
        return Content.styled(f"{'shared':>11}", MUTED)
    used, total = gpu.reading.used_bytes, gpu.reading.total_bytes
    words = f"{format_gib(used)}/{'n/a' if total is None else f'{total / GIB:.1f}'}"
    return Content(f"{words:>11}")


def _free(gpu: GpuRow) -> Content:
    return Content(" " * 5 if is_shared(gpu) else f"{format_gib(gpu.reading.free_bytes):>5}")


def is_shared(gpu: GpuRow) -> bool:
    """Return True if the memory is shown in the line of another MIG device."""
    return isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of is not None


def _status(gpu: GpuRow, stale_seconds: float | None) -> Content:
    status = gpu_status(gpu, _STATUS_WIDTH)
    if stale_seconds is not None:
        status = Content.styled(f" ! {format_duration(stale_seconds)} old ", alarm())
    status = status.truncate(_STATUS_WIDTH)
    return Content.assemble(status, " " * (_STATUS_WIDTH - status.cell_length))


def _job_gpu_row_text(gpu: GpuRow) -> Content:
    """Return the job with the worst status; for a MIG device without jobs, its largest process."""
    row = worst_row(gpu.rows)
    if row and row.job:
        return Content(set_cell_size(shorten(printable(row.job.label), _JOB_WIDTH), _JOB_WIDTH))
    if not gpu.rows or not isinstance(gpu.reading, MigDevice):
        return Content(" " * _JOB_WIDTH)
    process = gpu.rows[0].process
    rest = f" {process.pid}{f' +{len(gpu.rows) - 1}' if len(gpu.rows) > 1 else ''}"
    name = shorten(process_name(process), _JOB_WIDTH - len(rest))
    return Content.styled(set_cell_size(name + rest, _JOB_WIDTH), MUTED)


# The GPUs as rows, one line each, with a cursor; the dashboard shows the selected one as a panel.


GPU_ROW_KEYS = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("list.first", "move_to(0)"),
    bind("list.last", "move_to(-1)"),
    bind("list.open", "open", "Open"),
]


class GpuLine(msgspec.Struct, frozen=True):
    """The line of a GPU or MIG device."""

    key: GpuKey
    content: Content


class GpuRows(RowTable[GpuLine], can_focus=True):
    """A scrolling list of all GPUs."""

    HEADER_LINES = 0
    BINDINGS: ClassVar[list[BindingType]] = [*GPU_ROW_KEYS]
    DEFAULT_CSS = "GpuRows { min-height: 0; } GpuRows > .table--cursor { color: $foreground; }"

    class Selected(Message):
        """The user has moved the cursor to another GPU."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position
            """Position of the GPU in the list."""

    class Opened(Message):
        """The user opens a GPU."""

        def __init__(self, key: GpuKey) -> None:
            super().__init__()
            self.key = key

    def show_gpus(
        self, gpus: Sequence[GpuRow], *, width: int, name_width: int, selected: int, stale: Sequence[float | None]
    ) -> None:
        """Show these GPUs; ``stale``: the age in seconds of each reading that is stale, else None."""
        self.cursor_row, self._moved, jobs = selected, False, names_jobs(gpus)
        self.show_rows([
            GpuLine(
                gpu.reading.key,
                gpu_row_line(gpu, width, names=name_width, selected=at == selected, stale_seconds=age, jobs=jobs),
            )
            for at, (gpu, age) in enumerate(zip(gpus, stale, strict=True))
        ])  # fmt: skip

    def key_of(self, row: GpuLine) -> GpuKey:
        """Return the GPU or MIG device."""
        return row.key

    def cells_of(self, row: GpuLine) -> Content:
        """Return the line."""
        return row.content

    def move_cursor(self, *, row: int) -> None:
        """Select another GPU."""
        super().move_cursor(row=row)
        self.post_message(self.Selected(self.cursor_row))

    def action_open(self) -> None:
        """Open the GPU under the cursor."""
        if self.selected is not None:
            self.post_message(self.Opened(self.selected.key))


# The size of a GPU's panel, and one line of it: a label, a drawing, and figures.


FRAME_LINES = 4
"""Lines of a panel without a graph: two borders and two bars."""
JOBLESS_LINES = 2
"""Lines of a panel without a job: a rule and a bar."""
LABEL_WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape:
    """Size of a panel."""

    width: int
    graph_height: int = 0
    framed: bool = True
    """It has a frame, and a bar for the budget."""

    @property
    def height(self) -> int:
        """Its lines."""
        return FRAME_LINES + self.graph_height if self.framed else JOBLESS_LINES

    @property
    def figures_width(self) -> int:
        """Cells for the figures right of each bar."""
        return min(46, max(22, round(self.width * 0.3)))

    @property
    def bar_width(self) -> int:
        """Cells of each bar, without 4 for the frame, 1 for the bar's end, and 1 for the gap before the figures."""
        return max(8, self.width - 4 - LABEL_WIDTH - self.figures_width - 2)


def panel_line(label: str, drawn: Content, figures: Content, shape: PanelShape, cells: int | None = None) -> Content:
    """Return a line inside of a panel; without figures the drawing may take all of it.

    Args:
        label: at the left.
        drawn: a bar, or words.
        figures: right of the bar.
        shape: of the panel.
        cells: width of the bar; None: that of the panel's bars.
    """
    name = Content.styled(f"{label:{LABEL_WIDTH}}", MUTED)
    if not figures and drawn.cell_length != shape.bar_width:
        return Content.assemble(name, drawn.truncate(shape.width - 4 - LABEL_WIDTH, ellipsis=True))
    gap = " " * ((shape.bar_width if cells is None else cells) - drawn.cell_length)
    return Content.assemble(name, drawn, gap, ("▏", FAINT), " ", figures)


# The graph of a GPU's memory over time as lines of text: the phases of its job, and when it left its budget.


_SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)
_MIN_HEIGHT_WITH_TIMELINE = 4
_UPPER_BOUND, _MOMENT = "┄", "┊"
_SHOWN_BESIDE_BYTES = GIB // 10


def graph_lines(gpu: GpuRow, history: Readings, shape: PanelShape, now: float) -> list[Content]:
    """Return the lines of the graph, from the top down.

    Args:
        gpu: the GPU to show.
        history: its used memory over time.
        shape: size of the panel.
        now: time of the latest reading, in Unix seconds.
    """
    top = gpu.reading.total_bytes
    if not top or shape.graph_height <= 0:
        return [Content()] * max(0, shape.graph_height)
    span = graph_span(history, now)
    timeline = shape.graph_height >= _MIN_HEIGHT_WITH_TIMELINE
    height = shape.graph_height - timeline
    row = worst_row(gpu.rows)
    beside = _beside_bytes(gpu)
    judged = gpu.expected_bytes is not None and not (row and row.comparison and row.comparison.status == "incomplete")
    graph = _Graph(
        levels=graph_levels(history, width=shape.bar_width, height=height, top_bytes=top, span_seconds=span, now=now),
        height=height,
        top_bytes=top,
        span_seconds=span,
        colour=held_colour(row) if row else colour_of("no_budget"),
        expected_bytes=None if gpu.expected_bytes is None else gpu.expected_bytes + beside,
        high_bytes=gpu.high_bytes + beside if judged and gpu.high_bytes is not None else None,
        seen_bytes=max((size for _, size in history if size is not None), default=None),
        beside_bytes=beside,
        marks=timeline_marks(run_moments(row), width=shape.bar_width, span_seconds=span, now=now) if row else (),
        timeline=timeline,
    )
    return list(_drawn(graph, shape, colour_of("bad"), colour_of("neutral")))


def graph_span(history: Readings, now: float) -> float:
    """Return the seconds that a graph shows: the shortest span that contains the history."""
    age = now - history[0][0] if history else 0.0
    return next((span for span in _SPANS_SECONDS if age <= span), _SPANS_SECONDS[-1])


class _Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a graph shows."""

    levels: tuple[int, ...]
    height: int
    """Rows of the curve."""
    top_bytes: int
    span_seconds: float
    colour: str
    expected_bytes: int | None
    high_bytes: int | None
    """Where the memory beyond the budget begins; None: not known."""
    seen_bytes: int | None
    beside_bytes: int
    """Memory of other processes, above which the lines of the budget lie."""
    marks: tuple[TimelineMark, ...]
    timeline: bool
    """There is a row for the names of the marks."""

    def row_of(self, size_bytes: int) -> int:
        """Return the row in which a size lies, from the top."""
        return self.height - 1 - min(self.height - 1, size_bytes * self.height // self.top_bytes)


@lru_cache(maxsize=64)
def _drawn(graph: _Graph, shape: PanelShape, beyond: str, bound_colour: str) -> tuple[Content, ...]:
    """Return the lines; cached, as a column spans several readings and rarely changes."""
    rows = level_rows(graph.levels, graph.height, graph.colour)
    if graph.high_bytes is not None and graph.high_bytes < graph.top_bytes:
        bound = graph.row_of(graph.high_bytes)
        for row in rows[:bound]:
            row[:] = [Cell(cell.char, beyond) if cell.colour else cell for cell in row]
        rows[bound] = [Cell(_UPPER_BOUND, bound_colour) if cell.char == " " else cell for cell in rows[bound]]
    for mark in (mark for mark in graph.marks if mark.colour):
        for row in rows:
            if row[mark.column].char == " ":
                row[mark.column] = Cell(_MOMENT, mark.colour)
    if graph.expected_bytes is not None:
        row = rows[graph.row_of(graph.expected_bytes)]
        row[:] = [
            _crossed(cell) if cell.char in " █┄┊" else cell for cell in row
        ]  # the curve's own edge stays as it is
    if graph.timeline:
        rows.append(timeline_cells(graph.marks, shape.bar_width))
    labels = [""] * len(rows)
    labels[0] = f"{format_gib(graph.top_bytes, digits=0)} GiB"
    labels[-1] = f"{graph.span_seconds / 60:.0f} min"
    notes = _notes(graph, len(rows))
    return tuple(
        panel_line(label, bar_content(cells), Content.styled(note, MUTED), shape)
        for label, cells, note in zip(labels, rows, notes, strict=True)
    )


def _notes(graph: _Graph, lines: int) -> list[str]:
    """Return what stands right of each line: a line of the budget is named where it is, and the peak where room is."""
    notes = [""] * lines
    if graph.high_bytes is not None:
        notes[graph.row_of(graph.high_bytes)] = f"{_UPPER_BOUND * 2} at most"
    if graph.expected_bytes is not None:
        row, others = graph.row_of(graph.expected_bytes), graph.beside_bytes
        words = (
            f"{BUDGET_LINE * 2} expected{', at most' if notes[row] else ''}"  # the bar of the budget has the figures
        )
        notes[row] = words + (f", plus {format_gib(others)} of others" if others >= _SHOWN_BESIDE_BYTES else "")
    if "" in notes:
        notes[notes.index("")] = f"peak seen {format_gib(graph.seen_bytes)}"
    return notes


def _crossed(cell: Cell) -> Cell:
    ground = cell.colour if cell.char == "█" else None
    return Cell(BUDGET_LINE, ground and ink_on(ground), ground)


def _beside_bytes(gpu: GpuRow) -> int:
    """Return what the GPU holds beside its jobs, as far as it is known."""
    held = sum(row.process.used_bytes or 0 for row in gpu.rows_with_budget)
    return max(0, (gpu.reading.used_bytes or held) - held)


# The panel of a GPU as lines of text: held memory and budget on one scale, and a graph over time.


_NAME_WIDTH = 38
"""Most cells for the name of a GPU in a wide panel, with the frame."""
_FRAME_CELLS = 9
"""Corners, blanks, and a piece of the rule between the name and the figures of a panel."""
_MIN_BAR_WIDTH = 12
_IN_USE_WIDTH = 60
"""Width of figures that say ``in use``; where there is less room, the bar alone says it."""
_ALWAYS = 3
"""The figures that are worth more than these words: utilisation, power, temperature."""


def panel_lines(
    gpu: GpuRow, history: Readings, shape: PanelShape, *, now: float, stale_seconds: float | None = None
) -> list[Content]:
    """Return the panel with its border.

    Args:
        gpu: the GPU to show.
        history: used memory of the GPU over time.
        shape: size of the panel.
        now: time of the latest reading, in Unix seconds.
        stale_seconds: age of the reading if it is stale.
    """
    frame = _frame_style(gpu, stale=stale_seconds is not None)
    if not shape.framed:
        return _jobless_lines(gpu, shape, stale_seconds)
    inside = [_held_line(gpu, shape), _budget_line(gpu, shape), *graph_lines(gpu, history, shape, now)]
    side = Content.styled("│", frame)
    room = shape.width - 4
    return [
        _title("┌┐", gpu.reading, frame, shape, stale_seconds),
        *(Content.assemble(side, " ", left_and_right(line, Content(), room), " ", side) for line in inside),
        _border("└┘", _verdict(gpu, shape.width - 6), Content(), frame, shape.width),
    ]


def _jobless_lines(gpu: GpuRow, shape: PanelShape, stale_seconds: float | None) -> list[Content]:
    """Return a rule, and what is held, with why there is no budget."""
    words = _why_no_budget(gpu)
    if is_shared(gpu) or not gpu.reading.total_bytes:
        line = _held_line(gpu, shape)
    else:
        room = shape.width - 4 - LABEL_WIDTH
        words = shorten(words, max(shape.figures_width, room - _MIN_BAR_WIDTH - 2))
        cells = min(shape.bar_width, room - cell_len(words) - 2)
        line = panel_line("in use", bar_content(held_cells(gpu, cells)), Content.styled(words, MUTED), shape, cells)
    return [
        _title("──", gpu.reading, FAINT, shape, stale_seconds),
        left_and_right(Content.assemble("  ", line), Content(), shape.width),
    ]


def _title(corners: str, reading: GpuReading, style: str, shape: PanelShape, stale_seconds: float | None) -> Content:
    name = _name(reading)
    least = min(name.cell_length + _FRAME_CELLS, _NAME_WIDTH)
    figures = _figures(reading, max(shape.width // 2 + 8, shape.width - least), stale_seconds)
    return _border(corners, name, figures, style, shape.width)


def used_words(reading: GpuReading, unit: str = "GiB") -> str:
    """Return used and total memory in words, or why they are not known."""
    if reading.used_bytes is None or reading.total_bytes is None:
        reason = reading.reason("used_bytes") or reading.reason("total_bytes")
        return f"memory n/a: {printable(reason)}" if reason else "memory n/a"
    if isinstance(reading, MigDevice) and reading.shares_memory_of:
        words = f"{format_gib(reading.used_bytes)} of {format_gib(reading.total_bytes)} {unit}"
        return f"{words}, shared with {reading.shares_memory_of}"
    share = 100 * reading.used_bytes / reading.total_bytes
    shared = ", shared" if isinstance(reading, MigDevice) and reading.shares_memory else ""
    return f"{format_gib(reading.used_bytes)} of {format_gib(reading.total_bytes)} {unit} ({share:.0f} %){shared}"


def _name(reading: GpuReading) -> Content:
    name = printable(reading.name or "GPU").removeprefix("NVIDIA ")
    if isinstance(reading, MigDevice):  # its end is cut first
        name, _, _ = name.rpartition(" MIG")
        name = f"MIG {printable(reading.device.profile or 'device')} of {name}"
    if reading.shares_host_memory:
        name = f"{name} (host's memory)"
    return Content.assemble((f"{reading.label} ", "bold"), name)


def _figures(reading: GpuReading, width: int, stale_seconds: float | None) -> Content:
    rest: list[Content | str] = [f"free {format_gib(reading.free_bytes)}", *gpu_figure_parts(reading)]
    if stale_seconds is not None:
        age = Content.styled(f" ! {format_duration(stale_seconds)} old ", alarm())
        return join_to_width([age, _used(reading, "GiB", width), *rest], width)
    wanted = [_used(reading, "GiB in use", width), *rest]
    needed = sum(Content.assemble(part).cell_length + len(SEPARATOR) for part in wanted[: 2 + _ALWAYS]) - len(SEPARATOR)
    words = "GiB in use" if width >= max(needed, _IN_USE_WIDTH) else "GiB"
    return join_to_width([_used(reading, words, width), *rest], width)


def _used(reading: GpuReading, unit: str, width: int) -> Content:
    return Content.styled(shorten(used_words(reading, unit), width), "bold")


def _held_line(gpu: GpuRow, shape: PanelShape) -> Content:
    if isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of:
        holders = ", ".join(f"{process_name(row.process)} {format_gib(row.process.used_bytes)}" for row in gpu.rows)
        words = f"shares the memory of {gpu.reading.shares_memory_of}{f'; of that {holders}' if holders else ''}"
        return panel_line("in use", Content.styled(words, MUTED), Content(), shape)
    if not gpu.reading.total_bytes:
        reason = gpu.reading.reason("total_bytes") or "the GPU's total memory is unknown"
        known = gpu.reading.attributed_bytes
        held = "" if known is None else f", processes hold {format_gib(known)} GiB"
        return panel_line("in use", Content.styled(f"n/a: {printable(reason)}{held}", MUTED), Content(), shape)
    drawn = bar_content(held_cells(gpu, shape.bar_width))
    return panel_line("in use", drawn, _held_figures(gpu, shape.figures_width), shape)


def _held_figures(gpu: GpuRow, width: int) -> Content:
    reading, jobs = gpu.reading, gpu.rows_with_budget
    parts: list[Content | str] = []
    if reading.processes is None:
        parts.append("processes n/a")
    elif jobs:
        others = [row.process.used_bytes for row in gpu.rows if not row.budget]
        parts.append(f"{_sum_words([row.process.used_bytes for row in jobs])} GiB")
        parts += [f"{len(others)} other{'s' * (len(others) > 1)} {_sum_words(others)}"] if others else []
    elif gpu.rows:
        first, rest = gpu.rows[0], gpu.rows[1:]
        size = f" {format_gib(first.process.used_bytes)}"
        parts.append(shorten(process_name(first.process), min(16, width - len(size))) + size)
        if rest:
            parts.append(f"{len(rest)} more {_sum_words([row.process.used_bytes for row in rest])}")
    if reading.remaining_bytes is None or reading.remaining_bytes >= UNSEEN_BYTES:
        parts.append(f"{unattributed_label(reading)} {format_gib(reading.remaining_bytes)}")
    parts.append(f"reserved {format_gib(reading.reserved_bytes)}")
    return join_to_width(parts, width)


def _sum_words(sizes: Sequence[int | None]) -> str:
    """Return the sum in GiB; what is not known is said."""
    known = [size for size in sizes if size is not None]
    if not known:
        return "n/a"
    return format_gib(sum(known)) + (" and n/a" if len(known) < len(sizes) else "")


def _why_no_budget(gpu: GpuRow) -> str:
    """Return why a GPU has no budget, in a few words."""
    if gpu.reading.mig is not None:
        count = len(gpu.reading.mig)
        reason = gpu.reading.reason("mig")
        words = (
            f"in MIG mode: programs run on its {count} MIG device{'s' * (count > 1)}"
            if count
            else "in MIG mode, without MIG devices"
        )
        return f"{words}; {printable(reason)}" if reason else words
    if (row := next((row for row in gpu.rows if row.problem), None)) and row.problem:
        key = shown_key("dashboard.attach")
        to_do = f"; press {key} to rehearse it" if row.no_budget_reason == "needs model" else ""
        return f"n/a: {printable(row.problem)}{to_do}"
    if gpu.reading.processes is None:
        refused = (fault.message for fault in gpu.reading.faults if fault.field == "processes")
        return f"processes n/a: {printable(next(refused, 'not known'))}"
    reasons = dict.fromkeys(row.no_budget_reason for row in gpu.rows if row.no_budget_reason)
    if reasons:
        return f"no budget: {', '.join(str(reason) for reason in reasons)}"
    return "no known job" if gpu.rows else "nothing is running"


def _budget_line(gpu: GpuRow, shape: PanelShape) -> Content:
    if gpu.reading.mig is not None or gpu.expected_bytes is None:
        return panel_line("budget", Content.styled(_why_no_budget(gpu), MUTED), Content(), shape)
    range_words = f"({format_gib(gpu.low_bytes)} to {format_gib(gpu.high_bytes)})"
    peaks = {row.budget.peak.phase for row in gpu.rows_with_budget if row.budget and row.budget.serving is None}
    figures = join_to_width(
        [
            f"{budget_size(gpu.expected_bytes, 'incomplete' if is_uncertain(gpu) else None)} GiB {range_words}",
            *_correction(gpu),
            *(["peak in " + ", ".join(sorted(peaks))] if peaks else []),
        ],
        shape.figures_width,
    )
    cells = budget_cells(gpu, shape.bar_width) if gpu.reading.total_bytes else None
    return panel_line("budget", Content() if cells is None else bar_content(cells), figures, shape)


def _correction(gpu: GpuRow) -> list[str]:
    """Return what was expected before measured runs corrected it; nothing where they did not."""
    budgets = [row.budget for row in gpu.rows_with_budget if row.budget is not None]
    if all(budget.learned is None for budget in budgets):
        return []
    before = sum(
        each.learned.uncorrected_steady_bytes if each.learned else each.steady_device_bytes for each in budgets
    )
    return [f"corrected, was {format_gib(before)}"]


def _verdict(gpu: GpuRow, width: int) -> Content:
    """Return each process that has a status, worst first, and the sentence of the worst one."""
    judged = sorted((row for row in gpu.rows if row.comparison), key=severity_rank)
    if not judged or judged[0].comparison is None:
        return Content()
    first = judged[0].comparison
    is_told = len(judged) == 1 and first.status == "growing"  # the sentence begins with it
    parts: list[Content | str] = [_job(judged[0], "" if is_told else urgent_label(judged[0], unit=" GiB"))]
    if len(judged) < 3:
        parts += [_job(row, urgent_label(row, unit=" GiB")) for row in judged[1:]]
    else:
        parts.append(f"{len(judged) - 1} more jobs")
    line = join_to_width(parts, width)
    room = width - line.cell_length - 3
    return join_to_width([line, shorten(first.sentence, room)], width) if room > 16 else line


def _job(row: ProcessRow, beside: str) -> Content:
    if row.comparison is None:
        return Content("?")
    status = row.comparison.status
    mark = Content.assemble(badge(STATUSES[status], status), f" {beside}" if beside else "")
    return Content.assemble(shorten(job_name(row), 24), " ", mark)


def _frame_style(gpu: GpuRow, *, stale: bool) -> str:
    row = worst_row(gpu.rows)
    if stale or row is None or row.comparison is None or not row.comparison.diverges:
        return FAINT
    return f"bold {STATUSES[row.comparison.status].colour}"


def _border(corners: str, left: Content, right: Content, style: str, width: int) -> Content:
    room = width - 4
    if right.cell_length > room - 2:
        right = right.truncate(room - 2, ellipsis=True)
    left = left.truncate(max(0, room - right.cell_length - 4), ellipsis=True)
    parts = [Content.assemble(" ", part, " ") if part else Content() for part in (left, right)]
    rule = "─" * (width - 4 - sum(part.cell_length for part in parts))
    return Content.assemble((corners[0] + "─", style), parts[0], (rule, style), parts[1], ("─" + corners[1], style))


# The GPUs of the dashboard: a panel for each, or a list with the panel of one GPU below it.


_MIN_DETAILS_WIDTH = 100
"""Cells of a panel that has room for more than utilisation, power and temperature."""


class DashboardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Heights of the parts between header and footer."""

    panels: tuple[PanelPlace, ...] | None
    """The place of each GPU's panel; None: one row each."""
    graph_height: int
    """Height of the graph in the open panel."""
    gpu_height: int
    """Height of all panels or of all rows, without the open panel."""
    titles: bool = False
    """Show a line of titles above the rows."""
    open_panel: bool = False
    """Show the panel of the selected GPU below the rows."""
    pending_height: int
    legend: bool


class GpuArea:
    """The widgets of a screen that show GPUs.

    Args:
        screen: the screen that yields ``compose``.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._panels: list[GpuPanel] = []
        self._selected: tuple[GpuKey, int] | None = None
        """The GPU or MIG device that the user selected, and its position; None: the one with the worst status."""
        self.detailed: dict[GpuKey, DetailLevel] = {}
        """GPUs of which details are shown."""

    def compose(self) -> ComposeResult:
        """The panels; the titles, the rows, and the panel of the selected row."""
        yield Container(id="panels")
        yield StaticLines(id="titles")
        yield GpuRows(id="rows")
        yield GpuPanel(id="open")

    def select(self, board: Board, position: int) -> None:
        """Select the GPU or MIG device at this position."""
        self._selected = board.displayed_gpus[position].reading.key, position

    def show(
        self, board: Board, layout: DashboardLayout, *, width: int, feed: BoardFeed, history: MemoryHistory
    ) -> None:
        """Show the GPUs of the board.

        Args:
            board: the latest board.
            layout: panels or rows, and their heights.
            width: cells of the screen.
            feed: how readings arrive, which decides when one is stale.
            history: memory of the GPUs over time.
        """
        screen = self._screen
        panels, rows = screen.query_one("#panels", Container), screen.query_one(GpuRows)
        titles, opened = screen.query_one("#titles", StaticLines), screen.query_one("#open", GpuPanel)
        panels.display = bool(layout.panels)
        rows.display = layout.panels is None
        titles.display = layout.titles
        opened.display = layout.open_panel
        stale = [stale_seconds(gpu, board, feed) for gpu in board.displayed_gpus]
        self.detailed = {}
        if layout.panels is not None:
            self._fill_panels(panels, layout, len(board.displayed_gpus))
            self._demand_details(board.displayed_gpus, layout.panels[0].width if layout.panels else 0)
            for panel, place, gpu, age in zip(self._panels, layout.panels, board.displayed_gpus, stale, strict=True):
                panel.stand_at(place)
                _show_panel(panel, gpu, board, place, stale_seconds=age, history=history)
            return
        selected = self._selected_position(board.displayed_gpus)
        row_width = width - (layout.gpu_height < len(board.displayed_gpus))  # the scrollbar
        name_width = gpu_name_width(board.displayed_gpus)
        rows.styles.height = layout.gpu_height
        jobs = names_jobs(board.displayed_gpus)
        titles.show(gpu_row_titles(row_width, names=name_width, jobs=jobs))
        rows.show_gpus(board.displayed_gpus, width=row_width, name_width=name_width, selected=selected, stale=stale)
        if shows_hardware(row_width - name_width, jobs=jobs):
            self._demand_details(board.displayed_gpus, row_width)
        if layout.open_panel:
            shape = PanelShape(width=width, graph_height=layout.graph_height)
            gpu, age = board.displayed_gpus[selected], stale[selected]
            opened.styles.height = shape.height
            if not self.detailed:
                self._demand_details([gpu], shape.width)
            _show_panel(opened, gpu, board, shape, stale_seconds=age, history=history)

    def _demand_details(self, gpus: Sequence[GpuRow], panel_width: int) -> None:
        """Ask for fans and clock reasons of the GPUs in panels that have room for them."""
        if panel_width >= _MIN_DETAILS_WIDTH:
            self.detailed = {gpu.reading.whole_gpu_key: "compact" for gpu in gpus}

    def _fill_panels(self, container: Container, layout: DashboardLayout, count: int) -> None:
        while len(self._panels) > count:
            self._panels.pop().remove()
        while len(self._panels) < count:
            self._panels.append(GpuPanel())
            container.mount(self._panels[-1])
        container.styles.height = layout.gpu_height

    def _selected_position(self, shown: Sequence[GpuRow]) -> int:
        """Return the position of the selected GPU; if it is gone, of the GPU in its place."""
        if self._selected is not None:
            key, before = self._selected
            position = next((at for at, gpu in enumerate(shown) if gpu.reading.key == key), before)
            return min(position, len(shown) - 1)
        worst = [min((severity_rank(row) for row in gpu.rows), default=len(WORST_FIRST)) for gpu in shown]
        return worst.index(min(worst)) if worst else 0


def _show_panel(
    panel: GpuPanel,
    gpu: GpuRow,
    board: Board,
    shape: PanelShape,
    *,
    stale_seconds: float | None,
    history: MemoryHistory,
) -> None:
    readings = history.gpu(gpu.reading.key) if shape.graph_height else ()
    panel.show_gpu(gpu, readings, shape, now=board.snapshot.time, stale_seconds=stale_seconds)


def stale_seconds(gpu: GpuRow, board: Board, feed: BoardFeed) -> float | None:
    """Return the age of the GPU's reading if it is stale; None if it is recent, or n/a anyway."""
    reading = gpu.reading
    if not reading.read_at or (reading.used_bytes is None and not reading.mig):
        return None
    age = board.snapshot.time - reading.read_at + (feed.age_seconds or 0.0)
    return age if reading.is_stale or age > STALE_INTERVALS * feed.interval else None


class GpuPanel(ContentLines):
    """A GPU's panel; a click opens the GPU."""

    _key: GpuKey | None = None

    def on_click(self, event: Click) -> None:
        """Open the GPU."""
        event.stop()
        if self._key is not None:
            self.post_message(GpuRows.Opened(self._key))

    def show_gpu(
        self, gpu: GpuRow, history: Readings, shape: PanelShape, *, now: float, stale_seconds: float | None
    ) -> None:
        """Show this GPU; the arguments are those of ``panel_lines``."""
        self._key = gpu.reading.key
        self.set_class(stale_seconds is not None, "-stale")
        self.show_lines(panel_lines(gpu, history, shape, now=now, stale_seconds=stale_seconds))

    def stand_at(self, place: PanelPlace) -> None:
        """Move it to this place, if it is not there yet."""
        if self._place != place:
            self._place = place
            self.styles.position = "absolute"
            self.styles.offset = place.x, place.y
            self.styles.width, self.styles.height = place.width, place.height

    _place: PanelPlace | None = None


# Arranges the panels of the GPUs: the jobs that diverge get the room.


PanelNeed = Literal["jobless", "calm", "diverging"]
"""A GPU without a budget; one whose jobs are within their budgets; one with a job that is not."""

MIN_WIDTH = 78
_MIN_WIDTH_OF_TWO = 160
"""From this width on panels stand side by side."""
_MIN_GRAPH, _CALM_GRAPH, _MAX_GRAPH = 2, 4, 9
"""Heights of graphs: the lowest, the highest of a calm job above or below one that diverges, and the highest of all."""
_MAX_GRAPH_SHARE = 0.35
"""Share of a tall terminal that one graph may take."""
_LEAST: Mapping[PanelNeed, int] = {"jobless": JOBLESS_LINES, "calm": FRAME_LINES, "diverging": FRAME_LINES}
_WANTED: Mapping[PanelNeed, int] = {
    "jobless": JOBLESS_LINES,
    "calm": FRAME_LINES + _CALM_GRAPH,
    "diverging": FRAME_LINES + _MAX_GRAPH,
}
"""Lines without graphs, and with graphs of good size."""
_WANTED_WHERE_ROOM_IS_SHORT: Mapping[PanelNeed, int] = {**_WANTED, "calm": FRAME_LINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlace(PanelShape):
    """Where a GPU's panel stands, in cells of the area of the GPUs; one with a job has a frame."""

    x: int
    y: int


def panel_needs(gpus: Sequence[GpuRow]) -> list[PanelNeed]:
    """Return how much room each GPU needs; where no GPU has a budget, those with processes get graphs."""
    if all(gpu.expected_bytes is None for gpu in gpus):
        return ["calm" if gpu.rows else "jobless" for gpu in gpus]
    needs: list[PanelNeed] = []
    for gpu in gpus:
        row = worst_row(gpu.rows)
        diverges = row is not None and row.comparison is not None and row.comparison.diverges
        needs.append("diverging" if diverges else "jobless" if gpu.expected_bytes is None else "calm")
    return needs


@lru_cache(maxsize=4)
def place_panels(needs: tuple[PanelNeed, ...], *, width: int, room: int) -> tuple[PanelPlace, ...] | None:
    """Place all panels in columns, one below the other; None: they do not fit.

    Whether they fit depends on their number alone, so that rows do not become panels when a job starts or ends.

    Args:
        needs: of each GPU.
        width: cells of the terminal.
        room: lines for all panels.
    """
    most = max(1, min(len(needs), width // MIN_WIDTH))
    fewest = min(2 if width >= _MIN_WIDTH_OF_TWO else 1, most)
    for graph in (_MIN_GRAPH, 0):
        for columns in range(fewest, most + 1):
            if ceil(len(needs) / columns) * (FRAME_LINES + graph) <= room:
                return _placed(_columns(needs, columns, room), width=width, room=room)
    return None


def _columns(needs: tuple[PanelNeed, ...], count: int, room: int) -> list[tuple[PanelNeed, ...]]:
    """Return the panels of each column, from the top, so that the highest column is as low as possible."""
    each = max(1, ceil(len(needs) / count))
    even = [needs[start : start + each] for start in range(0, len(needs), each)]
    ends = combinations(range(1, len(needs)), count - 1)
    splits = ([needs[start:end] for start, end in pairwise((0, *cuts, len(needs)))] for cuts in ends)
    fitting = [split for split in splits if all(_sum(_LEAST, column) <= room for column in split)]
    wanted = _WANTED if _sum(_WANTED, needs) <= room * count else _WANTED_WHERE_ROOM_IS_SHORT
    return min([even, *fitting], key=lambda split: max((_sum(wanted, column) for column in split), default=0))


def _sum(heights: Mapping[PanelNeed, int], column: Sequence[PanelNeed]) -> int:
    return sum(heights[need] for need in column)


def _placed(columns: Sequence[Sequence[PanelNeed]], *, width: int, room: int) -> tuple[PanelPlace, ...]:
    most = max(_MAX_GRAPH, int(room * _MAX_GRAPH_SHARE))
    tall = [_diverging_graphs(column, room, most) for column in columns]
    calm_most = min((height for graphs in tall for height in graphs.values()), default=most)
    places, x = [], 0
    for at, (column, graphs) in enumerate(zip(columns, tall, strict=True)):
        left = room - _sum(_LEAST, column) - sum(graphs.values())
        calm = _calm_graph(column, left, min(calm_most, _CALM_GRAPH) if graphs else calm_most)
        y, after = 0, width * (at + 1) // len(columns)
        for number, need in enumerate(column):
            height = 0 if need == "jobless" else graphs.get(number, calm)
            place = PanelPlace(x=x, y=y, width=after - x, graph_height=height, framed=need != "jobless")
            places.append(place)
            y += place.height
        x = after
    return tuple(places)


def _diverging_graphs(column: Sequence[PanelNeed], room: int, most: int) -> dict[int, int]:
    """Return the heights of the graphs of what diverges, by its place in the column."""
    left = room - _sum(_LEAST, column)
    graphs = {at: 0 for at, need in enumerate(column) if need == "diverging"}
    for at in graphs:
        if left >= _MIN_GRAPH:
            graphs[at], left = _MIN_GRAPH, left - _MIN_GRAPH
    for _ in range(_MIN_GRAPH, most):
        for at, height in graphs.items():
            if left and height:
                graphs[at], left = graphs[at] + 1, left - 1
    return graphs


def _calm_graph(column: Sequence[PanelNeed], left: int, most: int) -> int:
    """Return the height of the graphs of what is calm, which are equal."""
    count = sum(need == "calm" for need in column)
    height = min(most, left // count) if count else 0
    return height if height >= _MIN_GRAPH else 0
