"""The preflight screen: the checks of one job as they finish.

Lives here: the screen and its rows.
Callers: the dashboard and the fit check.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .preflight_rows import PreflightMark as PreflightMark
    from .screen import open_preflight as open_preflight
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "preflight_rows": "PreflightMark",
            "screen": "open_preflight",
        },
    )
