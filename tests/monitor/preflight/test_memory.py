"""The quick bound and the whole verdict."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CancelledError, CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec, Parallel, Training
from vramtop.monitor.host.host_memory import HostRam
from vramtop.monitor.preflight.checks.memory import FitVerdict, HostMemory, LowerBound, lower_bound
from vramtop.monitor.preflight.context.context import Context
from vramtop.monitor.preflight.facts.machine import Machine

MakeContext = Callable[..., Context]
LLAMA = ModelSpec(id="meta-llama/Llama-3.1-8B")


def job(precision: str = "bf16", **tables: Any) -> Job:
    return Job(model=LLAMA, training=Training(precision=precision), **tables)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "width", "split"),
    [
        (job(), 2, 1),
        (job("bf16-mixed"), 4, 1),
        (job(lora=Lora()), 2, 1),
        (job(lora=Lora(quantization="int8")), 1.1, 1),
        (job(parallel=Parallel(strategy="fsdp2", data_shard=4)), 2, 4),
        (job(parallel=Parallel(strategy="ddp", data_replicate=4)), 2, 1),
    ],
)
def test_the_bound_is_parameters_times_the_width_of_a_base_weight(asked: Job, width: float, split: int) -> None:
    budget = estimate(asked)
    need, words = lower_bound(budget)
    weights = need - budget.peak.components.context
    expected = min(round(8_030_261_248 * width / split), budget.phase("loading").components.weights)  # type: ignore[union-attr]
    assert weights == expected
    assert f"x {width:g} bytes" in words


@pytest.mark.parametrize("quantization", ["nf4", "nf4-double"])
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "gpt2"])
def test_the_bound_is_never_above_the_budget(name: str, quantization: Any) -> None:
    """0.6 bytes a weight are more than a large model takes in 4 bits: then what the budget has counts."""
    budget = estimate(Job(model=ModelSpec(id=name), lora=Lora(targets="all-linear", quantization=quantization)))
    need, _ = lower_bound(budget)
    assert need <= budget.peak.low_bytes


def with_free(make_context: MakeContext, make_gpu: Any, asked: Job, *gib: float, **changes: Any) -> Context:
    gpus = [make_gpu(index, free_bytes=round(size * GIB)) for index, size in enumerate(gib)]
    budget = estimate(asked)
    return make_context(asked, gpus=gpus, quick=lambda: budget, budget=lambda: budget, **changes)


def test_failing_the_bound_means_running_out(make_context: MakeContext, make_gpu: Any) -> None:
    small = LowerBound().look(with_free(make_context, make_gpu, job(), 12))
    assert (small.status, "it will run out of memory" in small.found) == ("failure", True)
    large = LowerBound().look(with_free(make_context, make_gpu, job(), 20))
    assert (large.status, "promises nothing" in large.found) == ("pass", True)
    assert FitVerdict().look(with_free(make_context, make_gpu, job(), 20)).status == "failure"


def test_each_rank_needs_its_own_gpu(make_context: MakeContext, make_gpu: Any) -> None:
    twice = job(parallel=Parallel(strategy="ddp", data_replicate=2))
    found = LowerBound().look(with_free(make_context, make_gpu, twice, 70, 12))
    assert (found.status, "GPU 1 has 12.0" in found.found) == ("failure", True)


def test_the_gpus_that_the_job_will_take_count_and_others_are_advised(make_context: MakeContext, make_gpu: Any) -> None:
    asked = job(lora=Lora())
    context = with_free(make_context, make_gpu, asked, 10, 70)
    found = FitVerdict().look(context)  # it takes GPU 0
    assert (found.status, found.advice) == ("failure", "it fits on others: CUDA_VISIBLE_DEVICES=1")
    second = dataclasses.replace(context, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert FitVerdict().look(second).status == "pass"
    named = dataclasses.replace(context, machine=dataclasses.replace(context.machine, chosen=True))
    assert FitVerdict().look(named).status == "pass"


def test_a_tight_fit_is_a_warning(make_context: MakeContext, make_gpu: Any, make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=40, high=50)
    context = make_context(gpus=[make_gpu(0, free_bytes=45 * GIB)], budget=lambda: budget)
    found = FitVerdict().look(context)
    assert (found.status, found.unknown) == ("warning", False)


def test_without_a_gpu_nothing_is_decided(make_context: MakeContext) -> None:
    context = make_context(machine=Machine(rooms=(), unseen="no driver"))
    found = FitVerdict().look(context)
    assert (found.unknown, found.decisive) == (True, True)
    assert "needs 45.0 GiB" in found.found or "needs 4" in found.found
    assert LowerBound().look(context).status == "skipped"


def test_what_nvml_cannot_tell_is_not_guessed(make_context: MakeContext, make_gpu: Any) -> None:
    context = make_context(gpus=[make_gpu(0, free_bytes=None)])
    assert LowerBound().look(context).unknown
    assert FitVerdict().look(context).unknown


def test_where_a_deep_budget_takes_too_long_the_closed_form_answers(make_context: MakeContext) -> None:
    def slow() -> Budget:
        raise CancelledError("given up")

    found = FitVerdict().look(make_context(budget=slow))
    assert (found.status, "anything deeper took too long" in found.found) == ("pass", True)

    def impossible() -> Budget:
        raise CannotTellError("no shape")

    with pytest.raises(CannotTellError):
        FitVerdict().look(make_context(budget=impossible))


def test_of_several_machines_this_ones_ranks_count(make_context: MakeContext, make_gpu: Any) -> None:
    asked = job(lora=Lora(), parallel=Parallel(strategy="ddp", data_replicate=4))
    context = with_free(make_context, make_gpu, asked, 70, 70, local_ranks=2)
    found = FitVerdict().look(context)
    assert (found.status, "on this machine alone" in found.found) == ("pass", True)
    assert FitVerdict().look(dataclasses.replace(context, local_ranks=None)).status == "failure"


@pytest.mark.parametrize(
    ("gib", "ranks", "status"), [(64, 1, "pass"), (20, 1, "failure"), (64, 4, "failure"), (None, 1, "skipped")]
)
def test_the_hosts_memory(make_context: MakeContext, gib: int | None, ranks: int, status: str) -> None:
    """8 billion parameters that each rank loads in fp32, from a checkpoint in 16 bits."""
    asked = job("bf16-mixed", parallel=Parallel(strategy="ddp", data_replicate=ranks))
    budget = estimate(asked)
    context = make_context(asked, quick=lambda: budget)
    room = None if gib is None else HostRam(available_bytes=gib * GIB)
    found = HostMemory().look(dataclasses.replace(context, machine=dataclasses.replace(context.machine, host=room)))
    assert found.status == status
    one = dataclasses.replace(context, machine=dataclasses.replace(context.machine, host=room), local_ranks=1)
    assert ranks == 1 or HostMemory().look(one).status == "pass"


def test_the_bound_of_a_served_model_counts_its_own_weights() -> None:
    served = Job(
        model=LLAMA,
        training=Training(mode="inference", precision="bf16"),
        inference=Inference(engine="vllm", weights="int4"),
    )
    _, words = lower_bound(estimate(served))
    assert "x 0.6 bytes" in words


def test_a_mig_device_that_is_named_is_the_one_that_counts(make_context: MakeContext, make_mig_gpu: Any) -> None:
    """With 20 GiB; the other one has 39 free."""
    asked = job()
    budget = estimate(asked)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-0-9-0"}
    asked_of = {"gpus": [make_mig_gpu()], "quick": lambda: budget, "budget": lambda: budget, "environ": environ}
    assert budget.peak.device_bytes > 39 * GIB
    failed = FitVerdict().look(make_context(asked, **asked_of))
    assert (failed.status, failed.advice) == ("failure", "vramtop fit says what would make it smaller")
    assert "GPU 0:9 (MIG 1g.20gb) is short" in failed.found
    small = dataclasses.replace(
        budget, peak=dataclasses.replace(budget.peak, device_bytes=30 * GIB, high_bytes=31 * GIB)
    )
    moved = FitVerdict().look(make_context(asked, **(asked_of | {"budget": lambda: small})))
    assert (moved.status, moved.advice) == ("failure", "it fits on others: CUDA_VISIBLE_DEVICES=MIG-0-3-0")
