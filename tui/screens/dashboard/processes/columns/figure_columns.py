"""Columns of figures that are read only while they are shown: of a process, and of a group as sum or mean."""

from collections.abc import Callable, Iterable
from functools import partial

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import ProcessGroup, ProcessRow
from vramtop.monitor.snapshot import DRIVER_FIGURES, Demand, ProcessFigure, ProcessKey

from .....draw import CellText, figure_text
from .cell_texts import figure_tone
from .column import Column, ColumnName


def is_figure(name: ColumnName) -> bool:
    """Return True for a column of a figure that is read only while it is shown."""
    return name in _FIGURES


def figure_demand(columns: Iterable[ColumnName], sorted_by: ColumnName, processes: Iterable[ProcessKey]) -> Demand:
    """Return what readings are to contain for a table.

    Args:
        columns: those that are shown.
        sorted_by: the column by which all of its rows are sorted.
        processes: those in sight.
    """
    figures = frozenset(_FIGURES[name] for name in columns if name in _FIGURES)
    if not figures:
        return Demand()
    of_all = frozenset({_FIGURES[sorted_by]}) if sorted_by in _FIGURES else frozenset[ProcessFigure]()
    return Demand(process_figures=figures, processes=frozenset(processes), figures_of_all=of_all)


def figure_order(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[bool, float]:
    """Return the sort key of a process or a group by a figure: the highest first, unknown last."""
    value, _ = _total(figure, rows)
    return (value is None, -(value or 0.0))


def _of_process(figure: ProcessFigure, row: ProcessRow) -> CellText:
    text = figure_text(figure, row.process.figures, live=row.is_live)
    return CellText(text, figure_tone(row) if text[0].isdigit() else "muted")


def _of_group(figure: ProcessFigure, group: ProcessGroup) -> CellText:
    """Return the sum over its processes, or of what a GPU does the mean; ``≥`` and ``~`` if some are unknown."""
    value, complete = _total(figure, group.present)
    if value is None:
        texts = {_of_process(figure, row).text for row in group.present}
        return CellText("…" if "…" in texts else "n/a" if texts else "-", "muted")
    number = format_gib(round(value)) if figure == "rss_bytes" else f"{value:.0f}"
    sign = "" if complete else "~" if figure in DRIVER_FIGURES else "≥"
    return CellText(sign + number, "muted" if any(row.gpu.is_stale for row in group.present) else "plain")


def _total(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[float | None, bool]:
    """Return the mean over GPUs of what the driver measures, else the sum over processes; and whether all are known."""
    listed = list(rows)
    if figure not in DRIVER_FIGURES:
        listed = list({row.process.key: row for row in listed}.values())
    values = [getattr(row.process.figures, figure, None) for row in listed]
    known = [float(value) for value in values if value is not None]
    if not known:
        return None, False
    total = sum(known) / len(known) if figure in DRIVER_FIGURES else sum(known)
    return total, len(known) == len(values)


def _cells(figure: ProcessFigure) -> tuple[Callable[[ProcessRow], CellText], Callable[[ProcessGroup], CellText]]:
    return partial(_of_process, figure), partial(_of_group, figure)


_SM, _BW, _CPU, _RAM, _THREADS = (
    _cells(figure) for figure in ("sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads")
)
FIGURE_COLUMNS = (
    Column(
        name="SM %", about="share of time its kernels ran on the GPU; for a run, the mean", width=4, right=True,
        importance=41, is_default=False, figure="sm_percent", process=_SM[0], group=_SM[1],
    ),
    Column(
        name="BW %", about="share of time it read or wrote GPU memory; for a run, the mean", width=4, right=True,
        importance=42, is_default=False, figure="bandwidth_percent", process=_BW[0], group=_BW[1],
    ),
    Column(
        name="CPU %", about="CPU time, 100 is one core; for a run, the sum", width=6, right=True,
        importance=43, is_default=False, figure="cpu_percent", process=_CPU[0], group=_CPU[1],
    ),
    Column(
        name="RAM GiB", about="resident host memory; for a run, the sum", width=7, right=True,
        importance=44, is_default=False, figure="rss_bytes", process=_RAM[0], group=_RAM[1],
    ),
    Column(
        name="THR", about="threads; for a run, the sum", width=5, right=True,
        importance=45, is_default=False, figure="threads", process=_THREADS[0], group=_THREADS[1],
    ),
)  # fmt: skip
_FIGURES: dict[ColumnName, ProcessFigure] = {column.name: column.figure for column in FIGURE_COLUMNS if column.figure}
