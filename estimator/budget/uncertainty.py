"""Widens a budget's range for settings without a rule (``Job.unsure``)."""

from dataclasses import replace

import msgspec

from ..job import Uncertainties
from .budget import Budget

_ERRORS = {"less": "missing", "more": "twice as large", "either": "missing or twice as large"}
_CERTAIN = Uncertainties()
_UNPACKED = {
    "fp8": "GPUs before Ada cannot compute in fp8, so that transformers unpacks the weights to 16 bits there, which "
    "the range allows for; naming the GPU decides it."
}
"""What decides whether weights stay in the format in which the checkpoint stores them."""


def widen_for_uncertainty(budget: Budget) -> Budget:
    """Return the budget with a range that allows for the job's uncertain components, and a warning.

    An uncertain component may be missing at the peak, or exist twice: a setting without a rule can shard, offload or
    shrink its subject, or keep a second copy of it. What is certain of any phase is needed all the same.
    """
    if budget.job.unsure == _CERTAIN:
        return budget
    sizes: dict[str, int] = dict(budget.peak.components.items())
    directions = msgspec.structs.asdict(budget.job.unsure).items()
    uncertain = [(name, direction) for name, direction in directions if direction != "no"]
    less = sum(sizes[name] for name, direction in uncertain if direction in ("less", "either"))
    more = sum(sizes[name] for name, direction in uncertain if direction in ("more", "either"))
    certain = _certain_bytes(budget, uncertain)
    outside = budget.peak.device_bytes - budget.peak.reserved_bytes
    peak = budget.peak.with_ranges(lambda span: span.moved(0, less=less, more=more).raised(certain - outside))
    peak = replace(peak, low_bytes=max(budget.peak.low_bytes - less, certain))
    stages = tuple(
        replace(stage, low_bytes=max(0, stage.low_bytes - less), high_bytes=stage.high_bytes + more)
        for stage in budget.stages
    )
    errors = ", ".join(f"{name} {_ERRORS[direction]}" for name, direction in uncertain)
    warning = f"Not all settings are understood (a note names each), so the range allows for {errors}."
    if [*uncertain] == [("weights", "more")] and budget.job.inference is not None:
        warning = _UNPACKED.get(budget.job.inference.weights, warning)
    return replace(budget, peak=peak, stages=stages, warnings=(*budget.warnings, warning))


def _certain_bytes(budget: Budget, uncertain: list[tuple[str, str]]) -> int:
    """Return the most that the certain components of one phase take, at the lower end of the range."""
    doubted = {name for name, direction in uncertain if direction in ("less", "either")}
    sums = [sum(size for name, size in each.components.items() if name not in doubted) for each in budget.phases]
    scale = min(1.0, budget.peak.low_bytes / max(1, budget.peak.device_bytes))
    return round(scale * max(sums, default=0))
