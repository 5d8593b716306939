"""The registry of causes that other settings of a job may have, and their plausibility for one job."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Literal

from ..job import Job, resolve_job
from .cause import Cause, CauseSource
from .computation_causes import COMPUTATION_CAUSES, SOFTWARE_CAUSES
from .sharding_causes import SHARDING_CAUSES
from .training_causes import TRAINING_CAUSES

_ASSUMED_FACTOR = 4.0
"""Factor on the plausibility of a cause that contradicts a default or an inference, not a written setting."""

CAUSES: dict[Literal["training", "any mode"], tuple[CauseSource, ...]] = {
    "training": TRAINING_CAUSES,
    "any mode": (*COMPUTATION_CAUSES, *SHARDING_CAUSES, *SOFTWARE_CAUSES),
}
"""A new cause is one row of its table."""


def setting_causes(job: Job, assumed: Collection[str] = ()) -> Iterator[Cause]:
    """Yield every way in which the settings of a job may differ from those that were read.

    Args:
        job: the job as it was read.
        assumed: dotted keys whose values were inferred, or are defaults.
    """
    resolved = resolve_job(job)
    sources = (*CAUSES["training"], *CAUSES["any mode"]) if resolved.trains else CAUSES["any mode"]
    for source in sources:
        for cause in source(resolved):
            guessed = any(key in assumed for key in cause.changes)
            yield replace(cause, plausibility=cause.plausibility * _ASSUMED_FACTOR) if guessed else cause
