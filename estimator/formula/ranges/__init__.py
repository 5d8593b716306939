"""Ranges of an estimate: how far what torch allocates, what it reserves, and the device's memory may lie from it.

Lives here: the sources of doubt, their calibration, and the ranges that follow from them.
Callers: ``formula`` and ``trace``; ``tests/accuracy/calibrate.py`` derives the calibration.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .calibration import FORMULA as FORMULA, SMALL_BYTES as SMALL_BYTES, TRACED as TRACED
    from .doubts import Doubts as Doubts, doubts_of as doubts_of
    from .longest_first import longest_first_doubt as longest_first_doubt
    from .preparation import preparation_doubt as preparation_doubt
    from .spans import (
        DoubtfulBytes as DoubtfulBytes,
        allocated_span as allocated_span,
        figure_ranges as figure_ranges,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "calibration": "FORMULA SMALL_BYTES TRACED",
            "doubts": "Doubts doubts_of",
            "longest_first": "longest_first_doubt",
            "preparation": "preparation_doubt",
            "spans": "allocated_span DoubtfulBytes figure_ranges",
        },
    )
