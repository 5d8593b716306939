"""Short texts for processes, durations, sizes and states, used by all parts of the dashboard."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.cells import cell_len, set_cell_size
from textual.content import Content

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib
from vramtop.monitor.host.kinds import kind_label, program_of
from vramtop.monitor.host.plain_text import duration_text
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import FIRST_SAMPLE

from .bars import BarRange, BarSegment, Cell, beyond_segment, cell_runs, component_segments, draw_bar, memory_segment
from .memory_graph import TimeMark
from .palette import (
    COMPONENTS,
    OTHER_MEMORY,
    PHASES,
    STATUSES,
    VERDICTS,
    Mark,
    MemoryKind,
    budget_size,
    colour_of,
    ink_on,
    on_colour,
)
from .text_output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.monitor.board.board import GpuRow, ProcessRow
    from vramtop.monitor.board.comparison import Comparison, Status
    from vramtop.monitor.snapshot.clock_reasons import ClockReason
    from vramtop.monitor.snapshot.demand import ProcessFigure
    from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, ProcessFigures

WORST_FIRST: tuple[Status, ...] = (
    *("out_of_memory", "over", "growing", "under", "unknown", "incomplete"),
    *("loading", "warming_up", "on_budget", "ended"),
)
SEPARATOR = " · "
MUTED = "$foreground 65%"
FAINT = "$foreground 35%"
_GPU_FAULTS = {
    "GPU_IS_LOST": "lost",
    "RESET_REQUIRED": "reset required",
    "NO_ANSWER": "hangs",
    "NO_PERMISSION": "no permission",
    "NOT_LISTED": "not listed",
    "ASLEEP": "asleep",
    "CONNECTING": "connecting",
    "SILENT": "silent",
    "UNREACHABLE": "unreachable",
    "NO_GPU": "no GPU",
}
"""A word for each fault of a whole GPU, or of a host, by its code."""
_CALM_STYLES = {"on_budget": "$text-success", "fits": "bold $text-success"}
_BADGES = {name for name, mark in (*STATUSES.items(), *VERDICTS.items()) if mark.word.isupper()}


def alarm() -> str:
    """Return the style of what needs attention."""
    return f"bold {on_colour(colour_of('warning'))}"


def shorten(text: str, width: int) -> str:
    """Cut the text to at most ``width`` cells; a text that was cut ends in an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def process_name(process: GpuProcess) -> str:
    """Return the name that a person would use: the server, the script or module that Python runs, or the program."""
    known = program_of(process)
    if known.kind in ("server", "notebook"):
        return kind_label(known.kind, known.name) or known.kind
    arguments = (process.command or "").split()
    name = printable(process.name or "") or "?"
    if not arguments:
        return name
    program = PurePosixPath(arguments[0]).name
    if not program.startswith("python"):
        return printable(program)
    for at, argument in enumerate(arguments[1:], start=1):
        if argument == "-m" and at + 1 < len(arguments):
            return printable(arguments[at + 1])
        if not argument.startswith("-"):
            return printable(PurePosixPath(argument).name)
    return printable(program)


def job_name(row: ProcessRow) -> str:
    """Return the label of a process's job; of an unknown one, the name of the process."""
    return printable(row.job.label) if row.job else process_name(row.process)


def format_duration(seconds: float | None) -> str:
    """Format a duration by its two largest units: ``14 min``, ``2 h 05``; n/a if it is unknown."""
    return "n/a" if seconds is None else duration_text(seconds)


def signed_gib(size_bytes: int | None) -> str:
    """Format a difference in GiB, with its sign and without the unit."""
    return format_gib(size_bytes, signed=True)


def difference_label(comparison: Comparison) -> str:
    """Return how far a process is from its budget, in GiB; empty if the budget is a guess, or there is none."""
    known = comparison.status != "incomplete" and comparison.expected_bytes is not None
    return signed_gib(comparison.difference_bytes) if known else ""


def budget_label(row: ProcessRow) -> str:
    """Return the budget of a process in GiB, marked if it is a guess; ``-`` if there is none."""
    status = row.comparison.status if row.comparison else None
    return budget_size(row.budget.steady_device_bytes, status) if row.budget else "-"


def phase_label(comparison: Comparison) -> str:
    """Return the phase of a run; empty if it is unknown, or if it grows although it should be steady."""
    return PHASES[comparison.phase] if comparison.phase and comparison.status != "growing" else ""


def urgent_label(row: ProcessRow, *, unit: str = "") -> str:
    """Return what matters most beside a status: of growth when the GPU is full, else how far it is from its budget.

    Args:
        row: the process.
        unit: of the difference, such as `` GiB``.
    """
    if row.comparison is not None and row.comparison.status == "growing" and row.full_seconds is not None:
        return f"full in {format_duration(row.full_seconds)}"
    difference = difference_label(row.comparison) if row.comparison else ""
    return f"{difference}{unit}" if difference else ""


def high_water_label(comparison: Comparison) -> str:
    """Return the maximum that a process has held, and who measured it: ``most 60.6 (seen every 1.0 s)``."""
    high = comparison.peak_usage
    if high is None:
        return "most n/a"
    interval = "" if high.interval_seconds is None else f" every {high.interval_seconds:.1f} s"
    how = {"probe": "by torch's counters", "accounting": "by the driver", "seen": f"seen{interval}"}[high.source]
    return f"most {format_gib(high.size_bytes)} ({how})"


def badge(mark: Mark, name: str) -> Content:
    """Return sign and word of a status or verdict between spaces; one that needs attention stands on its colour."""
    text = f" {mark.letter} {mark.word} "
    if name in _BADGES and name != "fits":
        return Content.styled(text, f"bold {on_colour(mark.colour)}")
    return Content.styled(text, _CALM_STYLES.get(name, MUTED))


def run_moments(row: ProcessRow) -> tuple[TimeMark, ...]:
    """Return the starts of the phases of a process, and the moment at which it left its budget."""
    marks = [TimeMark(start.time, (PHASES[start.phase],)) for start in row.phase_starts]
    comparison = row.comparison
    if comparison is not None and comparison.left_budget_at is not None and comparison.diverges:
        sign, at = STATUSES[comparison.status], time.localtime(comparison.left_budget_at)
        clock = time.strftime("%H:%M:%S", at)
        labels = (f"{sign.letter} {sign.word.lower()} since {clock}", f"{sign.letter} {clock}", sign.letter)
        marks.append(TimeMark(comparison.left_budget_at, labels, sign.colour))
    return tuple(marks)


def worst_row(rows: Iterable[ProcessRow]) -> ProcessRow | None:
    """Return the row with the worst status; None if no row has a status."""
    compared = [row for row in rows if row.comparison]
    return min(compared, key=severity_rank, default=None)


def gpu_labels(rows: Iterable[ProcessRow]) -> tuple[str, ...]:
    """Return the labels of the GPUs and MIG devices of these rows, each once, in order."""
    places = {row.gpu.order: row.gpu.label for row in rows}
    return tuple(places[order] for order in sorted(places))


def severity_rank(row: ProcessRow) -> int:
    """Return the place of the row's status in ``WORST_FIRST``; a row without a status comes last."""
    return len(WORST_FIRST) if row.comparison is None else WORST_FIRST.index(row.comparison.status)


def gpu_status(gpu: GpuRow, width: int) -> Content:
    """Return the GPU's state by its worst job: sign, word, and at the right the difference; or why there is no job."""
    for fault in gpu.reading.faults:
        if fault.field is None:
            return Content.styled(f" ! {_GPU_FAULTS.get(fault.code, 'cannot be read')} ", alarm())
    row = worst_row(gpu.rows)
    if row and row.comparison:
        mark, beside = STATUSES[row.comparison.status], urgent_label(row)
        status = badge(mark, row.comparison.status)
        if status.cell_length + len(beside) > width:
            word, beside = (beside, "") if row.comparison.status == "growing" else (mark.short_word, beside)
            status = badge(replace(mark, word=word), row.comparison.status)
        return left_and_right(status, Content.assemble(beside), width)
    if gpu.reading.mig is not None:
        count = len(gpu.reading.mig)
        return Content.styled(f" MIG, {count or 'no'} device{'' if count == 1 else 's'}", MUTED)
    if gpu.reading.processes is None:
        return Content.styled(" processes n/a", MUTED)
    reason = next((row.no_budget_reason for row in gpu.rows if row.no_budget_reason), "no budget")
    return Content.styled(f" {reason}" if gpu.rows else " idle", MUTED)


def join_to_width(parts: Iterable[Content | str], width: int) -> Content:
    """Join the parts by dots, as many from the left as fit into the width."""
    line = Content()
    for part in parts:
        longer = Content.assemble(line, SEPARATOR, part) if line else Content.assemble(part)
        if longer.cell_length > width:
            break
        line = longer
    return line


def left_and_right(left: Content, right: Content, width: int) -> Content:
    """Return one line of exactly this width; the left part is cut if there is not enough space."""
    left_width = max(0, width - right.cell_length - bool(right))
    if left.cell_length > left_width:
        left = left.truncate(left_width, ellipsis=True)
    gap = max(0, width - left.cell_length - right.cell_length)
    return Content.assemble(left, " " * gap, right).truncate(width)


# The text of a table cell with its tone, which tables turn into a colour.


Tone = Literal["plain", "muted", "good", "over", "under"]


class CellText(msgspec.Struct, frozen=True):
    """The text of a cell, and its tone: no style, because a line is kept while its cells are equal, in any theme."""

    text: str
    tone: Tone = "plain"


def status_tone(row: ProcessRow) -> Tone:
    """Return the tone of a process's status."""
    if row.comparison is None:
        return "muted"
    match row.comparison.status:
        case "over" | "growing" | "out_of_memory":
            return "over"
        case "under":
            return "under"
        case "on_budget":
            return "good"
    return "muted"


# Text of the figures of a process that are read on demand; unknown is n/a, and never 0.


PENDING = "…"
"""The figure is asked for, and not read yet."""


def figure_text(figure: ProcessFigure, figures: ProcessFigures | None, *, live: bool) -> str:
    """Return a figure without its unit: percent, GiB or a number; ``…`` before the first reading, n/a if unknown.

    Args:
        figure: which.
        figures: of the process; None: the snapshot has none.
        live: the snapshots are of this machine now; a recording contains what it contains.
    """
    value = getattr(figures, figure, None)
    if value is not None:
        return format_gib(value) if figure == "rss_bytes" else f"{value:.0f}"
    fault = figures.fault(figure) if figures else None
    if fault is None:
        return PENDING if live else "n/a"
    return PENDING if fault.code == FIRST_SAMPLE else "n/a"


def figure_reason(figure: ProcessFigure, figures: ProcessFigures | None, *, live: bool) -> str | None:
    """Return why a figure is n/a, in one sentence; None if it is known, or is being read."""
    if figure_text(figure, figures, live=live) != "n/a":
        return None
    fault = figures.fault(figure) if figures else None
    return fault.message if fault else "not in these readings"


# Figures of one GPU beside its memory as short texts: what slows it down, utilisation, power, temperature, fan.
#
# The dashboard shows as many of them as it has room for; the GPU screen shows each in full.


def gpu_figure_parts(reading: GpuReading) -> list[Content]:
    """Return the figures in order of importance, each as a few words; those that nobody asked for are left out."""
    parts = [Content("util " + with_unit(reading.utilisation_percent, "%"))]
    if isinstance(reading, MigDevice):  # the others are of the whole GPU
        return parts
    parts += [Content(power_words(reading)), Content(with_unit(reading.temperature_c, "°C"))]
    if reason := slowing_reason(reading):
        parts.insert(0, reason_badge(reason))
    if reading.memory_utilisation_percent is not None:
        parts.append(Content(f"bandwidth {reading.memory_utilisation_percent} %"))
    if fan := fan_words(reading):
        parts.append(Content(f"fan {fan}"))
    return parts


def hardware_cell(reading: GpuReading, width: int) -> Content:
    """Return power of its limit and temperature in a cell of this width; in the place of the power, what slows it."""
    if isinstance(reading, MigDevice):  # they are of the whole GPU
        return Content(" " * width)
    temperature = "n/a" if reading.temperature_c is None else f"{reading.temperature_c} °C"
    reason = slowing_reason(reading)
    if reason is not None and reason.kind == "slowed":
        words = Content.assemble(reason_badge(reason), f"  {temperature:>6}")
    else:
        limit = "" if reading.power_limit_w is None else f"/{reading.power_limit_w:.0f}"
        power = "n/a" if reading.power_w is None else f"{reading.power_w:.0f}{limit} W"
        words = Content(f"{power}  {temperature:>6}")
    return Content.assemble(" " * (width - words.cell_length), words).truncate(width)


def with_unit(figure: int | None, unit: str) -> str:
    """Return ``63 °C``, or ``°C n/a``."""
    return f"{unit} n/a" if figure is None else f"{figure} {unit}"


def power_words(reading: GpuReading) -> str:
    """Return the power draw of its limit: ``412 of 700 W``."""
    if reading.power_w is None or reading.power_limit_w is None:
        return with_unit(None if reading.power_w is None else round(reading.power_w), "W")
    return f"{reading.power_w:.0f} of {reading.power_limit_w:.0f} W"


def slowing_reason(reading: GpuReading) -> ClockReason | None:
    """Return the main reason why the GPU runs slower than it could; None: it does not, or nobody asked."""
    bits = reading.details.clock_reasons if reading.details else None
    if not bits:
        return None
    from vramtop.monitor.snapshot.clock_reasons import clock_reasons  # not at start-up

    return next((reason for reason in clock_reasons(bits) if reason.kind in ("slowed", "limit")), None)


def reason_badge(reason: ClockReason) -> Content:
    """Return the reason in a word or two; one that is no everyday limit stands out."""
    if reason.kind == "slowed":
        return Content.styled(f" ! {reason.word} ", alarm())
    return Content.styled(reason.word, "$text-warning" if reason.kind == "limit" else MUTED)


def fan_words(reading: GpuReading) -> str | None:
    """Return the speed of its fans, ``30 %`` or ``30-42 %``; None: it has none, or that is not known."""
    speeds = reading.details.fan_percents if reading.details else None
    if not speeds:
        return None
    low, high = min(speeds), max(speeds)
    return f"{low} %" if low == high else f"{low}-{high} %"


# The two bars of a GPU on the scale of its total memory: what is held now, and the budget of its jobs.
#
# Both begin with the jobs, so that the same place is the same byte: what a job holds beyond the upper bound of its
# budget is red, and lies right of the budget's range. Everything else that is held follows. A new kind of memory is a
# row of ``palette.OTHER_MEMORY``, from which legends are made, and a segment here.


BUDGET_LINE = "━"
_MIN_PROCESS_CELLS = 1.5
"""Processes of fewer cells are drawn as one segment."""
_MARK = "┃"
_SHORT_NAMES = (9, 6)
"""Characters that are left of a name in a narrow segment."""


def held_cells(gpu: GpuRow, width: int, *, figures: bool = True, label_end: int | None = None) -> list[Cell]:
    """Draw what is held now: jobs, what they hold beyond their budgets, other processes, the driver.

    The GPU's total must be known.

    Args:
        gpu: with its processes.
        width: in cells.
        figures: write the size of each process, and how far jobs are from their budgets.
        label_end: the cell at which labels end; None: they may stand anywhere.
    """
    reading, total = gpu.reading, gpu.reading.total_bytes or 1
    jobs = [row for row in gpu.rows if row.budget]
    others = [row for row in gpu.rows if not row.budget]
    least = _MIN_PROCESS_CELLS * total / width if width else 0.0
    seen = [row for row in others if (row.process.used_bytes or 0) >= least]
    small = sum(size for row in others if (size := row.process.used_bytes or 0) < least)
    beyond = [beyond_budget_bytes(row) for row in jobs]
    words, colour = _difference(gpu) if figures else ("", None)
    segments = [_process_segment(row, less_bytes=more, figures=figures) for row, more in zip(jobs, beyond, strict=True)]
    segments.append(beyond_segment(sum(beyond), words))
    segments += [_process_segment(row, figures=figures) for row in seen]
    segments.append(BarSegment(size_bytes=small, colour=colour_of("no_budget")))
    rest = (reading.used_bytes if reading.processes is None else reading.remaining_bytes) or 0
    segments.append(memory_segment("unattributed", rest, min_one_cell=rest * 100 >= total))
    segments.append(memory_segment("reserved", _unavailable_bytes(reading)))
    cells = draw_bar(segments, scale_bytes=total, width=width, label_end=label_end)
    return _with_end_label(cells, words, colour) if words else cells


def beyond_budget_bytes(row: ProcessRow) -> int:
    """Return what the process holds beyond the upper bound of its budget; 0 if that is a guess, or not known."""
    if row.budget is None or row.comparison is None or row.comparison.status == "incomplete":
        return 0
    beyond = (row.process.used_bytes or 0) - row.budget.peak.shown_high_bytes
    return beyond if beyond >= UNSEEN_BYTES else 0


def budget_cells(gpu: GpuRow, width: int) -> Sequence[Cell] | None:
    """Draw the budget of the known jobs by component, with its range; None if no job is known.

    It is hatched if settings of a job are guessed.
    """
    components, expected = gpu.components, gpu.expected_bytes
    if components is None or expected is None:
        return None
    slack = memory_segment("slack", expected - components.total_bytes)
    segments = (*component_segments(components, budget=_wording_budget(gpu), uncertain=is_uncertain(gpu)), slack)
    span = BarRange(low_bytes=gpu.low_bytes or expected, high_bytes=gpu.high_bytes or expected)
    return _drawn_budget(segments, gpu.reading.total_bytes or 1, width, span)


@lru_cache(maxsize=64)
def _drawn_budget(segments: tuple[BarSegment, ...], scale_bytes: int, width: int, span: BarRange) -> tuple[Cell, ...]:
    """Return the cells; cached, as a budget rarely changes."""
    return tuple(draw_bar(segments, scale_bytes=scale_bytes, width=width, marked=span))


def _wording_budget(gpu: GpuRow) -> Budget | None:
    """Return a budget in whose words the sum can be shown: of the only job, or of any if all are servers."""
    budgets = [row.budget for row in gpu.rows_with_budget if row.budget is not None]
    alike = len(budgets) == 1 or all(budget.serving is not None for budget in budgets)
    return budgets[0] if budgets and alike else None


def is_uncertain(gpu: GpuRow) -> bool:
    """Return True if settings of a job on this GPU are guessed."""
    return any(row.comparison is not None and row.comparison.status == "incomplete" for row in gpu.rows)


def held_cells_with_budget_mark(gpu: GpuRow, width: int) -> list[Cell]:
    """Draw what is held now, with a mark where the budget expects it to end."""
    if gpu.expected_bytes is None or not width:
        return held_cells(gpu, width, figures=False)
    at = min(width - 1, max(0, round(gpu.expected_bytes * width / (gpu.reading.total_bytes or 1)) - 1))
    cells = held_cells(gpu, width, figures=False, label_end=at)
    ground = cells[at].ground
    cells[at] = Cell(_MARK, ground and ink_on(ground), ground)
    return cells


def bar_content(cells: Sequence[Cell]) -> Content:
    """Return the cells with their colours."""
    return Content.assemble(*((text, _style(text, colour, ground)) for text, colour, ground in cell_runs(cells)))


def _style(text: str, colour: str | None, ground: str | None) -> str:
    if ground is not None:
        return f"{colour or ink_on(ground)} on {ground}"
    return colour or ("bold" if text == _MARK else "")


def _unavailable_bytes(reading: GpuReading) -> int:
    """Return memory that no job can use: the driver's, or what the host holds of memory that GPU and host share."""
    if not reading.shares_host_memory:
        return reading.reserved_bytes or 0
    if reading.total_bytes is None or reading.used_bytes is None or reading.free_bytes is None:
        return 0
    return max(0, reading.total_bytes - reading.used_bytes - reading.free_bytes)


def _process_segment(row: ProcessRow, *, figures: bool, less_bytes: int = 0) -> BarSegment:
    name = printable(row.job.label) if row.job and row.job.has_label else process_name(row.process)
    size = format_gib(row.process.used_bytes)
    names = [name, *(f"{name[:length]}…" for length in _SHORT_NAMES if length < len(name) - 1)]
    if cell_len(name) != len(name):  # a cell has one character
        labels = [size] if figures else []
    elif figures:
        labels = [f"{name} {size}", name, *(f"{each} {size}" for each in names[1:]), *names[1:]]
    else:
        labels = names
    held = (row.process.used_bytes or 0) - less_bytes
    return BarSegment(size_bytes=held, colour=held_colour(row), labels=tuple(labels))


def held_colour(row: ProcessRow) -> str:
    """Return the calm colour of what a process holds within its budget."""
    if row.budget is None or row.comparison is None or row.comparison.status == "incomplete":
        return colour_of("no_budget")
    return colour_of("good") if row.comparison.diverges else STATUSES[row.comparison.status].colour


def _difference(gpu: GpuRow) -> tuple[str, str | None]:
    """Return how far the diverging jobs are from their budgets, in GiB, and the colour of the worst one."""
    those = [row for row in gpu.rows if row.comparison and row.comparison.diverges]
    first = worst_row(those)
    if first is None or first.comparison is None:
        return "", None
    sizes = [row.comparison.difference_bytes for row in those if row.comparison]
    known = [size for size in sizes if size is not None]
    return signed_gib(sum(known)) if known else "", STATUSES[first.comparison.status].colour


def _with_end_label(cells: list[Cell], words: str, colour: str | None) -> list[Cell]:
    """Write the words behind the bar unless they stand in it already."""
    drawn = "".join(cell.char for cell in cells)
    start = max((at + 1 for at, cell in enumerate(cells) if cell.ground or cell.char != " "), default=0) + 1
    if words in drawn or start + len(words) > len(cells):
        return cells
    return [*cells[:start], *(Cell(char, colour) for char in words), *cells[start + len(words) :]]


# The meaning of the letters and signs of a bar, in one line.


_BAR_SIGNS: tuple[MemoryKind, ...] = ("slack", "unattributed", "reserved")


_OF_PROGRAMS = ("other_models", "inputs")
"""Components that only rehearsed programs have."""


def legend_line(width: int, *, bars: bool = True, budget: Budget | None = None) -> Content:
    """Return the legend, with short words if there is little space.

    Args:
        width: in cells.
        bars: with the signs that only bars have.
        budget: of a rehearsed program, whose own components are named; None: of described jobs.
    """
    phases = budget.phases if budget is not None else ()
    marks = [
        mark
        for name, mark in COMPONENTS.items()
        if name not in _OF_PROGRAMS or any(getattr(phase.components, name) for phase in phases)
    ]
    slack, unattributed, reserved = (f"{mark.letter} {mark.word}" for mark in map(OTHER_MEMORY.__getitem__, _BAR_SIGNS))
    signs = f"  {slack}  ├─┤ range  {unattributed}  {reserved}" if bars else ""
    for short, extra in ((False, signs), (False, ""), (True, "")):
        parts = []
        for mark in marks:
            word = mark.short_word if short else mark.word
            parts.append(Content.assemble((mark.letter, on_colour(mark.colour)), (f" {word}", MUTED)))
        line = Content.assemble(Content("  ").join(parts), (extra, MUTED))
        if line.cell_length <= width:
            break
    return line.truncate(width)
