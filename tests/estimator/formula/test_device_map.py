"""Jobs with a device map: what each GPU holds and runs, and what stays in CPU RAM."""

from typing import Any

import pytest

from vramtop.estimator.advice.suggestions import candidate_changes
from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate, quick_estimator
from vramtop.estimator.job.job import Job, ModelSpec, Parallel, Training
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes

INFERENCE = {"training.mode": "inference", "training.precision": "bf16", "training.sequence_length": 64}
HIDDEN, MLP, VOCABULARY, BLOCKS = 512, 1408, 2000, 4
BLOCK = 3 * HIDDEN * MLP + 3 * HIDDEN * HIDDEN + 2 * HIDDEN


def test_each_gpu_has_the_weights_of_its_modules(llama_budget) -> None:
    table = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers": 1, "model.norm": 1, "lm_head": 0}
    budget = llama_budget(INFERENCE | {"parallel.device_map": table, "parallel.pipeline": 2})
    assert len(budget.stages) == 2
    assert len(budget.ranks) == 2
    assert budget.peak.components.weights == 2 * 3 * BLOCK  # the norm is counted with the head
    assert budget.peak.components.communication == 0
    whole = llama_budget(INFERENCE)
    assert whole.peak.components.weights == 2 * (4 * BLOCK + 2 * VOCABULARY * HIDDEN + HIDDEN)


def test_adapters_train_where_their_layers_are(llama_budget) -> None:
    lora = {"training.precision": "bf16", "lora.rank": 8, "lora.targets": "all-linear", "training.sequence_length": 64}
    placed = llama_budget(lora | {"parallel.device_map": "auto", "parallel.pipeline": 2})
    whole = llama_budget(lora)
    assert 0.4 * whole.peak.components.optimizer < placed.peak.components.optimizer < whole.peak.components.optimizer
    assert placed.peak.device_bytes < whole.peak.device_bytes
    assert not any("1F1B" in sentence for sentence in placed.assumptions)


def test_logits_return_to_the_gpu_of_the_input(budget_of, tiny_llama: dict[str, Any]) -> None:
    """The hook of the whole model has ``io_same_device`` (accelerate's ``dispatch_model``)."""
    table = {"model.embed_tokens": 0, "model.layers": 0, "model.norm": 0, "lm_head": 1}
    settings = INFERENCE | {"parallel.pipeline": 2, "training.micro_batch": 4, "software.transformers": "4.44"}
    config = tiny_llama | {"vocab_size": 32000}  # so that logits take more than a block does
    budget = budget_of(config, settings | {"parallel.device_map": table})
    first = budget.stages[0].device_bytes
    apart = {**table, "model.norm": 1, "model.embed_tokens": 1, "lm_head": 1, "model.layers": 0}
    assert first - budget_of(config, settings | {"parallel.device_map": apart}).stages[0].device_bytes > 0
    assert budget.peak.components.logits == 2 * 4 * 64 * 32000


def test_what_stays_in_cpu_ram_passes_through_the_first_gpu(llama_budget) -> None:
    """By hand: the GPU has room for the embedding, two blocks, and the head; at the peak, a block's MLP passes."""
    room = 2 * (2 * VOCABULARY * HIDDEN + 2 * BLOCK) + 2 * BLOCK
    limits = {"parallel.max_memory": {"0": room, "cpu": "1GiB"}}
    budget = llama_budget(INFERENCE | {"parallel.device_map": "auto"} | limits)
    whole = llama_budget(INFERENCE)
    assert whole.host is not None
    on_host = budget.host.weights
    assert on_host > 2 * BLOCK
    assert budget.peak.components.weights == whole.peak.components.weights - on_host
    assert budget.peak.components.activations == whole.peak.components.activations
    assert budget.peak.components.logits == whole.peak.components.logits
    assert budget.peak.components.temporary - whole.peak.components.temporary == 2 * HIDDEN * 1408
    assert any("stay in CPU RAM" in sentence for sentence in budget.assumptions)


def test_offloaded_weights_are_not_trained(llama_budget) -> None:
    lora = {"training.precision": "bf16", "lora.rank": 8, "parallel.device_map": "auto"}
    budget = llama_budget(lora | {"parallel.max_memory": {"0": "1MiB", "cpu": "1GiB"}})
    whole = llama_budget(lora)
    assert budget.peak.components == whole.peak.components
    assert any("cannot be trained" in warning for warning in budget.warnings)


@pytest.mark.parametrize(
    ("mode", "gpus", "sizes"), [("inference", 4, {1, 2, 4}), ("train", 2, {2}), ("train", 1, set())]
)
def test_a_device_map_is_proposed_and_takes_less(mode: str, gpus: int, sizes: set[int]) -> None:
    tables: dict[str, Any] = {
        "model": {"id": "meta-llama/Llama-2-13b-hf"},
        "training": {"mode": mode, "precision": "bf16", "micro_batch": 1, "sequence_length": 512},
        "target": {"gpu": "rtx-4090"},
    }
    job = job_from_mapping(tables | ({"lora": {"rank": 8}} if mode == "train" else {}), where="test")
    proposed = [each.changes for each in candidate_changes(job, gpus=gpus) if "parallel.device_map" in each.changes]
    assert {changes.get("parallel.pipeline", 1) for changes in proposed} == sizes
    estimate = quick_estimator(job)
    before = estimate(job).peak.device_bytes
    for changes in proposed:
        assert estimate(with_changes(job, changes)).peak.device_bytes < before
    placed = with_changes(job, {"parallel.device_map": "auto", "parallel.pipeline": 2})
    for change in candidate_changes(placed, gpus=8):
        with_changes(placed, change.changes)  # none contradicts the device map


@pytest.mark.parametrize(("model", "task", "unlike"), [("t5-small", "seq2seq-lm", True), ("gpt2", "causal-lm", False)])
def test_blocks_of_two_kinds_on_several_gpus_widen_the_range_and_are_said(model: str, task: str, unlike: bool) -> None:
    tables = {"model": {"id": model, "task": task}, "training": {"mode": "inference", "precision": "bf16"}}
    two = {"parallel": {"device_map": "auto", "pipeline": 2}}
    alone, placed = (quick(job_from_mapping(each, where="test")) for each in (tables, tables | two))
    said = [words for words in placed.warnings if "two kinds of blocks" in words]
    assert (len(said), any("two kinds" in words for words in alone.warnings)) == (int(unlike), False)
    peak = placed.peak
    tensors = peak.components.activations + peak.components.logits + peak.components.temporary
    span = peak.allocated_range
    assert (span is not None and span.high_bytes - peak.allocated_bytes >= tensors // 2) is unlike


def quick(job: Job) -> Budget:
    return estimate(job, method="formula")


def test_the_last_gpu_may_hold_no_block() -> None:
    training = Training(micro_batch=1, sequence_length=256, varying_lengths=True, optimizer="adamw")
    parallel = Parallel(device_map={"transformer": 0, "lm_head": 1}, pipeline=2)
    first, last = estimate(Job(model=ModelSpec(id="gpt2"), training=training, parallel=parallel)).ranks
    assert first.device_bytes > last.device_bytes > 50257 * 768 * 4
