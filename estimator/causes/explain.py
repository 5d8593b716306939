"""Why a job holds more or less than predicted: settings one or two changes away that would predict what is observed.

Each cause (``setting_causes``, ``extra_memory``) is weighed by its plausibility and by how close its prediction comes,
against the possibility that the estimate itself is off. Causes that predict the same bytes are reported together.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..budget.budget import Budget
from ..common.errors import VramtopError
from ..job.job import Job
from .cause_search import FALLBACK_MAX_Z_SCORE, MAX_Z_SCORE, SAME_BYTES_SHARE, CauseSearch, Measure, WeighedCauses
from .extra_memory import Estimate, extra_memory_causes, whole_gpu_causes
from .setting_causes import setting_causes

_MAX_EXPLANATIONS = 6
"""So many explanations are worth reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Something that would predict what is observed."""

    changes: dict[str, Any]
    """Dotted job keys and the values that would explain it; empty where no setting says it."""
    words: str
    """For people: ``activation checkpointing is off``."""
    device_bytes: int
    """What the job would take with them, as NVML counts it."""
    predicted_bytes: int
    """What it predicts of what was observed: the same, unless that was allocated bytes, or those of loading."""
    off_bytes: int
    """That less what is observed."""
    name: str = ""
    """What its causes are called in tables."""
    fix: str = ""
    """What to look at or to do; empty where there is nothing but the words."""
    group: int = 0
    """Explanations of one number predict the same bytes: which of them it is cannot be told from memory."""


def explain(
    job: Job,
    budget: Budget,
    observed_bytes: int,
    estimate: Estimate,
    *,
    measure: Measure = "device",
    loaded_bytes: int | None = None,
    assumed: Collection[str] = (),
    whole_gpu: bool = False,
    other_processes_bytes: int | None = None,
    at_least: bool = False,
) -> tuple[Explanation, ...]:
    """What comes near to what is observed, the likeliest first; empty where nothing does, or nothing needs to.

    Single causes first; two together only where no single one explains it. What a cause makes of the job is taken
    from the quick estimate and added to the budget, so that a traced budget keeps its own figure.

    Args:
        job: as it was read.
        budget: its prediction.
        observed_bytes: what a rank holds in the steady phase; by ``measure`` otherwise.
        estimate: a quick estimate of a changed job; may raise VramtopError.
        measure: what ``observed_bytes`` are.
        loaded_bytes: what the process held between loading and the first step, if that is known.
        assumed: dotted keys of the job that nobody wrote down: defaults and inferences.
        whole_gpu: ``observed_bytes`` are those of the whole card, not of one process.
        other_processes_bytes: what other processes are known to hold on it.
        at_least: it would have held more, had there been room: it ran out of memory.
    """
    if measure == "device" and not whole_gpu and _as_predicted(budget, observed_bytes, at_least=at_least):
        return ()
    try:
        quick = estimate(job)
    except VramtopError:
        return ()
    search = CauseSearch(
        job=job, budget=budget, quick=quick, estimate=estimate, measure=measure, observed=observed_bytes
    )
    search.loaded, search.at_least = loaded_bytes, at_least
    singles = [*setting_causes(job, assumed), *extra_memory_causes(job, quick, estimate)]
    if whole_gpu:
        singles += whole_gpu_causes(quick, other_processes_bytes)
    found = search.of_each([(cause,) for cause in singles])
    found += search.shorter()
    near = search.near(found, MAX_Z_SCORE) or search.near([*found, *search.pairs(found)], FALLBACK_MAX_Z_SCORE)
    return tuple(_explanations(near, observed_bytes, measure))


def _as_predicted(budget: Budget, observed: int, *, at_least: bool) -> bool:
    return observed <= budget.peak.high_bytes and (at_least or observed >= budget.peak.low_bytes)


def _explanations(near: Sequence[WeighedCauses], observed: int, measure: Measure) -> Iterator[Explanation]:
    for number, group in enumerate(_groups(near, measure)):
        for each in group:
            yield Explanation(
                changes={key: value for cause in each.causes for key, value in cause.changes.items()},
                words=" and ".join(cause.words for cause in each.causes),
                device_bytes=each.figures.device,
                predicted_bytes=each.figures.of(measure),
                off_bytes=each.figures.of(measure) - observed,
                name=" + ".join(cause.name for cause in each.causes),
                fix="; ".join(cause.fix for cause in each.causes if cause.fix),
                group=number,
            )


def _groups(near: Sequence[WeighedCauses], measure: Measure) -> list[list[WeighedCauses]]:
    """The same bytes together, the likeliest group first; in all no more than are worth reading."""
    groups: list[list[WeighedCauses]] = []
    for each in near[:_MAX_EXPLANATIONS]:
        size = each.figures.of(measure)
        group = next((g for g in groups if abs(g[0].figures.of(measure) - size) <= SAME_BYTES_SHARE * size), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return sorted(groups, key=lambda group: -group[0].weight)
