"""A new cause is one row of the table, or one function for memory that no setting describes."""

from collections.abc import Iterator

import pytest

from vramtop.estimator.causes import extra_memory
from vramtop.estimator.causes.cause_search import COMMON, Cause, CauseRule
from vramtop.estimator.causes.explain import CAUSES, explain, setting_causes
from vramtop.estimator.causes.extra_memory import TrainingBudget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import quick_estimator
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import with_changes

JOB = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16"))
ROW = CauseRule(
    name="tiny batches",
    description="the micro-batch is 5 and the optimizer is SGD",
    applies=lambda job: job.training.micro_batch == 1,
    plausibility=COMMON,
    changes={"training.micro_batch": 5, "training.optimizer": "sgd"},
)


def test_a_new_cause_needs_only_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAUSES, "training", (*CAUSES["training"], ROW))
    quick = quick_estimator(JOB)
    observed = quick(with_changes(JOB, dict(ROW.changes if not callable(ROW.changes) else {}))).peak.device_bytes

    found = explain(JOB, quick(JOB), observed, quick)

    assert "tiny batches" in [each.name for each in found]
    assert "tiny batches" not in [
        cause.name for cause in setting_causes(with_changes(JOB, {"training.micro_batch": 2}))
    ]


def test_a_row_for_training_is_not_for_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAUSES, "training", (*CAUSES["training"], ROW))
    inference = with_changes(JOB, {"training.mode": "inference"})

    assert "tiny batches" not in [cause.name for cause in setting_causes(inference)]


def test_memory_without_a_setting_needs_only_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def cached_embeddings(training: TrainingBudget) -> Iterator[Cause]:
        yield Cause(
            name="cached embeddings",
            description="a script caches embeddings on the GPU",
            plausibility=COMMON,
            allocated_bytes=17 * GIB if training.job.trains else 0,
        )

    monkeypatch.setattr(extra_memory, "EXTRA_MEMORY", (*extra_memory.EXTRA_MEMORY, cached_embeddings))
    quick = quick_estimator(JOB)
    budget = quick(JOB)

    found = explain(JOB, budget, budget.peak.device_bytes + 17 * GIB, quick)

    assert any("cached embeddings" in each.name for each in found)


@pytest.mark.parametrize(
    ("strategy", "now", "others"),
    [
        ("fsdp1", "full", {"none"}),
        ("fsdp1", "grad_op", {"none", "full"}),
        ("megatron-fsdp", "full", {"none", "optim", "optim_grads"}),
        ("megatron-fsdp", "optim", {"none", "optim_grads", "optim_grads_params"}),
        ("fsdp2", "full", set()),
    ],
)
def test_a_strategy_is_suspected_of_its_own_shardings_only(strategy: str, now: str, others: set[str]) -> None:
    parallel = {"parallel.strategy": strategy, "parallel.data_shard": 4, "parallel.sharding": now}
    found = [cause.changes.get("parallel.sharding") for cause in setting_causes(with_changes(JOB, parallel))]

    assert {each for each in found if each is not None} == others
