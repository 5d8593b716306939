"""The GPU screen: everything that the driver reports of one GPU, read only while it is open.

Lives here: the screen, its lines and its graphs.
Callers: ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .open_screen import open_gpu_on as open_gpu_on
else:
    __getattr__, __all__ = lazy_exports(__name__, {"open_screen": "open_gpu_on"})
