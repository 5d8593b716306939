"""Searches: the largest value that fits, and replays of no more than must be replayed."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from slow_cases import slow_every

from vramtop.estimator.advice.bounded_search import BoundedSearch
from vramtop.estimator.advice.largest_fitting import find_largest
from vramtop.estimator.advice.suggestions import candidate_changes, suggest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import Verdict, VramtopError
from vramtop.estimator.common.reserved_memory import with_reserved_memory
from vramtop.estimator.estimation import QuickEstimator, quick_estimator
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
MOE: dict[str, Any] = {"model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000},
    "tied": {
        **LLAMA,
        "num_hidden_layers": 7,
        "intermediate_size": 2816,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "moe": {**MOE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_key_value_heads": 2}
    | {"intermediate_size": 1024, "vocab_size": 32000},
}
LORA = {"rank": 16, "targets": "all-linear"}
TABLES: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "inference": {"training": {"mode": "inference"}},
    "8-bit states": {"training": {"optimizer": "adamw-8bit", "gradient_accumulation": 2}},
    "mixed": {"training": {"precision": "bf16-mixed", "activation_checkpointing": "full"}},
    "lora": {"lora": LORA},
    "qlora": {"lora": {**LORA, "quantization": "nf4"}},
    "ddp": {"parallel": {"strategy": "ddp", "data_replicate": 2}},
    "fsdp1": {"parallel": {"strategy": "fsdp1", "data_shard": 4}},
    "fsdp2": {"parallel": {"strategy": "fsdp2", "data_shard": 8}},
    "zero3": {"parallel": {"strategy": "zero3", "data_shard": 4}},
    "tensor parallel": {"parallel": {"tensor": 2}, "training": {"framework": "torchtitan"}},
    "pipeline": {"parallel": {"pipeline": 2}, "training": {"framework": "torchtitan"}},
}


def job_of(shape: str, tables: str, *, batch: int = 8, length: int = 1024) -> Job:
    training = {"micro_batch": batch, "sequence_length": length, **TABLES[tables].get("training", {})}
    return job_from_mapping({"model": {"config": SHAPES[shape]}, **TABLES[tables], "training": training}, where="test")


def replaying(estimate: Callable[[Job], Budget]) -> Callable[[Job], Budget]:
    """Return an estimate that replays every job, whatever the search asks for."""

    def replayed(job: Job) -> Budget:
        with with_reserved_memory("replayed"):
            return estimate(job)

    return replayed


def judge_for(size: int) -> Callable[[Budget], Verdict]:
    """Return the product's own judge for eight GPUs of one size."""
    device = DeviceCapacity(index=0, uuid=None, name="GPU", total_bytes=size, free_bytes=size, count=8)
    return lambda budget: check_fit(budget, [device]).verdict


def edges(job: Job, quick: QuickEstimator, *, every: int) -> list[int]:
    """Return GPU sizes at which the verdict on some candidate turns, and in the middle of what only a replay finds."""
    sizes: set[int] = set()
    for change in candidate_changes(job, gpus=8)[::every]:
        try:
            peak = quick(with_changes(job, change.changes)).peak
            with with_reserved_memory("least"):
                least = quick(with_changes(job, change.changes)).peak
        except VramtopError:
            continue
        sizes |= {peak.device_bytes - 1, peak.high_bytes, (peak.high_bytes + least.high_bytes) // 2}
    return sorted(sizes)


def assert_alike(shape: str, tables: str, *, every: int) -> None:
    job = job_of(shape, tables)
    quick = quick_estimator(job)
    current, brute = quick(job), replaying(quick)
    for size in edges(job, quick, every=every):
        judge = judge_for(size)
        assert suggest(job, current, quick, judge, gpus=8) == suggest(job, current, brute, judge, gpus=8), size
        assert_largest(job, quick, judge)


def assert_largest(job: Job, quick: QuickEstimator, judge: Callable[[Budget], Verdict]) -> None:
    """Check, by replays alone, that what is found fits, and the next larger candidate does not."""
    found = find_largest(job, BoundedSearch(quick, judge).fits, max_positions=4096)
    sizes = [1, 2, 4, *range(8, 4097, 8)]
    lengths = [64, *range(128, 4097, 128)]

    def fits(key: str, value: int) -> bool:
        return judge(replaying(quick)(with_changes(job, {key: value}))) == "fits"

    for key, value, values in (
        ("training.micro_batch", found.micro_batch, sizes),
        ("training.sequence_length", found.sequence_length, lengths),
    ):
        after = 0 if value is None else values.index(value) + 1
        assert value is None or fits(key, value)
        assert after == len(values) or not fits(key, values[after])


@pytest.mark.parametrize(("shape", "tables"), [("llama", "one GPU"), ("llama", "fsdp2"), ("llama", "inference")])
def test_a_search_finds_what_replaying_every_candidate_finds(shape: str, tables: str) -> None:
    assert_alike(shape, tables, every=9)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "tables"), slow_every(5, product(SHAPES, TABLES)))
def test_a_search_finds_what_replaying_every_candidate_finds_in_every_mode(shape: str, tables: str) -> None:
    assert_alike(shape, tables, every=2)


def test_what_is_suggested_was_replayed() -> None:
    job = job_of("llama", "qlora")
    quick = quick_estimator(job)
    for size in (1, quick(job).peak.device_bytes // 2, quick(job).peak.device_bytes - 1):
        found = suggest(job, quick(job), quick, judge_for(size), gpus=8)
        assert found
        assert not any(each.budget.is_least for each in found)


JOB = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16", optimizer="adamw-8bit"))


@pytest.fixture(scope="module")
def quick() -> QuickEstimator:
    return quick_estimator(JOB)


def test_the_models_own_limit_is_reported(quick: QuickEstimator) -> None:
    found = find_largest(JOB, lambda job: job.training.micro_batch < 100, max_positions=quick.max_positions)
    assert (found.sequence_length, found.at_model_limit) == (131072, True)
    assert found.micro_batch == 96
    odd = find_largest(JOB, lambda _job: True, max_positions=1000)
    assert (odd.sequence_length, odd.at_model_limit) == (1000, True)


def test_nothing_fits(quick: QuickEstimator) -> None:
    found = find_largest(JOB, lambda _job: False, max_positions=quick.max_positions)
    assert (found.micro_batch, found.sequence_length, found.at_model_limit) == (None, None, False)


@pytest.mark.parametrize(("micro_batch", "length"), [(6, 3000), (13, 1000)])
def test_no_largest_value_is_below_that_of_a_job_that_fits(micro_batch: int, length: int) -> None:
    job = with_changes(JOB, {"training.micro_batch": micro_batch, "training.sequence_length": length})
    exactly = find_largest(job, lambda changed: changed == job)
    assert (exactly.micro_batch, exactly.sequence_length) == (micro_batch, length)
    larger = find_largest(
        job, lambda changed: changed.training.micro_batch <= 100 and changed.training.sequence_length <= 10_000
    )
    assert (larger.micro_batch, larger.sequence_length) == (96, 9984)
