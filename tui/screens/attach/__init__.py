"""The attach screen: choose a process, confirm its settings, and follow the run against its budget.

Lives here: the screen, its parts, and their text as plain data.
Callers: ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .open_screen import open_attach_on as open_attach_on
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "open_screen": "open_attach_on",
        },
    )
