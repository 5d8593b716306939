"""The right half of the fit check: the verdict, advice, and the comparison of two candidates.

Lives here: the capacity that a job is compared with, the search for advice, and the widgets that show both.
Callers: the fit check.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .advice import (
        Advice as Advice,
        EstimateJob as EstimateJob,
        QuickEstimatorFor as QuickEstimatorFor,
        find_advice as find_advice,
    )
    from .capacity import Capacity as Capacity, capacity_fingerprint as capacity_fingerprint
    from .suggestions import Suggestions as Suggestions
    from .verdict_view import VerdictView as VerdictView
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "advice": "Advice EstimateJob find_advice QuickEstimatorFor",
            "capacity": "Capacity capacity_fingerprint",
            "suggestions": "Suggestions",
            "verdict_view": "VerdictView",
        },
    )
