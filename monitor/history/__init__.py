"""The history: measurements of the user's own runs, in one small SQLite file of the user's.

Lives here: the file, and everything that reads or writes it.
Callers: the dashboard and the commands of ``tui``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .history import History as History
else:
    __getattr__, __all__ = lazy_exports(__name__, {"history": "History"})
