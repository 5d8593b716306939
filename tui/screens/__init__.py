"""The screens of the dashboard, one folder each.

Lives here: screens and the parts and text that only they use; ``base`` is the app as screens see it.
Callers: ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .base import (
        AlertsApp as AlertsApp,
        BoardApp as BoardApp,
        BoardFeed as BoardFeed,
        DemandsFigures as DemandsFigures,
        ShowsBoard as ShowsBoard,
        is_complete as is_complete,
    )
    from .feed_status import STALE_INTERVALS as STALE_INTERVALS
    from .registry import SCREENS as SCREENS, ScreenSpec as ScreenSpec, preload_screens as preload_screens
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "base": "AlertsApp BoardApp DemandsFigures BoardFeed is_complete ShowsBoard",
            "feed_status": "STALE_INTERVALS",
            "registry": "preload_screens SCREENS ScreenSpec",
        },
    )
