"""The traced budget: compared with the closed form, read from the cache, and refused with a reason."""

import sys
from pathlib import Path
from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.trace.worker_pool import POOL

CONFIG: dict[str, Any] = llama_config(vocab=8000, hidden=512, mlp=1408, layers=6, heads=8, kv_heads=4)
BF16 = {"precision": "bf16", "sequence_length": 1024, "micro_batch": 2}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace each job of this module once, and do not read the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def job(training: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **tables: Any) -> Any:
    tables = {"model": {"config": config or CONFIG}, "training": training or BF16, **tables}
    return job_from_mapping(tables, where="test")


JOBS = {
    "bf16": job(),
    "mixed": job(BF16 | {"precision": "bf16-mixed"}),
    "lora, mixed, checkpointed": job(
        BF16 | {"precision": "bf16-mixed", "activation_checkpointing": "full"}, lora={"rank": 8}
    ),
}


@pytest.mark.slow
def test_only_fsdp2_allocations_on_its_own_streams_have_separate_pools() -> None:
    """Sharded gradients and all-gathered weights; a 250 MiB reduce-scatter input reuses free blocks of the loss."""
    wide = CONFIG | {"vocab_size": 64000, "hidden_size": 1024, "num_attention_heads": 16, "tie_word_embeddings": False}
    training = {"precision": "bf16-mixed", "sequence_length": 2048, "activation_checkpointing": "full"}
    sharded = job(training | {"optimizer": "adamw-fused"}, config=wide, parallel={"strategy": "fsdp2", "data_shard": 8})
    budget = estimate(sharded, method="traced", python=sys.executable)
    head, logits = 64000 * 1024, 64000 * 2048
    apart = 4 * budget.model.parameters // 8 + 2 * (head + head // 4)
    apart += 2 * logits  # those in 16 bits, whose block is too small for fp32
    assert budget.peak.reserved_bytes - budget.peak.allocated_bytes < apart + 0.1 * budget.peak.allocated_bytes


def test_a_traced_budget_adds_up_and_names_its_largest_tensors() -> None:
    budget = estimate(JOBS["bf16"], method="traced", python=sys.executable)
    peak = budget.peak
    assert peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
    assert peak.low_bytes <= peak.device_bytes <= peak.high_bytes
    assert peak.components.total_bytes - budget.phases[-1].outside_bytes == peak.allocated_bytes
    assert [tensor.bytes for tensor in budget.largest] == sorted((t.bytes for t in budget.largest), reverse=True)
    assert any("lm_head" in tensor.module or "embed_tokens" in tensor.module for tensor in budget.largest)
    assert budget.to_json()["largest"][0]["bytes"] == budget.largest[0].bytes
    assert any("was rehearsed with" in each and "torch" in each for each in budget.assumptions)


def test_a_model_that_fails_where_one_of_many_tokens_is_assumed_to_be_global_is_run_with_none() -> None:
    sizes = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "longformer", **sizes, "intermediate_size": 128, "attention_window": [64, 64]}
    model = {"config": config | {"max_position_embeddings": 200}, "task": "masked-lm"}
    tables = {"model": model, "training": {"sequence_length": 128}}
    budget = estimate(job_from_mapping(tables, where="test"), method="traced", python=sys.executable)
    assert any("modeling_longformer" in each and "no is assumed" in each for each in budget.warnings)


def test_the_second_answer_comes_from_the_cache_and_computes_nothing_by_the_closed_form(own_cache, monkeypatch) -> None:
    first = estimate(JOBS["bf16"], method="traced", python=sys.executable)
    assert any("batch lengths vary" in sentence for sentence in first.assumptions)

    def called(*_: object, **__: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr("vramtop.estimator.formula.unstated.unstated_settings.closed_form", called)
    monkeypatch.setattr("vramtop.estimator.formula.reserved.replayed.cache_of_lengths", called)
    with monkeypatch.context() as patch:
        patch.setattr(POOL, "request", called)
        assert estimate(JOBS["bf16"], method="traced", python=sys.executable) == first
        with pytest.raises(AssertionError, match="asked again"):
            estimate(job(BF16 | {"micro_batch": 3}), method="traced", python=sys.executable)
    with pytest.raises(AssertionError, match="asked again"):  # another GPU is another question
        estimate(JOBS["bf16"], method="traced", gpu=find_gpu("a100-80gb"))


def test_versions_of_the_users_own_python_are_not_in_question(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    found, named = (estimate(JOBS["bf16"], method="traced", python=python) for python in (None, sys.executable))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    active = estimate(JOBS["bf16"], method="traced")
    assert any("version of transformers is not stated" in each for each in found.assumptions)
    assert not any("is not stated" in each for each in named.assumptions)
    assert named.peak.allocated_bytes == found.peak.allocated_bytes
    assert named.peak.high_bytes < found.peak.high_bytes
    assert active.peak == named.peak


def test_an_unsupported_job_is_an_error_and_auto_uses_the_most_exact_method_and_says_why() -> None:
    megatron = job(BF16, parallel={"strategy": "megatron-fsdp", "data_shard": 8, "outer_sharding": "optim"})
    with pytest.raises(CannotTellError, match="Megatron-FSDP has no setting in the Trainer"):
        estimate(megatron, method="traced", python=sys.executable)
    budget = estimate(megatron, method="auto", python=sys.executable)
    assert (budget.method, budget.timeline) == ("exact", None)
    why = "The step was not traced: no program can be written for this job yet: Megatron-FSDP"
    assert any(text.startswith(why) for text in budget.assumptions)
    assert estimate(JOBS["bf16"], method="auto", python=sys.executable).method == "traced"


def test_the_timeline_is_the_budget_over_the_step_and_comes_from_the_cache_too() -> None:
    budget = estimate(JOBS["bf16"], method="traced", python=sys.executable)
    line = budget.timeline
    assert list(line.events) == sorted(line.events)
    assert [mark.name for mark in line.phases] == ["forward", "backward", "optimizer step"]
    assert line.levels[line.peak] == budget.peak.components
    assert line.phases[0].event <= line.events[0]
    assert max(line.reserved_bytes) == budget.peak.reserved_bytes
    held = zip(line.levels, line.reserved_bytes, strict=True)
    assert all(level.total_bytes - line.outside_bytes <= reserved for level, reserved in held)
    assert estimate(JOBS["bf16"], method="traced", python=sys.executable).timeline == line
    assert Budget.from_json(budget.to_json()) == budget


def test_on_a_gpu_that_is_nearly_too_small_the_cache_is_freed_and_on_a_smaller_one_memory_runs_out() -> None:
    which = JOBS["lora, mixed, checkpointed"]
    anywhere = estimate(which, method="traced", python=sys.executable)
    assert not anywhere.warnings
    peak = anywhere.peak
    outside = peak.device_bytes - peak.reserved_bytes

    def on(size: int) -> Any:
        return estimate(which, method="traced", python=sys.executable, memory_bytes=size)

    assert on(peak.device_bytes + (64 << 20)).peak == peak
    tight = on(peak.device_bytes - (8 << 20))
    assert tight.peak.allocated_bytes == peak.allocated_bytes
    assert tight.peak.reserved_bytes < peak.reserved_bytes
    assert any("has to free its cache" in sentence for sentence in tight.warnings)
    small = on(outside + peak.allocated_bytes // 2)
    assert small.peak == peak  # what it would take, not what it got before it ended
    assert any("out of memory" in sentence for sentence in small.warnings)


def test_the_allocators_settings_are_those_of_the_given_environment() -> None:
    usual = estimate(JOBS["mixed"], method="traced", python=sys.executable, environ={})
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,no_such_thing:1"}
    growing = estimate(JOBS["mixed"], method="traced", python=sys.executable, environ=conf)
    assert growing.peak.reserved_bytes < usual.peak.reserved_bytes
    assert growing.peak.allocated_bytes == usual.peak.allocated_bytes
    assert any(
        "PYTORCH_CUDA_ALLOC_CONF sets the allocator: expandable_segments:True" in sentence
        for sentence in growing.assumptions
    )
    assert any("'no_such_thing' is not known" in sentence for sentence in growing.warnings)
    formula, usual = estimate(JOBS["mixed"], environ=conf), estimate(JOBS["mixed"], environ={})
    assert any(
        "PYTORCH_CUDA_ALLOC_CONF sets the allocator: expandable_segments:True" in text for text in formula.assumptions
    )
    assert formula.peak.reserved_bytes != usual.peak.reserved_bytes


KEEPER = """
import torch


class Keeper(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, copies=3):
        super().__init__(params, {"lr": lr})
        self.copies = copies

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("kept", [torch.zeros_like(p) for _ in range(self.copies)])
"""


@pytest.mark.slow
def test_an_optimizer_class_of_the_users_own_is_stepped(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KEEPER)
    file = tmp_path / "job.toml"
    settings = "micro_batch = 1\nsequence_length = 64\nprecision = 'bf16'"

    def of(optimizer: str, method: Any) -> Budget:
        text = f"[training]\n{settings}\n{optimizer}\n[model]\nconfig = {{{toml}}}\n"
        file.write_text(text)
        return estimate(load_job(file), method=method, python=sys.executable)

    toml = ", ".join(f"{name} = {value!r}" for name, value in CONFIG.items())
    own = "optimizer = 'mine:Keeper'\noptimizer_options = {copies = 5}"
    stepped, guessed = of(own, "traced"), of(own, "formula")
    weights = stepped.peak.components.weights
    assert stepped.peak.components.optimizer == pytest.approx(5 * weights, rel=0.01)
    assert not any("is not known" in text for text in stepped.warnings)
    assert any("mine:Keeper is not known" in text for text in guessed.warnings)
    assert guessed.peak.high_bytes - guessed.peak.low_bytes > 2 * guessed.peak.components.optimizer
    with pytest.raises(CannotTellError, match=r"no attribute 'Absent'.*--method exact answers by formula"):
        of("optimizer = 'mine:Absent'", "traced")
