"""One GPU as a panel: held and predicted on one scale, and how it came to be."""

from textual.content import Content

from vramtop.monitor.board import GpuRow

from ..memory_graph import Readings
from ..panel_text import PanelShape, panel_height, panel_lines
from .lines import Lines


class GpuPanel(Lines):
    """A GPU's panel."""

    def show_gpu(
        self, gpu: GpuRow, history: Readings, shape: PanelShape, *, now: float, stale_seconds: float | None
    ) -> None:
        """Show this GPU; the arguments are those of ``panel_lines``."""
        self.styles.height = panel_height(shape.graph_height)
        self.set_class(stale_seconds is not None, "-stale")
        lines = panel_lines(gpu, history, shape, now=now, stale_seconds=stale_seconds)
        self.show(Content("\n").join(lines))
