"""Advice: changes that make a job fit, the largest batch that fits, and how to write a change in the user's own files.

Lives here: the table of changes with their costs, and the search over it.
Callers: the dashboard's fit check and ``vramtop fit``.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .bounded_search import BoundedSearch as BoundedSearch, Verdict as Verdict, shifted as shifted
    from .config_edits import Edit as Edit, flag_edits as flag_edits, tool_edits as tool_edits
    from .largest_batch import LargestFitting as LargestFitting, find_largest as find_largest
    from .suggestion_search import Suggestion as Suggestion
    from .suggestions import (
        calibrated as calibrated,
        confirm as confirm,
        suggest as suggest,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "bounded_search": "BoundedSearch shifted Verdict",
            "config_edits": "Edit flag_edits tool_edits",
            "largest_batch": "find_largest LargestFitting",
            "suggestions": "calibrated confirm suggest",
            "suggestion_search": "Suggestion",
        },
    )
