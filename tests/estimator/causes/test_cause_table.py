"""The causes that a job is suspected of."""

import pytest

from vramtop.estimator.causes.explain import setting_causes
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import with_changes

JOB = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16"))


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
