"""Divergence: the memory of a running process compared with the budget of its job.

Lives here: the status (on budget, over, under, growing, ...), the phase of the run, and the likely causes.
Callers: ``board``, the attach screen and the ``attach`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .divergence_status import (
        Comparison as Comparison,
        as_far_as_known as as_far_as_known,
        compare_with_budget as compare_with_budget,
    )
    from .peak_usage import PeakUsage as PeakUsage
    from .run_phases import PhaseStart as PhaseStart, PhaseTracker as PhaseTracker, RunPhase as RunPhase
    from .status import DIVERGING as DIVERGING, Status as Status
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "divergence_status": "as_far_as_known compare_with_budget Comparison",
            "peak_usage": "PeakUsage",
            "run_phases": "PhaseStart PhaseTracker RunPhase",
            "status": "DIVERGING Status",
        },
    )
