"""The panel of a GPU as lines of text: held memory and budget on one scale, and a graph over time."""

from dataclasses import dataclass
from functools import lru_cache

from textual.content import Content

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import GpuRow, ProcessRow
from vramtop.monitor.snapshot import GpuReading, MigDevice

from ....draw import (
    ALARM,
    BUDGET_LINE,
    FAINT,
    MUTED,
    NO_JOB,
    STATUSES,
    Cell,
    Readings,
    badge,
    bar_content,
    budget_cells,
    darker,
    difference_label,
    format_duration,
    gpu_figure_parts,
    graph_levels,
    held_cells,
    ink_on,
    join_to_width,
    left_and_right,
    level_rows,
    printable,
    process_name,
    severity_rank,
    shorten,
    unattributed_label,
    worst_row,
)

FRAME_LINES = 4
"""Lines of a panel without a graph: two borders and two bars."""
_LABEL_WIDTH = 8
_NAME_WIDTH = 38
"""Cells for the name of a GPU in a wide panel, with the frame."""
_GRAPH_SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape:
    """Size of a panel."""

    width: int
    graph_height: int

    @property
    def figures_width(self) -> int:
        """Cells for the figures right of each bar."""
        return min(46, max(22, round(self.width * 0.3)))

    @property
    def bar_width(self) -> int:
        """Cells of each bar, without 4 for the frame, 1 for the bar's end, and 1 for the gap before the figures."""
        return max(8, self.width - 4 - _LABEL_WIDTH - self.figures_width - 2)


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
    inside = [_held_line(gpu, shape), _budget_line(gpu, shape), *_graph_lines(gpu, history, shape, now)]
    side = Content.styled("│", frame)
    room = shape.width - 4
    figures = _figures(gpu.reading, max(shape.width // 2 + 8, shape.width - _NAME_WIDTH), stale_seconds)
    return [
        _border("┌┐", _name(gpu.reading), figures, frame, shape.width),
        *(Content.assemble(side, " ", left_and_right(line, Content(), room), " ", side) for line in inside),
        _border("└┘", _verdict(gpu, shape.width - 6), Content(), frame, shape.width),
    ]


def panel_height(graph_height: int) -> int:
    """Return the lines of a panel with a graph of this height."""
    return FRAME_LINES + graph_height


def graph_span(history: Readings, now: float) -> float:
    """Return the seconds that a graph shows: the shortest span that contains the history."""
    age = now - history[0][0] if history else 0.0
    return next((span for span in _GRAPH_SPANS_SECONDS if age <= span), _GRAPH_SPANS_SECONDS[-1])


def used_words(reading: GpuReading) -> str:
    """Return used and total memory in words, or why they are not known."""
    if reading.used_bytes is None or reading.total_bytes is None:
        reason = reading.reason("used_bytes") or reading.reason("total_bytes")
        return f"memory n/a: {printable(reason)}" if reason else "memory n/a"
    if isinstance(reading, MigDevice) and reading.shares_memory_of:
        words = f"{format_gib(reading.used_bytes)} of {format_gib(reading.total_bytes)} GiB"
        return f"{words}, the same as of {reading.shares_memory_of}"
    share = 100 * reading.used_bytes / reading.total_bytes
    shared = ", shared" if isinstance(reading, MigDevice) and reading.shares_memory else ""
    return f"{format_gib(reading.used_bytes)} of {format_gib(reading.total_bytes)} GiB ({share:.0f} %){shared}"


def _name(reading: GpuReading) -> Content:
    name = printable(reading.name or "GPU").removeprefix("NVIDIA ")
    if isinstance(reading, MigDevice):  # its end is cut first
        name, _, _ = name.rpartition(" MIG")
        name = f"MIG {printable(reading.device.profile or 'device')} of {name}"
    if reading.shares_host_memory:
        name = f"{name} (host's memory)"
    return Content.assemble((f"{reading.label} ", "bold"), name)


def _figures(reading: GpuReading, width: int, stale_seconds: float | None) -> Content:
    parts: list[Content | str] = [Content.styled(shorten(used_words(reading), width), "bold")]
    if stale_seconds is not None:
        parts.insert(0, Content.styled(f" ! {format_duration(stale_seconds)} old ", ALARM))
    parts.append(f"free {format_gib(reading.free_bytes)}")
    return join_to_width([*parts, *gpu_figure_parts(reading)], width)


def _held_line(gpu: GpuRow, shape: PanelShape) -> Content:
    if isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of:
        holders = ", ".join(f"{process_name(row.process)} {format_gib(row.process.used_bytes)}" for row in gpu.rows)
        words = f"shares the memory of {gpu.reading.shares_memory_of}{f'; of it {holders}' if holders else ''}"
        return _line("held", Content.styled(words, MUTED), Content(), shape)
    if not gpu.reading.total_bytes:
        reason = gpu.reading.reason("total_bytes") or "the GPU's total memory is not known"
        known = gpu.reading.attributed_bytes
        held = "" if known is None else f", processes hold {format_gib(known)} GiB"
        return _line("held", Content.styled(f"n/a: {printable(reason)}{held}", MUTED), Content(), shape)
    return _line("held", bar_content(held_cells(gpu, shape.bar_width)), _held_figures(gpu, shape.figures_width), shape)


def _held_figures(gpu: GpuRow, width: int) -> Content:
    reading = gpu.reading
    parts: list[Content | str] = []
    if reading.processes is None:
        parts.append("processes n/a")
    elif gpu.rows:
        first, rest = gpu.rows[0], gpu.rows[1:]
        size = f" {format_gib(first.process.used_bytes)}"
        parts.append(shorten(process_name(first.process), min(16, width - len(size))) + size)
        if rest:
            sizes = [row.process.used_bytes for row in rest]
            known = [size for size in sizes if size is not None]
            words = format_gib(sum(known)) if known else "n/a"
            parts.append(f"{len(rest)} more {words}{' and n/a' if known and len(known) < len(sizes) else ''}")
    parts.append(f"{unattributed_label(reading)} {format_gib(reading.remaining_bytes)}")
    parts.append(f"reserved {format_gib(reading.reserved_bytes)}")
    return join_to_width(parts, width)


def _budget_line(gpu: GpuRow, shape: PanelShape) -> Content:
    if gpu.reading.mig is not None:
        count = len(gpu.reading.mig)
        reason = gpu.reading.reason("mig")
        words = (
            f"in MIG mode: programs run in its {count} device{'s' * (count > 1)}"
            if count
            else "in MIG mode, without devices"
        )
        words = f"{words}; {printable(reason)}" if reason else words
        return _line("budget", Content.styled(words, MUTED), Content(), shape)
    if gpu.expected_bytes is None:
        problem = next((row.problem for row in gpu.rows if row.problem), None)
        words = "no job known here" if gpu.rows else "nothing runs here"
        if problem:
            words = f"n/a: {printable(problem)}"
        elif gpu.reading.processes is None:
            refused = (fault.message for fault in gpu.reading.faults if fault.field == "processes")
            words = f"n/a: {printable(next(refused, 'its processes are not known'))}"
        return _line("budget", Content.styled(words, MUTED), Content(), shape)
    range_words = f"({format_gib(gpu.low_bytes)} to {format_gib(gpu.high_bytes)})"
    peaks = {row.budget.peak.phase for row in gpu.rows_with_budget if row.budget and row.budget.serving is None}
    figures = join_to_width(
        [
            f"{format_gib(gpu.expected_bytes)} GiB {range_words}",
            *(["peak in " + ", ".join(sorted(peaks))] if peaks else []),
        ],
        shape.figures_width,
    )
    cells = budget_cells(gpu, shape.bar_width) if gpu.reading.total_bytes else None
    return _line("budget", Content() if cells is None else bar_content(cells), figures, shape)


def _graph_lines(gpu: GpuRow, history: Readings, shape: PanelShape, now: float) -> list[Content]:
    top = gpu.reading.total_bytes
    if not top or shape.graph_height <= 0:
        return [Content()] * max(0, shape.graph_height)
    span = graph_span(history, now)
    row = worst_row(gpu.rows)
    colour = STATUSES[row.comparison.status].colour if row and row.comparison else NO_JOB
    seen = max((size for _, size in history if size is not None), default=None)
    levels = graph_levels(
        history, width=shape.bar_width, height=shape.graph_height, top_bytes=top, span_seconds=span, now=now
    )
    return list(
        _drawn_graph(
            levels,
            shape,
            colour=darker(colour),
            top_bytes=top,
            expected_bytes=_expected_total(gpu),
            seen_bytes=seen,
            span_seconds=span,
        )
    )


@lru_cache(maxsize=64)
def _drawn_graph(
    levels: tuple[int, ...],
    shape: PanelShape,
    *,
    colour: str,
    top_bytes: int,
    expected_bytes: int | None,
    seen_bytes: int | None,
    span_seconds: float,
) -> tuple[Content, ...]:
    """Return the lines of the graph; cached, as a column spans several readings and rarely changes."""
    rows = level_rows(levels, shape.graph_height, colour)
    if expected_bytes is not None:
        _draw_budget(rows, expected_bytes, top_bytes)
    notes = [f"peak seen {format_gib(seen_bytes)}", f"{BUDGET_LINE * 2} expected {format_gib(expected_bytes)}"]
    notes = [*(notes if expected_bytes is not None else notes[:1]), *[""] * len(rows)]
    labels = [f"{span_seconds / 60:.0f} min", *[""] * len(rows)]
    return tuple(
        _line(label, bar_content(cells), Content.styled(note, MUTED), shape)
        for label, cells, note in zip(labels, rows, notes, strict=False)
    )


def _expected_total(gpu: GpuRow) -> int | None:
    """Return the memory of the GPU when its jobs hold their budgets and everything else stays as it is."""
    if gpu.expected_bytes is None or gpu.reading.used_bytes is None:
        return gpu.expected_bytes
    held = sum(row.process.used_bytes or 0 for row in gpu.rows_with_budget)
    return gpu.expected_bytes + max(0, gpu.reading.used_bytes - held)


def _draw_budget(rows: list[list[Cell]], size_bytes: int, top_bytes: int) -> None:
    """Draw a dotted line at the height of the budget, in every other cell where the graph is."""
    height = len(rows)
    row = rows[height - 1 - min(height - 1, size_bytes * height // top_bytes)]
    for at, cell in enumerate(row):
        if cell.char in " █" or at % 2:
            ground = cell.colour if cell.char == "█" else None
            row[at] = Cell(BUDGET_LINE, ground and ink_on(ground), ground)


def _line(label: str, drawn: Content, figures: Content, shape: PanelShape) -> Content:
    name = Content.styled(f"{label:{_LABEL_WIDTH}}", MUTED)
    if not figures and drawn.cell_length != shape.bar_width:
        return Content.assemble(name, drawn.truncate(shape.width - 4 - _LABEL_WIDTH, ellipsis=True))
    gap = " " * (shape.bar_width - drawn.cell_length)
    return Content.assemble(name, drawn, gap, ("▏", FAINT), " ", figures)


def _verdict(gpu: GpuRow, width: int) -> Content:
    """Return each known job with its status, worst first, and the sentence of the worst one."""
    judged = sorted(gpu.rows_with_budget, key=severity_rank)
    if not judged or judged[0].comparison is None:
        return Content()
    first = judged[0].comparison
    parts: list[Content | str] = [_job(judged[0])]
    parts += [_job(row) for row in judged[1:]] if len(judged) < 3 else [f"{len(judged) - 1} more jobs"]
    line = join_to_width(parts, width)
    room = width - line.cell_length - 3
    return join_to_width([line, shorten(first.sentence, room)], width) if room > 16 else line


def _job(row: ProcessRow) -> Content:
    if row.job is None or row.comparison is None:
        return Content("?")
    status = row.comparison.status
    size = difference_label(row.comparison)
    difference = f" {size} GiB" if size else ""
    return Content.assemble(shorten(printable(row.job.label), 24), " ", badge(STATUSES[status], status), difference)


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
