"""Why a job holds more or less than predicted: settings one or two changes away that would predict what is observed.

Each cause (``causes``, ``causes_beside``) is weighed by how plausible it is and how near its prediction comes, against
the estimate being off by itself. What predicts the same bytes cannot be told apart, and is said together.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..budget.budget import Budget
from ..common.errors import VramtopError
from ..job.job import Job
from .cause_search import FARTHEST, NEAR, SAME, Found, Measure, Search
from .extra_memory import Estimate, beside, on_the_card
from .setting_causes import causes

_MOST = 6
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
    of_card: bool = False,
    foreign_bytes: int | None = None,
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
        of_card: ``observed_bytes`` are those of the whole card, not of one process.
        foreign_bytes: what other processes are known to hold on it.
        at_least: it would have held more, had there been room: it ran out of memory.
    """
    if measure == "device" and not of_card and _as_predicted(budget, observed_bytes, at_least=at_least):
        return ()
    try:
        quick = estimate(job)
    except VramtopError:
        return ()
    search = Search(job=job, budget=budget, quick=quick, estimate=estimate, measure=measure, observed=observed_bytes)
    search.loaded, search.at_least = loaded_bytes, at_least
    singles = [*causes(job, assumed), *beside(job, quick, estimate)]
    if of_card:
        singles += on_the_card(quick, foreign_bytes)
    found = search.of_each([(cause,) for cause in singles])
    found += search.shorter()
    near = search.near(found, NEAR) or search.near([*found, *search.pairs(found)], FARTHEST)
    return tuple(_explanations(near, observed_bytes, measure))


def _as_predicted(budget: Budget, observed: int, *, at_least: bool) -> bool:
    return observed <= budget.peak.high_bytes and (at_least or observed >= budget.peak.low_bytes)


def _explanations(near: Sequence[Found], observed: int, measure: Measure) -> Iterator[Explanation]:
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


def _groups(near: Sequence[Found], measure: Measure) -> list[list[Found]]:
    """The same bytes together, the likeliest group first; in all no more than are worth reading."""
    groups: list[list[Found]] = []
    for each in near[:_MOST]:
        size = each.figures.of(measure)
        group = next((g for g in groups if abs(g[0].figures.of(measure) - size) <= SAME * size), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return sorted(groups, key=lambda group: -group[0].weight)
