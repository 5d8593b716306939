"""Hindsight: what the other measured runs would change in the estimate of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import VramtopError

from .history import Corrections

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.learning.measurement import Measurement

MAX_RUNS = 60
"""Runs that are estimated again, the newest: each takes some milliseconds."""


def corrected_by_others(found: Sequence[Measurement]) -> dict[str, Budget]:
    """Return by run the closed form's estimate of its job, corrected by the other runs on the same card.

    A run whose job cannot be estimated again, because names were removed from it, is left out.

    Args:
        found: measured runs, the newest first.
    """
    from vramtop.estimator.estimation import estimate
    from vramtop.estimator.job.gpu_catalogue import match_nvml_name

    budgets = {}
    for each in found[:MAX_RUNS]:
        if each.hidden or each.job.model.config is None:
            continue
        try:
            budget = estimate(each.job, gpu=match_nvml_name(each.card) if each.card else None)
        except VramtopError:
            continue
        others = _Runs(tuple(other for other in found if other.run != each.run))
        corrections = Corrections(history=others.here)
        budgets[each.run] = corrections.corrected(
            budget, card=each.card, here=False, driver=each.driver, versions=each.versions
        )
    return budgets


@dataclass(frozen=True, slots=True)
class _Runs:
    """Measured runs that are at hand."""

    runs: tuple[Measurement, ...]

    def here(self) -> _Runs:
        """Return these runs, as a history that is opened."""
        return self

    def near(self, *, cards: Collection[str], machine: str) -> tuple[Measurement, ...]:
        """Return those on these cards or on this machine."""
        return tuple(each for each in self.runs if each.card in cards or (machine and each.machine == machine))
