"""The dashboard screen: GPUs, pending jobs, processes, and ending a process.

Lives here: the screen, its parts, and their text as plain data.
Callers: ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .processes import ProcessTable as ProcessTable
    from .screen import DashboardScreen as DashboardScreen
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "processes": "ProcessTable",
            "screen": "DashboardScreen",
        },
    )
