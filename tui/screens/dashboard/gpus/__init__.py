"""The GPUs of the dashboard: panels and rows, as text and as widgets.

Lives here: the area of the screen that shows GPUs, the panel and the row of a GPU.
Callers: ``screens.dashboard``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .gpu_area import GpuArea as GpuArea, stale_seconds as stale_seconds
    from .gpu_panel_text import FRAME_LINES as FRAME_LINES, graph_span as graph_span
    from .gpu_rows import GpuRows as GpuRows
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "gpu_area": "GpuArea stale_seconds",
            "gpu_panel_text": "FRAME_LINES graph_span",
            "gpu_rows": "GpuRows",
        },
    )
