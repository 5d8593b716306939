"""Widens a budget's range for settings without a rule (``Job.unsure``)."""

from dataclasses import replace

import msgspec

from ..job import Uncertainties
from .budget import Budget

_ERRORS = {"less": "missing", "more": "twice as large", "either": "missing or twice as large"}
_CERTAIN = Uncertainties()


def widen_for_uncertainty(budget: Budget) -> Budget:
    """Return the budget with a range that allows for the job's uncertain components, and a warning.

    An uncertain component may be missing at the peak, or exist twice: a setting without a rule can shard, offload or
    shrink its subject, or keep a second copy of it.
    """
    if budget.job.unsure == _CERTAIN:
        return budget
    sizes: dict[str, int] = dict(budget.peak.components.items())
    directions = msgspec.structs.asdict(budget.job.unsure).items()
    uncertain = [(name, direction) for name, direction in directions if direction != "no"]
    less = sum(sizes[name] for name, direction in uncertain if direction in ("less", "either"))
    more = sum(sizes[name] for name, direction in uncertain if direction in ("more", "either"))
    peak = replace(
        budget.peak,
        low_bytes=max(0, budget.peak.low_bytes - less),
        high_bytes=budget.peak.high_bytes + more,
    )
    errors = ", ".join(f"{name} {_ERRORS[direction]}" for name, direction in uncertain)
    warning = f"Not all settings are understood, so the range allows for {errors}."
    return replace(budget, peak=peak, warnings=(*budget.warnings, warning))
