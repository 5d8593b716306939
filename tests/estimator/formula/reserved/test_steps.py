"""The closed form's stream of allocations: it leaves nothing behind, and allocates what the closed form says."""

from typing import Any

import pytest
from job_matrix import CELLS
from mapped_blocks import mapped_blocks
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.peak_moments import highest_phase, phase_peaks
from vramtop.estimator.formula.plan import make_plan
from vramtop.estimator.formula.rank_memory import RankMemory, rank_memory
from vramtop.estimator.formula.reserved.machine import Machine
from vramtop.estimator.formula.reserved.steps import TrainingRun
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings

LLAMA = llama_config(hidden=1024, mlp=2816, layers=6, heads=8, kv_heads=2, vocab=32000)


def rank_of(config: dict[str, Any], task: str = "causal-lm", **tables: Any) -> RankMemory:
    job = job_from_mapping({"model": {"config": config, "task": task}, **tables}, where="test")
    arch = read_architecture(config, task, where="test")
    plan = make_plan(job, arch, count_parameters(arch))
    return rank_memory(plan, plan.distinct_stages[0])


def run_of(rank: RankMemory) -> TrainingRun:
    return TrainingRun(rank, Machine(AllocatorSettings()))


def rank_of_cell(name: str, changes: dict[str, Any] | None = None) -> RankMemory:
    job = with_changes(CELLS[name], changes or {})
    arch = read_architecture(job.model.config or {}, job.model.task, where="test")
    plan = make_plan(job, arch, count_parameters(arch))
    return rank_memory(plan, plan.distinct_stages[-1])


@pytest.mark.parametrize("name", ["bf16", "mixed", "mixed checkpointed", "mixed adapters checkpointed", "bf16 fsdp2"])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3_moe"])
def test_the_stream_allocates_what_the_closed_form_says(family: str, name: str) -> None:
    rank = rank_of_cell(f"{family}, {name}")
    run = run_of(rank)
    run.train()
    expected = highest_phase(phase_peaks(rank)).allocated_bytes - rank.workspace
    assert run.machine.allocator.peak_allocated == pytest.approx(expected, rel=0.025)


LOSSES = ("chunked", "fused-linear", "unsloth", "log-probs", "fused-log-probs", "divergence")
CHANGES = [
    *({"training.loss": loss, "training.gradient_accumulation": 2} for loss in LOSSES),
    *({"training.optimizer_in_backward": True, "training.framework": name} for name in FRAMEWORKS),
    *({"parallel.strategy": name, "parallel.data_shard": 4} for name in ("zero2", "zero3")),
    *({f"parallel.{name}": 2} for name in ("tensor", "pipeline", "context")),
]
CASES = [*((name, {}) for name in CELLS if name.startswith("llama, ")), *(("llama, mixed", each) for each in CHANGES)]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_every_step_releases_what_it_allocates(name: str, changes: dict[str, Any]) -> None:
    run = run_of(rank_of_cell(name, changes))
    run.train(steps=1)
    after = sum(block.used for block in mapped_blocks(run.machine.allocator))
    run.train(steps=2)
    assert sum(block.used for block in mapped_blocks(run.machine.allocator)) == after


def test_the_first_step_leaves_a_cache_that_the_second_cannot_use() -> None:
    """Optimizer states are created in what the activations of the first step left free."""
    rank = rank_of(LLAMA | {"hidden_size": 2048, "intermediate_size": 5632}, training={"micro_batch": 2})
    run = run_of(rank)
    run.train(steps=1)
    first = run.machine.allocator.reserved
    run.train(steps=1)
    assert run.machine.allocator.reserved > first


def test_torchtitans_launch_script_lets_segments_grow() -> None:
    tables = {"model": {"config": LLAMA}, "training": {"framework": "torchtitan", "optimizer": "adamw"}}
    job = job_from_mapping(tables, where="test")
    found = estimate(job, environ={})
    plain = estimate(job, environ={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    assert any("expandable_segments:True, set by torchtitan's launch script" in text for text in found.assumptions)
    assert found.peak.allocated_bytes == plain.peak.allocated_bytes
    assert found.peak.reserved_bytes < plain.peak.reserved_bytes


def varying(conf: str = "", **training: Any) -> Budget:
    tables = {"model": {"config": LLAMA}, "training": {"sequence_length": 1024, "micro_batch": 4, **training}}
    return estimate(job_from_mapping(tables, where="test"), environ={"PYTORCH_CUDA_ALLOC_CONF": conf})


def test_batches_that_differ_in_length_widen_what_nvml_may_show_and_nothing_else() -> None:
    found, usual = varying(varying_lengths=True), varying(varying_lengths=False)
    assert found.peak.cache_bytes > 0.2 * usual.peak.reserved_bytes
    assert found.peak.shown_high_bytes == usual.peak.high_bytes + found.peak.cache_bytes
    assert replace(found.peak, cache_bytes=0) == usual.peak
    assert any("Batch lengths vary, so" in text for text in found.assumptions)
    assert Budget.from_json(found.to_json()).peak == found.peak


def test_segments_that_grow_take_batches_of_any_length() -> None:
    peak = varying("expandable_segments:True", varying_lengths=True).peak
    assert peak.cache_bytes < 0.02 * peak.reserved_bytes


def test_what_is_not_known_of_lengths_is_said() -> None:
    assert any("training.varying_lengths" in text for text in varying().assumptions)
    assert not any("training.varying_lengths" in text for text in varying(varying_lengths=False).assumptions)
    assert not any("training.varying_lengths" in text for text in varying(framework="torchtitan").assumptions)


def test_reductions_had_a_pool_of_their_own_before_torch_2_5() -> None:
    """The input of a reduce-scatter came from the reducing stream's pool, which serves nothing else."""
    pools, tables = {}, {"parallel": {"strategy": "fsdp2", "data_shard": 4}}
    tables["training"] = {"framework": "torchtitan", "precision": "bf16-mixed", "sequence_length": 1024}
    for torch in ("2.4", "2.5"):
        run = run_of(rank_of(LLAMA, **tables, software={"torch": torch, "torchtitan": "0.0.1"}))
        run.train()
        pools[torch] = sum(block.size for block in mapped_blocks(run.machine.allocator) if block.stream == 2)
    block = 1024 * (1024 * (1024 + 2 * 256) + 1024 * 1024 + 3 * 1024 * 2816) // 1024
    assert pools["2.4"] - pools["2.5"] >= 4 * block  # of a whole block, in fp32


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("hidden", [8, 64, 512])
def test_models_whose_tensors_are_too_small_to_count_have_an_estimate(hidden: int, precision: str) -> None:
    config = llama_config(hidden=hidden, mlp=96, layers=2, heads=4, kv_heads=2, vocab=256, model_type="mistral")
    training = {"sequence_length": 32, "precision": precision, "activation_checkpointing": "full"}
    budget = estimate(job_from_mapping({"model": {"config": config}, "training": training}, where="the test"))
    assert budget.peak.reserved_bytes >= budget.peak.allocated_bytes
