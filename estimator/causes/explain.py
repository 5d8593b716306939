"""Explains why a job holds more or less memory than predicted, by settings one or two changes away from its own.

Each cause (from the tables, or memory that no setting describes) is weighed by its plausibility and by how close its
prediction comes, against the possibility that the estimate itself is off. Causes that predict the same bytes are
reported together.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from ..budget import Budget, Components
from ..common.errors import VramtopError
from ..common.records import replace
from ..common.reserved_memory import only_figures
from ..common.sizes import MIB
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from .cause_search import (
    FALLBACK_MAX_Z_SCORE,
    MAX_Z_SCORE,
    RARE,
    SAME_BYTES_SHARE,
    SOME,
    UNLIKELY,
    Cause,
    CauseSearch,
    Estimate,
    Measure,
    Observation,
    WeighedCauses,
)
from .computation_causes import COMPUTATION_CAUSES, SOFTWARE_CAUSES
from .sharding_causes import SHARDING_CAUSES
from .training_causes import TRAINING_CAUSES

_ASSUMED_FACTOR = 4.0
"""Factor on the plausibility of a cause that contradicts a default or an inference, not a written setting."""


def setting_causes(job: Job, assumed: Collection[str] = ()) -> Iterator[Cause]:
    """Yield every way in which the settings of a job may differ from those that were read: rows of the tables.

    Args:
        job: the job as it was read.
        assumed: dotted keys whose values were inferred, or are defaults.
    """
    resolved = resolve_job(job)
    training = TRAINING_CAUSES if resolved.trains else ()
    for source in (*training, *COMPUTATION_CAUSES, *SHARDING_CAUSES, *SOFTWARE_CAUSES):
        for cause in source(resolved):
            guessed = any(key in assumed for key in cause.changes)
            yield replace(cause, plausibility=cause.plausibility * _ASSUMED_FACTOR) if guessed else cause


_MAX_EXPLANATIONS = 6
"""Maximum number of explanations that are reported."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One or two causes that predict the observation."""

    changes: dict[str, Any]
    """Dotted job keys and the values that explain it; empty if no setting describes the cause."""
    description: str
    """Clause that continues "if": ``activation checkpointing is off``."""
    device_bytes: int
    """Memory that the job needs with these changes, as NVML counts it."""
    predicted_bytes: int
    """Prediction of the observed quantity: ``device_bytes``, unless allocated bytes or loading were observed."""
    name: str = ""
    """Label in tables."""
    fix: str = ""
    """Advice; empty if the description suffices."""
    group: int = 0
    """Explanations of one group predict the same bytes, so that memory cannot distinguish them."""


@only_figures()
def explain(
    budget: Budget, seen: Observation, observed_bytes: int, estimate: Estimate, *, measure: Measure = "device"
) -> tuple[Explanation, ...]:
    """Return the causes that predict the observation, the likeliest first.

    Empty if none does, or if the observation is as predicted. Pairs of causes are tried only if no single one explains
    it. The effect of a cause is taken from the quick estimate and added to the budget, so that a traced budget keeps
    its own figure.

    Args:
        budget: the prediction for the job as it was read.
        seen: what was observed.
        observed_bytes: the one of its figures that is to be explained.
        estimate: returns a quick estimate of a changed job; may raise VramtopError.
        measure: the quantity that ``observed_bytes`` states.
    """
    job, peak = budget.job, budget.peak
    as_predicted = observed_bytes <= peak.shown_high_bytes and (seen.at_least or observed_bytes >= peak.low_bytes)
    if measure == "device" and as_predicted:
        return ()
    try:
        quick = estimate(job)
    except VramtopError:
        return ()
    search = CauseSearch(
        budget=budget,
        quick=quick,
        estimate=estimate,
        measure=measure,
        observed=observed_bytes,
        at_least=seen.at_least,
    )
    singles = [*setting_causes(job, seen.assumed), *extra_memory_causes(job, quick)]
    found = search.weigh([(cause,) for cause in singles])
    found += search.shorter_sequences()
    near = search.accepted(found, MAX_Z_SCORE) or search.accepted([*found, *search.pairs(found)], FALLBACK_MAX_Z_SCORE)
    return tuple(_explanations(near, measure))


def _explanations(near: Sequence[WeighedCauses], measure: Measure) -> Iterator[Explanation]:
    for number, group in enumerate(_groups(near, measure)):
        for each in group:
            yield Explanation(
                changes={key: value for cause in each.causes for key, value in cause.changes.items()},
                description=" and ".join(cause.description for cause in each.causes),
                device_bytes=each.figures["device"],
                predicted_bytes=each.figures[measure],
                name=" + ".join(cause.name for cause in each.causes),
                fix="; ".join(cause.fix for cause in each.causes if cause.fix),
                group=number,
            )


def _groups(near: Sequence[WeighedCauses], measure: Measure) -> list[list[WeighedCauses]]:
    """Group explanations with the same prediction, the likeliest group first."""
    groups: list[list[WeighedCauses]] = []
    for each in near[:_MAX_EXPLANATIONS]:
        size = each.figures[measure]
        group = next((g for g in groups if abs(g[0].figures[measure] - size) <= SAME_BYTES_SHARE * size), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return sorted(groups, key=lambda group: -group[0].weight)


_COMMUNICATOR_BYTES = 688 * MIB
"""NCCL's buffers of one more communicator (4 x A100, NVIDIA/nccl#964)."""


def extra_memory_causes(job: Job, budget: Budget) -> Iterator[Cause]:
    """Yield every such cause that a job may have.

    Args:
        job: the job as it was read.
        budget: its quick estimate.
    """
    step = budget.phase("optimizer step")
    if step is not None:
        yield from _fp32_states(resolve_job(job), step.components)
    if job.parallel.world_size > 1:
        yield Cause(
            name="communicator",
            description="there is one more NCCL communicator",
            plausibility=RARE,  # groups made by hand, or a second library's
            outside_bytes=_COMMUNICATOR_BYTES,
        )


def _fp32_states(job: ResolvedJob, states: Components) -> Iterator[Cause]:
    if not job.precision.half_weights or job.lora or job.deepspeed or job.megatron_precision:
        return
    yield Cause(
        name="fp32 gradients",
        description="gradients are kept in fp32",
        plausibility=UNLIKELY,
        allocated_bytes=states.gradients,  # 4 bytes in place of 2
    )
    if states.optimizer:
        yield Cause(
            name="master weights",
            description="the optimizer keeps fp32 master weights and states",
            plausibility=SOME,
            allocated_bytes=2 * states.weights + states.optimizer,  # 4 bytes each, the states in place of 2
        )
