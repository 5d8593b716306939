"""The panel of a GPU: held memory and budget on one scale, and a graph over time; a click opens the GPU."""

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click

from vramtop.estimator.common.sizes import GIB, UNSEEN_BYTES, format_gib
from vramtop.monitor.board.board import Board, GpuRow, ProcessRow
from vramtop.monitor.snapshot.memory_history import MemoryHistory
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuReading

from ...draw.gpu_bars import bar_content, budget_cells, gpu_figure_parts, held_cells, held_colour, is_uncertain
from ...draw.labels import (
    FAINT,
    MUTED,
    SEPARATOR,
    badge,
    format_duration,
    job_name,
    join_to_width,
    left_and_right,
    process_name,
    run_moments,
    severity_rank,
    shorten,
    tag,
    urgent_label,
    worst_row,
)
from ...draw.memory_graph import Readings, timeline_cells, timeline_marks
from ...draw.palette import STATUSES, budget_size, colour_of, unattributed_label
from ...draw.run_graph import BOUND, EXPECTED, LevelLine, RunGraphData, row_of, run_graph_rows
from ...draw.text_output import printable
from ...keys import shown_key
from ...widgets.content_lines import ContentLines
from .gpu_rows import GpuRows, is_shared
from .layout import LABEL_WIDTH, PanelPlace, PanelShape


class GpuPanel(ContentLines):
    """A GPU's panel; a click opens the GPU."""

    _gpu: GpuRow | None = None
    _place: PanelPlace | None = None

    def on_click(self, event: Click) -> None:
        """Open the GPU."""
        event.stop()
        if self._gpu is not None:
            self.post_message(GpuRows.Opened(self._gpu))

    def show_gpu(self, gpu: GpuRow, board: Board, shape: PanelShape, age: float | None, history: MemoryHistory) -> None:
        """Show this GPU of the board; ``age`` is that of the reading if it is stale."""
        self._gpu = gpu
        self.set_class(age is not None, "-stale")
        readings = history.gpu(gpu.reading.key) if shape.graph_height else ()
        self.show_lines(panel_lines(gpu, readings, shape, now=board.snapshot.time, stale_seconds=age))

    def stand_at(self, place: PanelPlace) -> None:
        """Move it to this place, if it is not there yet."""
        if self._place != place:
            self._place = place
            self.styles.position = "absolute"
            self.styles.offset = place.x, place.y
            self.styles.width, self.styles.height = place.width, place.height


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
    row, frame = worst_row(gpu.rows), FAINT
    if stale_seconds is None and row is not None and row.comparison is not None and row.comparison.diverges:
        frame = f"bold {STATUSES[row.comparison.status].colour}"
    if not shape.framed:
        return _jobless_lines(gpu, shape, stale_seconds)
    inside = [_held_line(gpu, shape), _budget_line(gpu, shape), *_graph_lines(gpu, history, shape, now)]
    side = Content.styled("│", frame)
    room = shape.width - 4
    return [
        _title("┌┐", gpu.reading, frame, shape, stale_seconds),
        *(Content.assemble(side, " ", left_and_right(line, Content(), room), " ", side) for line in inside),
        _border("└┘", _verdict(gpu, shape.width - 6), Content(), frame, shape.width),
    ]


_MIN_BAR_WIDTH = 12


def _jobless_lines(gpu: GpuRow, shape: PanelShape, stale_seconds: float | None) -> list[Content]:
    """Return a rule, and what is held, with why there is no budget."""
    words = _why_no_budget(gpu)
    if is_shared(gpu) or not gpu.reading.total_bytes:
        line = _held_line(gpu, shape)
    else:
        room = shape.width - 4 - LABEL_WIDTH
        words = shorten(words, max(shape.figures_width, room - _MIN_BAR_WIDTH - 2))
        cells = min(shape.bar_width, room - cell_len(words) - 2)
        line = _panel_line("in use", bar_content(held_cells(gpu, cells)), Content.styled(words, MUTED), shape, cells)
    return [
        _title("──", gpu.reading, FAINT, shape, stale_seconds),
        left_and_right(Content.assemble("  ", line), Content(), shape.width),
    ]


_NAME_WIDTH = 38
"""Most cells for the name of a GPU in a wide panel, with the frame."""
_FRAME_CELLS = 9
"""Corners, blanks, and a piece of the rule between the name and the figures of a panel."""


def _title(corners: str, reading: GpuReading, style: str, shape: PanelShape, stale_seconds: float | None) -> Content:
    name = _name(reading)
    least = min(name.cell_length + _FRAME_CELLS, _NAME_WIDTH)
    figures = _figures(reading, max(shape.width // 2 + 8, shape.width - least), stale_seconds)
    return _border(corners, name, figures, style, shape.width)


def _name(reading: GpuReading) -> Content:
    name = printable(reading.name or "GPU").removeprefix("NVIDIA ")
    if isinstance(reading, MigDevice):  # its end is cut first
        name, _, _ = name.rpartition(" MIG")
        name = f"MIG {printable(reading.device.profile or 'device')} of {name}"
    if reading.shares_host_memory:
        name = f"{name} (host's memory)"
    return Content.assemble((f"{reading.label} ", "bold"), name)


_IN_USE_WIDTH = 60
"""Width of figures that say ``in use``; where there is less room, the bar alone says it."""
_ALWAYS = 3
"""The figures that are worth more than these words: utilisation, power, temperature."""


def _figures(reading: GpuReading, width: int, stale_seconds: float | None) -> Content:
    rest: list[Content | str] = [f"free {format_gib(reading.free_bytes)}", *gpu_figure_parts(reading)]
    if stale_seconds is not None:
        age = tag(f"! {format_duration(stale_seconds)} old")
        return join_to_width([age, _used(reading, "GiB", width), *rest], width)
    wanted = [_used(reading, "GiB in use", width), *rest]
    needed = sum(Content.assemble(part).cell_length + len(SEPARATOR) for part in wanted[: 2 + _ALWAYS]) - len(SEPARATOR)
    words = "GiB in use" if width >= max(needed, _IN_USE_WIDTH) else "GiB"
    return join_to_width([_used(reading, words, width), *rest], width)


def _used(reading: GpuReading, unit: str, width: int) -> Content:
    """Return used and total memory, or why they are not known."""
    used, total = reading.used_bytes, reading.total_bytes
    if used is None or total is None:
        reason = reading.reason("used_bytes") or reading.reason("total_bytes")
        words = f"memory n/a: {printable(reason)}" if reason else "memory n/a"
    else:
        words = f"{format_gib(used)} of {format_gib(total)} {unit}"
        if isinstance(reading, MigDevice) and reading.shares_memory_of:
            words = f"{words}, shared with {reading.shares_memory_of}"
        else:
            shared = ", shared" if isinstance(reading, MigDevice) and reading.shares_memory else ""
            words = f"{words} ({100 * used / total:.0f} %){shared}"
    return Content.styled(shorten(words, width), "bold")


def _held_line(gpu: GpuRow, shape: PanelShape) -> Content:
    if isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of:
        holders = ", ".join(f"{process_name(row.process)} {format_gib(row.process.used_bytes)}" for row in gpu.rows)
        words = f"shares the memory of {gpu.reading.shares_memory_of}{f'; of that {holders}' if holders else ''}"
        return _panel_line("in use", Content.styled(words, MUTED), Content(), shape)
    if not gpu.reading.total_bytes:
        reason = gpu.reading.reason("total_bytes") or "the GPU's total memory is unknown"
        known = gpu.reading.attributed_bytes
        held = "" if known is None else f", processes hold {format_gib(known)} GiB"
        return _panel_line("in use", Content.styled(f"n/a: {printable(reason)}{held}", MUTED), Content(), shape)
    drawn = bar_content(held_cells(gpu, shape.bar_width))
    return _panel_line("in use", drawn, _held_figures(gpu, shape.figures_width), shape)


def _panel_line(label: str, drawn: Content, figures: Content, shape: PanelShape, cells: int | None = None) -> Content:
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
        return _panel_line("budget", Content.styled(_why_no_budget(gpu), MUTED), Content(), shape)
    range_words = f"({format_gib(gpu.low_bytes)} to {format_gib(gpu.high_bytes)})"
    budgets = [row.budget for row in gpu.rows_with_budget if row.budget]
    peaks = {budget.peak.phase for budget in budgets if budget.phases and budget.serving is None}
    parts = [f"{budget_size(gpu.expected_bytes, is_guess=is_uncertain(gpu))} GiB {range_words}"]
    if any(budget.learned for budget in budgets):  # measured runs corrected it
        before = (
            each.learned.uncorrected_steady_bytes if each.learned else each.steady_device_bytes for each in budgets
        )
        parts.append(f"corrected, was {format_gib(sum(before))}")
    parts += [f"peak in {', '.join(sorted(peaks))}"] if peaks else []
    figures = join_to_width(parts, shape.figures_width)
    cells = budget_cells(gpu, shape.bar_width) if gpu.reading.total_bytes else None
    return _panel_line("budget", Content() if cells is None else bar_content(cells), figures, shape)


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


def _border(corners: str, left: Content, right: Content, style: str, width: int) -> Content:
    room = width - 4
    if right.cell_length > room - 2:
        right = right.truncate(room - 2, ellipsis=True)
    left = left.truncate(max(0, room - right.cell_length - 4), ellipsis=True)
    parts = [Content.assemble(" ", part, " ") if part else Content() for part in (left, right)]
    rule = "─" * (width - 4 - sum(part.cell_length for part in parts))
    return Content.assemble((corners[0] + "─", style), parts[0], (rule, style), parts[1], ("─" + corners[1], style))


_SPANS_SECONDS = (60.0, 300.0, 900.0, 3600.0)
_MIN_HEIGHT_WITH_TIMELINE = 4
_SHOWN_BESIDE_BYTES = GIB // 10


def _graph_lines(gpu: GpuRow, history: Readings, shape: PanelShape, now: float) -> list[Content]:
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
    held = sum(row.process.used_bytes or 0 for row in gpu.rows_with_budget)
    beside = max(0, (gpu.reading.used_bytes or held) - held)  # memory of others, above which the budget's lines lie
    judged = gpu.expected_bytes is not None and not (row and row.comparison and row.comparison.is_guess)
    high = gpu.high_bytes + beside if judged and gpu.high_bytes is not None else None
    notes = [""] * shape.graph_height
    lines = []
    if high is not None:
        notes[height - 1 - row_of(high, height, top)] = f"{BOUND * 2} at most"
        lines += [LevelLine(high, BOUND, colour_of("neutral"))] if high < top else []
    if gpu.expected_bytes is not None:
        expected = LevelLine(gpu.expected_bytes + beside, EXPECTED)
        lines.append(expected)
        y = height - 1 - row_of(expected.size_bytes, height, top)
        others = f", plus {format_gib(beside)} of others" if beside >= _SHOWN_BESIDE_BYTES else ""
        notes[y] = f"{EXPECTED * 2} expected{', at most' if notes[y] else ''}{others}"
    if "" in notes:
        seen = max((size for _, size in history if size is not None), default=None)
        notes[notes.index("")] = f"peak seen {format_gib(seen)}"
    data = RunGraphData(
        history=history,
        top_bytes=top,
        span_seconds=span,
        now=now,
        lines=tuple(lines),
        marks=run_moments(row) if row else (),
        high_bytes=high,
        colour=held_colour(row) if row else None,
    )
    rows = run_graph_rows(data, width=shape.bar_width, height=height)
    if timeline:
        marks = timeline_marks(data.marks, width=shape.bar_width, span_seconds=span, now=now)
        rows.append(timeline_cells(marks, shape.bar_width))
    labels = [""] * len(rows)
    labels[0] = f"{format_gib(top, digits=0)} GiB"
    labels[-1] = f"{span / 60:.0f} min"
    return [
        _panel_line(label, bar_content(cells), Content.styled(note, MUTED), shape)
        for label, cells, note in zip(labels, rows, notes, strict=True)
    ]


def graph_span(history: Readings, now: float) -> float:
    """Return the seconds that a graph shows: the shortest span that contains the history."""
    age = now - history[0][0] if history else 0.0
    return next((span for span in _SPANS_SECONDS if age <= span), _SPANS_SECONDS[-1])
