"""A budget's range made wider for what is not understood of a job (``Job.unsure``)."""

from dataclasses import replace

import msgspec

from ..job.job import Uncertainties
from .budget import Budget

_WORDS = {"less": "missing", "more": "twice as large", "either": "missing or twice as large"}


_SURE = Uncertainties()


def widen_for_uncertainty(budget: Budget) -> Budget:
    """The budget with a range that allows for the job's doubts, and a warning that says so.

    A component in doubt may be missing at the peak, or there may be two of it: a setting that is not understood can
    shard, offload or shrink what it is about, or keep a second copy of it.
    """
    unsure = budget.job.unsure
    if unsure == _SURE:
        return budget
    held: dict[str, int] = dict(budget.peak.components.items())
    doubts = [(name, doubt) for name, doubt in msgspec.structs.asdict(unsure).items() if doubt != "no"]
    less = sum(held[name] for name, doubt in doubts if doubt in ("less", "either"))
    more = sum(held[name] for name, doubt in doubts if doubt in ("more", "either"))
    peak = replace(
        budget.peak,
        low_bytes=max(0, budget.peak.low_bytes - less),
        high_bytes=budget.peak.high_bytes + more,
    )
    said = ", ".join(f"{name} {_WORDS[doubt]}" for name, doubt in doubts)
    warning = f"Not all settings are understood, so the range allows for {said}."
    return replace(budget, peak=peak, warnings=(*budget.warnings, warning))
