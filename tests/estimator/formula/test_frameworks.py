"""Rules of frameworks other than transformers, by their sources: losses, units, buckets and buffers."""

from typing import Any

import pytest

from vramtop.estimator.budget import Budget, Components
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.formula.process_memory import nccl_bytes, workspace_bytes
from vramtop.estimator.job.gpu_catalogue import find_gpu, generation_of
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping

VOCABULARY = 64000
LOGITS = 4096 * VOCABULARY


@pytest.fixture
def wide(tiny_llama: dict[str, Any]) -> dict[str, Any]:
    """A vocabulary so large that the loss is the peak."""
    return tiny_llama | {"vocab_size": VOCABULARY}


def backward(budget: Budget) -> Components:
    return budget.phase("backward").components


def steps(framework: str, **settings: Any) -> dict[str, Any]:
    return {"training.framework": framework, "training.sequence_length": 4096, "training.precision": "bf16"} | {
        key.replace("__", "."): value for key, value in settings.items()
    }


@pytest.mark.parametrize(("framework", "written"), [("torchtitan", 2 * 2), ("torchtune", 3 * 4)])
def test_a_compiled_loss_writes_no_fp32_logits(budget_of, wide, framework, written) -> None:
    """torchtune's recipes drop the compiled loss, and its model casts the logits outside of its compiled blocks."""
    eager = backward(budget_of(wide, steps(framework, training__activation_checkpointing="full")))
    compiled = {"training__compile": True, "training__activation_checkpointing": "full"}
    assert eager.logits == 3 * 4 * LOGITS
    assert backward(budget_of(wide, steps(framework, **compiled))).logits == written * LOGITS


def test_torchtitan_did_not_always_compile_its_loss(budget_of, wide: dict[str, Any]) -> None:
    before = steps("torchtitan", training__compile=True, software__torchtitan="0.0.2")
    assert backward(budget_of(wide, before)).logits == 3 * 4 * LOGITS


def test_the_range_covers_a_loss_that_is_left_out_of_compilation(budget_of, wide: dict[str, Any]) -> None:
    compiled = budget_of(wide, steps("torchtitan", training__compile=True)).peak
    eager = budget_of(wide, steps("torchtitan")).peak
    assert compiled.device_bytes < eager.device_bytes < compiled.high_bytes


def test_loss_parallelism_takes_four_fp32_copies_of_a_ranks_logits(budget_of, wide: dict[str, Any]) -> None:
    assert backward(budget_of(wide, steps("torchtitan", parallel__tensor=2))).logits == 4 * 4 * LOGITS // 2


def test_torchtune_chunks_accumulate_gradients_of_the_head(budget_of, wide: dict[str, Any]) -> None:
    chunked = {"training__loss": "chunked", "training__compile": True, "training__activation_checkpointing": "full"}
    logits = backward(budget_of(wide, steps("torchtune", **chunked))).logits
    head, chunk = 2 * VOCABULARY * 512, LOGITS // 8
    assert logits == 2 * LOGITS + 2 * head  # seven chunks: one chunk's gradient, that of the head and the sum
    adapters = backward(budget_of(wide, steps("torchtune", lora__rank=8, **chunked))).logits
    assert adapters == 2 * LOGITS + 2 * chunk


def test_torchtitan_chunks_are_computed_one_at_a_time(budget_of, wide: dict[str, Any]) -> None:
    whole = backward(budget_of(wide, steps("torchtitan"))).logits
    chunked = backward(budget_of(wide, steps("torchtitan", training__loss="chunked"))).logits
    assert chunked < whole / 4


def test_embedding_and_head_stay_all_gathered_as_parts_of_the_root(budget_of, wide: dict[str, Any]) -> None:
    """Twice as much as the head alone, which torchtitan shards as a unit since 0.2; the last block stays too."""
    sharded = {"parallel__strategy": "fsdp2", "parallel__data_shard": 8}
    present = budget_of(wide, steps("torchtitan", **sharded))
    before = budget_of(wide, steps("torchtitan", software__torchtitan="0.1", **sharded))
    embedding, block = 2 * VOCABULARY * 512, 2 * (2 * 512 * (512 + 256) + 3 * 512 * 1408 + 2 * 512)
    found = backward(before).communication - backward(present).communication
    assert found == pytest.approx(embedding + block, rel=0.01)


def test_pipeline_stages_keep_weights_all_gathered_and_reduce_last(budget_of, wide: dict[str, Any]) -> None:
    """torchtitan's default; gradients accumulate unsharded in the dtype of their reduction."""
    settings = {
        "parallel__strategy": "fsdp2",
        "parallel__data_shard": 8,
        "parallel__pipeline": 2,
        "training__gradient_accumulation": 4,
        "training__activation_checkpointing": "full",
    }
    staged = backward(budget_of(wide, steps("torchtitan", **settings)))
    tuned = backward(budget_of(wide, steps("torchtune", **settings)))
    stage = 2 * 512 * (512 + 256) + 3 * 512 * 1408 + 2 * 512  # of a block; a stage has two, and embedding or head
    assert staged.gradients >= 4 * (2 * stage + VOCABULARY * 512)
    assert tuned.gradients < staged.gradients / 4


@pytest.mark.parametrize(
    ("sharding", "blocks"), [("optim", 0), ("optim_grads", 8 * 4), ("optim_grads_params", 8 * 2 + 9 * 4)]
)
def test_megatron_fsdp_gathers_and_queues_small_blocks_all_at_once(budget_of, wide, sharding, blocks) -> None:
    """The blocks are far below the 1e9 elements at which it waits; double buffers exist twice between steps."""
    layers = wide | {"num_hidden_layers": 8, "vocab_size": 128}
    settings: dict[str, Any] = {
        "parallel__strategy": "megatron-fsdp",
        "parallel__data_shard": 8,
        "parallel__sharding": sharding,
        "training__precision": "bf16-mixed",
        "training__optimizer": "adamw-fused",
    }
    once = budget_of(layers, steps("megatron", training__activation_checkpointing="full", **settings))
    block = 2 * 512 * (512 + 256) + 3 * 512 * 1408 + 2 * 512
    nccl = nccl_bytes(job(strategy="megatron-fsdp", data_shard=8).parallel)
    most = max(backward(once).communication - nccl, 0)
    assert most <= blocks * block + 8 * 128 * 512 + 4096
    assert (most > 0) == (blocks > 0)
    if sharding == "optim_grads_params":
        doubled = budget_of(layers, steps("megatron", parallel__double_buffer=True, **settings))
        step = doubled.phase("optimizer step").components
        assert step.communication - nccl == 2 * (2 + 4) * block + 2 * (
            2 * 128 * 512 + 512
        )  # and what is outside of units


def test_fsdp2s_steps_in_the_backward_pass_leave_gradients_of_embedding_head_and_norm(budget_of, wide) -> None:
    stepped = steps("torchtune", training__optimizer_in_backward=True, parallel__strategy="fsdp2")
    stepped |= {"training.precision": "fp32", "training.optimizer": "sgd", "training.sequence_length": 16}
    budget = budget_of(wide, stepped | {"parallel.data_shard": 4})
    step = budget.phase("optimizer step").components
    assert step.gradients == 4 * (2 * VOCABULARY * 512 + 512) // 4


def test_deepspeeds_buckets_are_whole_in_a_small_model(budget_of, wide: dict[str, Any]) -> None:
    sharded = {"parallel__strategy": "zero3", "parallel__data_shard": 8}
    budget = budget_of(wide, steps("transformers", training__activation_checkpointing="full", **sharded))
    alone = nccl_bytes(job(strategy="zero3", data_shard=8).parallel)
    assert backward(budget).communication - alone > 1_000_000_000


def test_transformer_engine_has_its_own_workspace() -> None:
    """Megatron-LM's published steady states: 2 x 8.1 + 4 MiB on an A100, 3 x 32 on an H100."""
    a100, h100 = find_gpu("a100-80gb"), find_gpu("h100-80gb")
    assert workspace_bytes(generation_of(a100), transformer_engine=True) == 2 * 8_519_680 + 4 * MIB
    assert workspace_bytes(generation_of(h100), transformer_engine=True) == 3 * 32 * MIB
    assert workspace_bytes(generation_of(h100), transformer_engine=True, experts=True) == 7 * 32 * MIB
    assert workspace_bytes(generation_of(h100)) == 2 * 32 * MIB
    assert workspace_bytes(generation_of(a100), setting=":4096:8") == 2 * 32 * MIB
    assert workspace_bytes(generation_of(h100), setting=":4096:2:16:8") == 2 * 8_519_680


@pytest.mark.parametrize(
    ("parallel", "mib"),
    [
        ({}, 0),
        ({"strategy": "ddp", "data_replicate": 2}, 544),
        ({"strategy": "ddp", "data_replicate": 4}, 688),
        ({"strategy": "fsdp2", "data_shard": 4, "tensor": 2}, 688 + 544 + 688),  # each dimension, and all ranks
        ({"strategy": "fsdp2", "data_shard": 8, "expert": 8}, 688 + 7 * 32 * 12),
    ],
)
def test_nccl_takes_memory_per_communicator_and_all_to_all_peer(parallel: dict[str, Any], mib: int) -> None:
    assert nccl_bytes(job(**parallel).parallel) == mib * MIB


def job(**parallel: Any) -> Job:
    return job_from_mapping({"parallel": parallel}, where="test")
