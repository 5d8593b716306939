"""Bounds of a budget, compared with memory so that a figure that wobbles at a bound does not flicker.

- Above the upper bound: by at least what is displayed as 0.1 GiB. It stays so until the memory is below the bound
  by as much, or by one per cent of it if that is more.
- The lower bound is reached by the highest reading so far, at latest where the rest is displayed as 0.0 GiB; once
  reached, it stays so.
- A status therefore changes at the first reading that is beyond a bound by 0.05 GiB, and a series within 0.05 GiB
  of a bound changes it at most once.

Growth has thresholds of its own (``growth``), and so have pending jobs (``pending_rows``).
"""

from vramtop.estimator.budget import Budget, Peak
from vramtop.estimator.common.sizes import UNSEEN_BYTES

_HYSTERESIS_FRACTION = 0.01


def exceeds_budget(peak: Peak, size: int, *, exceeded: bool) -> bool:
    """Return True if memory is above the upper bound.

    Args:
        peak: of the budget.
        size: the memory now.
        exceeded: it was above at the reading before.
    """
    if exceeded:
        return size > peak.shown_high_bytes - max(UNSEEN_BYTES, _HYSTERESIS_FRACTION * peak.shown_high_bytes)
    return size >= peak.shown_high_bytes + UNSEEN_BYTES


def reaches_budget(budget: Budget, highest: int | None) -> bool:
    """Return True if the highest reading so far has reached the lower bound."""
    return highest is not None and highest > budget.low_bytes_before_evaluation - UNSEEN_BYTES
