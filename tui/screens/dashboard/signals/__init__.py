"""Signalling processes from the dashboard: the question, and what became of them.

Lives here: the dialog that names the processes, its text, and the report on those that end later.
Callers: the dashboard's process table.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .terminations import Terminations as Terminations
else:
    __getattr__, __all__ = lazy_exports(__name__, {"terminations": "Terminations"})
