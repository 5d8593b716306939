"""Figures of a process that are read on demand, as text: an unknown one is n/a, and never 0."""

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.snapshot.demand import ProcessFigure
from vramtop.monitor.snapshot.faults import FIRST_SAMPLE
from vramtop.monitor.snapshot.snapshot import ProcessFigures

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
