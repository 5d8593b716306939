"""The settings screen: every setting with its value and origin, which can be changed.

Lives here: the screen, its rows, the capture of a key, and the check of the user's keys.
Callers: ``app`` through the registry; the command line, for the check.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .checked_colours import check_colours as check_colours, with_checked_colours as with_checked_colours
    from .checked_keys import refusal_of_key as refusal_of_key, with_checked_keys as with_checked_keys
    from .screen import SettingsScreen as SettingsScreen
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "checked_colours": "check_colours with_checked_colours",
            "checked_keys": "refusal_of_key with_checked_keys",
            "screen": "SettingsScreen",
        },
    )
