"""The Textual app: screens, messages, help, and events of pending jobs.

Lives here: the app that owns the sampler thread and the latest board.
Callers: the ``dashboard`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .app import VramtopApp as VramtopApp
    from .fleet_app import FleetApp as FleetApp
    from .options import AppOptions as AppOptions, FleetOptions as FleetOptions
    from .themes import theme_names as theme_names
    from .view_only_app import ViewOnlyApp as ViewOnlyApp
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "app": "VramtopApp",
            "fleet_app": "FleetApp",
            "options": "AppOptions FleetOptions",
            "themes": "theme_names",
            "view_only_app": "ViewOnlyApp",
        },
    )
