"""Short texts for processes, durations, sizes and states, used by all parts of the dashboard."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from vramtop.estimator.common import format_gib
from vramtop.monitor.host import duration_text
from vramtop.monitor.host.kinds import kind_label, program_of

from .colours import colour_of
from .memory_graph import TimeMark
from .palette import PHASES, STATUSES, VERDICTS, Mark, on_colour
from .text_output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramtop.monitor.board import GpuRow, ProcessRow
    from vramtop.monitor.board.divergence import Comparison, Status
    from vramtop.monitor.snapshot import GpuProcess

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
}
"""A word for each fault of a whole GPU, by its code."""
_CALM_STYLES = {"on_budget": "$text-success", "fits": "bold $text-success"}
_BADGE_WORDS = {mark.word for mark in (*STATUSES.values(), *VERDICTS.values()) if mark.word.isupper()}


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


def format_duration(seconds: float | None) -> str:
    """Format a duration by its two largest units: ``14 min``, ``2 h 05``; n/a if it is unknown."""
    return "n/a" if seconds is None else duration_text(seconds)


def signed_gib(size_bytes: int | None) -> str:
    """Format a difference in GiB, with its sign and without the unit."""
    return format_gib(size_bytes, signed=True)


def difference_label(comparison: Comparison) -> str:
    """Return how far a process is from its budget, in GiB; empty if the budget is a guess."""
    return "" if comparison.status == "incomplete" else signed_gib(comparison.difference_bytes)


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
    if mark.word in _BADGE_WORDS and name != "fits":
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
        mark, difference = STATUSES[row.comparison.status], difference_label(row.comparison)
        status = badge(mark, row.comparison.status)
        if status.cell_length + len(difference) > width:
            status = badge(replace(mark, word=mark.short_word), row.comparison.status)
        return left_and_right(status, Content.assemble(difference), width)
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
