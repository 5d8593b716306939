"""The step screen: memory by component over one training step, and the largest tensors.

Lives here: the screen, its graph and its table.
Callers: ``app``, and the fit and attach screens.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .live_step import LiveStepScreen as LiveStepScreen
    from .open_file import OpenedFile as OpenedFile, OpenFileScreen as OpenFileScreen
    from .open_screen import show_step as show_step
    from .step_graph_rows import (
        GPU_TOTAL as GPU_TOTAL,
        MAX_GPU_TO_PEAK as MAX_GPU_TO_PEAK,
        STACK_ORDER as STACK_ORDER,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "live_step": "LiveStepScreen",
            "open_file": "OpenedFile OpenFileScreen",
            "open_screen": "show_step",
            "step_graph_rows": "GPU_TOTAL MAX_GPU_TO_PEAK STACK_ORDER",
        },
    )
