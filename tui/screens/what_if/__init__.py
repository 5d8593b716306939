"""The what-if screen: memory of a job over its micro-batch or sequence length, against the GPU's memory.

Lives here: the sweep of quick estimates, its plot, and the screen.
Callers: the fit check.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .plot import WhatIfPlot as WhatIfPlot
    from .screen import WhatIfScreen as WhatIfScreen
    from .sweep import (
        AXES as AXES,
        Axis as Axis,
        GpuLimits as GpuLimits,
        Sweep as Sweep,
        sweep_setting as sweep_setting,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "plot": "WhatIfPlot",
            "screen": "WhatIfScreen",
            "sweep": "AXES Axis GpuLimits Sweep sweep_setting",
        },
    )
