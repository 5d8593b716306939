"""Widget: memory of a job over one of its settings, with a scale at the left and the values below."""

from vramtop.estimator.common import GIB

from ...draw import axis_labels
from ...widgets import CellRows, with_axes
from .plot_rows import axis_rows, plot_top, what_if_rows
from .sweep import Sweep

_AXIS_ROWS = 2


class WhatIfPlot(CellRows):
    """Plots a sweep."""

    DEFAULT_CSS = "WhatIfPlot { height: 1fr; min-height: 6; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(ascii_only=ascii_only, id=id)
        self.sweep: Sweep | None = None
        """The sweep that is plotted."""
        self._cursor: int | None = None

    def show(self, sweep: Sweep, *, cursor: int | None = None) -> None:
        """Plot this sweep; ``cursor``: the value to mark."""
        self.sweep, self._cursor = sweep, cursor
        self._draw()

    def _draw(self) -> None:
        sweep, height = self.sweep, self.size.height - _AXIS_ROWS
        if sweep is None or height <= 0 or not sweep.points:
            return
        top = max(plot_top(sweep), GIB // 10)
        labels = axis_labels(top, height, ascii_only=self._ascii_only)
        inner = max(1, self.size.width - len(labels[0]))
        drawn = what_if_rows(
            sweep, width=inner, height=height, top=top, cursor=self._cursor, ascii_only=self._ascii_only
        )
        below = axis_rows(sweep, width=inner, cursor=self._cursor, ascii_only=self._ascii_only)
        self._show_rows(with_axes(labels, drawn, below))
