"""Widget: one GPU as a panel, with held and predicted memory on one scale, and its history."""

from vramtop.monitor.board.board import GpuRow

from ...draw.memory_graph import Readings
from ...widgets.content_lines import ContentLines
from .gpu_panel_text import PanelShape, panel_height, panel_lines


class GpuPanel(ContentLines):
    """A GPU's panel."""

    def show_gpu(
        self, gpu: GpuRow, history: Readings, shape: PanelShape, *, now: float, stale_seconds: float | None
    ) -> None:
        """Show this GPU; the arguments are those of ``panel_lines``."""
        height = panel_height(shape.graph_height)
        if self._height != height:
            self.styles.height = self._height = height
        self.set_class(stale_seconds is not None, "-stale")
        self.show_lines(panel_lines(gpu, history, shape, now=now, stale_seconds=stale_seconds))

    _height: int | None = None
