"""Lines about what a process does now: its memory and utilisation on each GPU, processors, RAM and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.monitor.board.board import REASONS_IN_WORDS
from vramtop.monitor.host.kinds import kind_label

from ...draw.labels import MUTED, SEPARATOR, badge, budget_label, job_name, urgent_label
from ...draw.palette import STATUSES
from ...draw.process_figures import figure_reason, figure_text
from ...draw.text_output import printable
from .detail_lines import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.board.board import ProcessRow
    from vramtop.monitor.snapshot.demand import ProcessFigure


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


def _job_line(row: ProcessRow) -> Content:
    """Return what the process is, its job, and how it compares with its budget."""
    kind = kind_label(row.kind, row.program_name) or (row.kind if row.kind in _NAMED_KINDS else "not a known program")
    named = row.job is not None and row.job.has_label
    parts = [Content.styled(job_name(row), "bold") if named else Content(printable(kind))]
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
