"""Lines about what a process does now: its memory and utilisation on each GPU, processors, RAM and threads."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import groupby
from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.common import GIB, KIB, MIB, format_gib
from vramtop.monitor.board import REASONS_IN_WORDS
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot import DRIVER_FIGURES

from ...draw import (
    EIGHTHS,
    FAINT,
    MUTED,
    SEPARATOR,
    STATUSES,
    badge,
    figure_reason,
    figure_text,
    printable,
    signed_gib,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.board import ProcessRow
    from vramtop.monitor.snapshot import ProcessFigure

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
        parts.append(Content(f"budget {format_gib(row.budget.steady_device_bytes)} GiB"))
    if row.comparison:
        status = badge(STATUSES[row.comparison.status], row.comparison.status)
        parts.append(Content.assemble(status, signed_gib(row.comparison.difference_bytes)))
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
