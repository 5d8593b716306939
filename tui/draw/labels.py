"""Short texts for processes, durations, sizes and states, used by all parts of the dashboard."""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.cells import cell_len, set_cell_size
from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.host.known_programs import kind_label, program_of
from vramtop.monitor.host.plain_text import duration_text

from .memory_graph import TimeMark
from .palette import PHASES, STATUSES, VERDICTS, Mark, budget_size, colour_of, on_colour
from .text_output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramtop.monitor.board.board import ProcessRow
    from vramtop.monitor.board.comparison import Comparison, Status
    from vramtop.monitor.snapshot.snapshot import GpuProcess


WORST_FIRST: tuple[Status, ...] = (
    *("out_of_memory", "over", "growing", "under", "unknown", "incomplete"),
    *("loading", "warming_up", "on_budget", "ended"),
)
SEPARATOR = " · "
MUTED = "$foreground 65%"
FAINT = "$foreground 35%"


def tag(words: str, colour: str = "warning") -> Content:
    """Return words that need attention between spaces, on the colour of this name."""
    return Content.styled(f" {words} ", f"bold {on_colour(colour_of(colour))}")


def warning(sentence: str) -> Content:
    """Return a warning about a job or a run behind its sign."""
    return Content.assemble(("! ", f"bold {colour_of('warning')}"), sentence)


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
    """Return the label of a process's job; of one without a name, or an unknown one, the name of the process."""
    return printable(row.job.label) if row.job and row.job.has_label else process_name(row.process)


def format_duration(seconds: float | None) -> str:
    """Format a duration by its two largest units: ``14 min``, ``2 h 05``; n/a if it is unknown."""
    return "n/a" if seconds is None else duration_text(seconds)


def difference_label(comparison: Comparison) -> str:
    """Return how far a process is from its budget, in GiB; empty if the budget is a guess, or there is none."""
    known = not comparison.is_guess and comparison.expected_bytes is not None
    return format_gib(comparison.difference_bytes, signed=True) if known else ""


def budget_label(row: ProcessRow) -> str:
    """Return the budget of a process in GiB, marked if it is a guess; ``-`` if there is none."""
    is_guess = row.comparison is not None and row.comparison.is_guess
    return budget_size(row.budget.steady_device_bytes, is_guess=is_guess) if row.budget else "-"


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


_CALM_STYLES = {"on_budget": "$text-success", "fits": "bold $text-success"}
_BADGES = {name for name, mark in (*STATUSES.items(), *VERDICTS.items()) if mark.word.isupper()}


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
    return min((row for row in rows if row.comparison), key=severity_rank, default=None)


def gpu_labels(rows: Iterable[ProcessRow]) -> tuple[str, ...]:
    """Return the labels of the GPUs and MIG devices of these rows, each once, in order."""
    places = {row.gpu.order: row.gpu.label for row in rows}
    return tuple(places[order] for order in sorted(places))


def severity_rank(row: ProcessRow) -> int:
    """Return the place of the row's status in ``WORST_FIRST``; a row without a status comes last."""
    return len(WORST_FIRST) if row.comparison is None else WORST_FIRST.index(row.comparison.status)


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
