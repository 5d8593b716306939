"""A new change is one row of the table of changes."""

import pytest

from vramtop.estimator.advice.changes import ChangeRule
from vramtop.estimator.advice.suggestions import CHANGES, candidate_changes, suggest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.job import Inference, Job, ModelSpec, Training

JOB = Job(model=ModelSpec(id="gpt2"), training=Training(micro_batch=8, loss="full"))
ROW = ChangeRule(
    kind="made up",
    applies=lambda job: job.training.loss == "full",
    changes={"training.loss": "fused-linear", "training.optimizer": "sgd"},
    why="the cheapest of all",
    slowdown=-1.0,
    source="a test",
)


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANGES, "training", (*CHANGES["training"], ROW))


@pytest.mark.usefixtures("_registered")
def test_a_new_change_needs_only_one_row() -> None:
    quick = quick_estimator(JOB)
    changed = quick(Job(model=JOB.model, training=Training(micro_batch=8, loss="fused-linear", optimizer="sgd")))

    def judge(budget: Budget) -> Verdict:
        return "fits" if budget.peak.device_bytes <= changed.peak.device_bytes else "does_not_fit"

    suggestions = suggest(JOB, quick(JOB), quick, judge)

    made_up = next(suggestion for suggestion in suggestions if suggestion.why.startswith("the cheapest of all"))
    assert made_up.verdict == "fits"
    assert made_up.changes == ROW.changes


@pytest.mark.usefixtures("_registered")
def test_a_row_applies_only_to_its_jobs() -> None:
    fused = Job(model=JOB.model, training=Training(loss="fused-linear"))
    served = Job(model=JOB.model, training=Training(mode="inference"), inference=Inference(engine="vllm"))

    assert "made up" in {change.kind for change in candidate_changes(JOB)}
    assert not {change.kind for job in (fused, served) for change in candidate_changes(job)} & {"made up"}


def test_the_cheapest_change_comes_first() -> None:
    costs = [change.cost for change in candidate_changes(JOB, gpus=8)]

    assert costs == sorted(costs)
