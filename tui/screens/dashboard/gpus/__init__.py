"""The GPUs of the dashboard: panels and rows, as text and as widgets.

Lives here: the area of the screen that shows GPUs, the panel and the row of a GPU.
Callers: ``screens.dashboard``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .gpu_area import GpuArea as GpuArea, stale_seconds as stale_seconds
    from .gpu_graph_text import graph_span as graph_span
    from .gpu_rows import GpuRows as GpuRows
    from .panel_places import (
        PanelNeed as PanelNeed,
        PanelPlace as PanelPlace,
        panel_needs as panel_needs,
        place_panels as place_panels,
    )
    from .panel_shape import FRAME_LINES as FRAME_LINES
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "gpu_area": "GpuArea stale_seconds",
            "gpu_graph_text": "graph_span",
            "gpu_rows": "GpuRows",
            "panel_places": "panel_needs PanelNeed place_panels PanelPlace",
            "panel_shape": "FRAME_LINES",
        },
    )
