"""A GPU as bars and short figures: what is held now and the budget of its jobs, on the scale of its total memory.

Both bars begin with the jobs, so that the same place is the same byte: what a job holds beyond the upper bound of its
budget is red, and lies right of the budget's range. Everything else that is held follows. A new kind of memory is a
row of ``palette.OTHER_MEMORY``, from which legends are made, and a segment here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content

from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib
from vramtop.monitor.board.board import GpuRow, ProcessRow
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuReading

from .bars import (
    BarRange,
    BarSegment,
    Cell,
    beyond_segment,
    cell_runs,
    component_segments,
    draw_bar,
    inked,
    memory_segment,
)
from .labels import MUTED, job_name, tag, worst_row
from .palette import COMPONENTS, OTHER_MEMORY, STATUSES, MemoryKind, colour_of, ink_on, on_colour

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget
    from vramtop.monitor.snapshot.gpu_details import ClockReason


_MIN_PROCESS_CELLS = 1.5
"""Processes of fewer cells are drawn as one segment."""


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
    start = max((at + 1 for at, cell in enumerate(cells) if cell.ground or cell.char != " "), default=0) + 1
    end = start + len(words)
    if words and end <= len(cells) and words not in "".join(cell.char for cell in cells):  # behind the bar
        cells[start:end] = (Cell(char, colour) for char in words)
    return cells


def beyond_budget_bytes(row: ProcessRow) -> int:
    """Return what the process holds beyond the upper bound of its budget; 0 if that is a guess, or not known."""
    if row.budget is None or row.comparison is None or row.comparison.is_guess:
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
    budgets = [row.budget for row in gpu.rows_with_budget if row.budget is not None]
    alike = len(budgets) == 1 or all(budget.serving is not None for budget in budgets)
    wording = budgets[0] if budgets and alike else None  # the only job's words, or a server's if all are servers
    segments = (*component_segments(components, budget=wording, uncertain=is_uncertain(gpu)), slack)
    span = gpu.low_bytes or expected, gpu.high_bytes or expected
    return _drawn_budget(segments, gpu.reading.total_bytes or 1, width, span)


@lru_cache(maxsize=64)
def _drawn_budget(segments: tuple[BarSegment, ...], scale_bytes: int, width: int, span: BarRange) -> tuple[Cell, ...]:
    """Return the cells; cached, as a budget rarely changes."""
    return tuple(draw_bar(segments, scale_bytes=scale_bytes, width=width, marked=span))


def is_uncertain(gpu: GpuRow) -> bool:
    """Return True if settings of a job on this GPU are guessed."""
    return any(row.comparison is not None and row.comparison.is_guess for row in gpu.rows)


_MARK = "┃"


def held_cells_with_budget_mark(gpu: GpuRow, width: int) -> list[Cell]:
    """Draw what is held now, with a mark where the budget expects it to end."""
    if gpu.expected_bytes is None or not width:
        return held_cells(gpu, width, figures=False)
    at = min(width - 1, max(0, round(gpu.expected_bytes * width / (gpu.reading.total_bytes or 1)) - 1))
    cells = held_cells(gpu, width, figures=False, label_end=at)
    cells[at] = inked(_MARK, cells[at].ground)
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


_SHORT_NAMES = (9, 6)
"""Characters that are left of a name in a narrow segment."""


def _process_segment(row: ProcessRow, *, figures: bool, less_bytes: int = 0) -> BarSegment:
    name = job_name(row)
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
    if row.budget is None or row.comparison is None or row.comparison.is_guess:
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
    return format_gib(sum(known), signed=True) if known else "", STATUSES[first.comparison.status].colour


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


def gpu_figure_parts(reading: GpuReading) -> list[Content]:
    """Return the figures in order of importance, each as a few words; those that nobody asked for are left out."""
    used = reading.utilisation_percent
    parts = [Content("util n/a" if used is None else f"util {used} %")]
    if isinstance(reading, MigDevice) or reading.host:  # the others are of the whole GPU, and of no other host
        return parts
    parts += [Content(power_words(reading)), Content(with_unit(reading.temperature_c, "°C"))]
    if reason := slowing_reason(reading):
        parts.insert(0, reason_badge(reason))
    if reading.memory_utilisation_percent is not None:
        parts.append(Content(f"bandwidth {reading.memory_utilisation_percent} %"))
    if speeds := reading.details.fan_percents if reading.details else None:
        low, high = min(speeds), max(speeds)
        parts.append(Content(f"fan {low} %" if low == high else f"fan {low}-{high} %"))
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
    from vramtop.monitor.snapshot.gpu_details import clock_reasons  # not at start-up

    return next((reason for reason in clock_reasons(bits) if reason.kind in ("slowed", "limit")), None)


def reason_badge(reason: ClockReason) -> Content:
    """Return the reason in a word or two; one that is no everyday limit stands out."""
    if reason.kind == "slowed":
        return tag(f"! {reason.word}")
    return Content.styled(reason.word, "$text-warning" if reason.kind == "limit" else MUTED)
