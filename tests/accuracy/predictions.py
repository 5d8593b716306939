"""Predictions for the rows of the accuracy table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from accuracy_cases import Case, read_cases, read_measured
from peers import PEERS

from vramtop.estimator.budget import Budget, Span
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import read_architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The prediction for one row."""

    case: Case
    budget: Budget
    """With ``auto``, its method may differ between rows."""
    peers: dict[str, int | None] = field(default_factory=dict)

    @property
    def predicted_bytes(self) -> int:
        """The row's figure, predicted."""
        return self.case.predicted_bytes(self.budget)

    @property
    def error_bytes(self) -> int:
        """Predicted less measured bytes."""
        return self.predicted_bytes - self.case.measured_bytes

    @property
    def error(self) -> float:
        """Relative error: 0.1 is 10 % too high."""
        return self.error_bytes / self.case.measured_bytes

    @property
    def span(self) -> Span | None:
        """Predicted range of the row's own figure; None for components, which have none."""
        return self.case.range_bytes(self.budget)


def predict(case: Case, method: MethodChoice = "formula") -> Result:
    """Predict one row.

    Raises:
        VramtopError: the method is not available, or the job is invalid.
    """
    budget = estimate(case.job, method=method)
    return Result(case=case, budget=budget, peers=_peer_predictions(case, budget) if case.figure != "component" else {})


@cache
def predict_all(
    method: MethodChoice, *, file: str | None = None, own: bool = False
) -> tuple[Sequence[Result], Sequence[str]]:
    """Predict rows, and return why some cannot be predicted, a line for each.

    Args:
        method: of estimation.
        file: rows of this file only.
        own: also what was measured here; else what others published.
    """
    results, failed = [], []
    for case in (*read_cases(), *(read_measured() if own else ())):
        if file in (None, case.file):
            try:
                results.append(predict(case, method))
            except VramtopError as error:
                failed.append(f"{case.id}: {error}")
    return tuple(results), tuple(failed)


def _peer_predictions(case: Case, budget: Budget) -> dict[str, int | None]:
    job = budget.job
    model = resolve_model(job.model)
    arch = read_architecture(model.config, job.model.task, where=model.where)
    inventory = count_parameters(arch)
    return {name: peer(job, arch, inventory) for name, peer in PEERS.items()}
