"""Widget: memory of one training step by component, with a scale at the left and the phases below."""

from vramtop.estimator.budget import Budget

from ...draw import COMPONENTS, axis_labels, component_mark
from ...widgets import CellRows, with_axes
from .step_graph_rows import StepMemory, axis_rows, step_memory, step_rows, step_top_bytes

_AXIS_ROWS = 2


class StepGraph(CellRows):
    """Draws the training step of a budget.

    Args:
        ascii_only: draw without block characters.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "StepGraph { height: 1fr; min-height: 5; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(ascii_only=ascii_only, id=id)
        self._budget: Budget | None = None
        self._gpu_bytes: int | None = None
        self._memory: StepMemory | None = None
        self._top_bytes: int | None = None

    def show(
        self,
        budget: Budget,
        *,
        gpu_bytes: int | None,
        memory: StepMemory | None = None,
        top_bytes: int | None = None,
    ) -> None:
        """Draw a budget.

        Args:
            budget: one with a timeline, or with phases only.
            gpu_bytes: memory of the GPU, drawn as a line; None: no line.
            memory: what was observed, drawn in place of what the budget predicts.
            top_bytes: bytes at the top, for several graphs on one scale; None: as the budget and the GPU have it.
        """
        self._budget, self._gpu_bytes, self._memory, self._top_bytes = budget, gpu_bytes, memory, top_bytes
        self._draw()

    def _draw(self) -> None:
        width, height = self.size.width, self.size.height - _AXIS_ROWS
        if self._budget is None or height <= 0:
            return
        step = self._memory or step_memory(self._budget)
        top = self._top_bytes or step_top_bytes(self._budget, self._gpu_bytes)
        labels = axis_labels(top, height, ascii_only=self._ascii_only)
        inner = width - len(labels[0])
        colourless = self._ascii_only or self.app.no_color
        drawn = step_rows(
            step,
            width=inner,
            height=height,
            top=top,
            gpu_bytes=self._gpu_bytes,
            marks={name: component_mark(name, self._budget) for name in COMPONENTS},
            outlined=colourless,
            ascii_only=self._ascii_only,
        )
        below = axis_rows(step, width=max(1, inner))
        self._show_rows(with_axes(labels, drawn, below))
