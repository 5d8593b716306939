"""The alerts screen: what is wrong now, what may become an alert, what has cleared, and the quiet hours.

Lives here: the screen, its keys, and its text.
Callers: ``app``, for one machine through the registry.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .screen import AlertsScreen as AlertsScreen
else:
    __getattr__, __all__ = lazy_exports(__name__, {"screen": "AlertsScreen"})
