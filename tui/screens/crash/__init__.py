"""The crash screen: why a run ended out of memory, what filled the card, beside its budget.

Lives here: the screen, what a row of the dashboard says of a failure, and opening it.
Callers: ``app``, and the attach screen.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .open_screen import open_crash_on as open_crash_on
else:
    __getattr__, __all__ = lazy_exports(__name__, {"open_screen": "open_crash_on"})
