"""Settings of DDP, FSDP2 and Megatron-FSDP in the closed form, each by the difference that it makes."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget, Components
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.plan import make_plan
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import read_architecture

HIDDEN, LAYERS, RANKS = 1024, 8, 4
CONFIG = llama_config(
    hidden=HIDDEN, mlp=2816, layers=LAYERS, heads=16, kv_heads=16, vocab=8000, tie_word_embeddings=False
)
BLOCK = 4 * HIDDEN**2 + 3 * HIDDEN * 2816 + 2 * HIDDEN
PARAMETERS = LAYERS * BLOCK + 2 * 8000 * HIDDEN + HIDDEN


def budget(
    parallel: dict[str, Any],
    training: dict[str, Any] | None = None,
    *,
    attention: str = "flash_attention_2",
    config: dict[str, Any] = CONFIG,
    software: dict[str, str] | None = None,
) -> Budget:
    tables = {
        "model": {"config": config, "attention": attention},
        "training": {"micro_batch": 2, "sequence_length": 512, "precision": "bf16", **(training or {})},
        "parallel": parallel,
        "software": software or {},
    }
    return estimate(job_from_mapping(tables, where="test"), method="formula")


def phase(made: Budget, name: str) -> Components:
    return made.phase(name).components


def megatron_fsdp(name: str, training: dict[str, Any] | None = None, **parallel: Any) -> Components:
    settings = {"strategy": "megatron-fsdp", "data_shard": RANKS, **parallel}
    return phase(budget(settings, {"precision": "bf16-mixed", "framework": "megatron", **(training or {})}), name)


def test_megatron_fsdp_without_unit_modules_keeps_the_whole_model_gathered() -> None:
    """Absent ``fsdp_unit_modules`` are "peak-memory-equivalent to DDP" (megatron_fsdp/fully_shard.py)."""
    whole, blocks = megatron_fsdp("optimizer step", fsdp_units="model"), megatron_fsdp("optimizer step")
    assert whole.communication - blocks.communication == 2 * LAYERS * BLOCK
    doubled = megatron_fsdp("optimizer step", fsdp_units="model", double_buffer=True)
    assert doubled.communication == whole.communication


def test_a_small_communication_unit_gathers_fewer_blocks_ahead() -> None:
    short = {"activation_checkpointing": "full", "sequence_length": 32}
    ahead = [megatron_fsdp("backward", short, communication_unit=size).communication for size in (None, 2 * BLOCK)]
    assert ahead[0] - ahead[1] > 2 * 2 * BLOCK


def test_outer_sharding_shares_optimizer_states_with_the_replicas() -> None:
    states = [
        megatron_fsdp("optimizer step", data_replicate=2, outer_sharding=sharding).optimizer
        for sharding in ("none", "optim")
    ]
    assert states[0] == pytest.approx(2 * states[1], rel=1e-6)


def test_megatron_fsdps_dtypes_of_main_weights_and_gradients() -> None:
    usual, plain = (megatron_fsdp("optimizer step", main_weights=kept).optimizer for kept in (None, False))
    assert (usual, plain) == pytest.approx((12 * PARAMETERS / RANKS, 4 * PARAMETERS / RANKS), rel=1e-3)
    wide, narrow = (megatron_fsdp("forward", gradient_dtype=dtype).gradients for dtype in (None, "bf16"))
    assert wide == pytest.approx(2 * narrow, rel=1e-3)
    stepped = megatron_fsdp("optimizer step", gradient_dtype="bf16").gradients
    assert stepped == pytest.approx(narrow + wide, rel=1e-3)  # and their fp32 copies (update_main_grads)


def test_megatrons_linear_layers_save_their_part_of_the_sequence() -> None:
    """``LinearWithGradAccumulationAndAsyncCommunication`` (core 0.20) saves its input before it gathers it."""
    tokens, ranks = 1024, 8
    parallel = {"tensor": ranks, "sequence_parallel": True}
    split, whole = (
        phase(budget(parallel, {"framework": name}, attention="sdpa"), "forward").activations
        for name in ("megatron", "torchtitan")
    )
    more = 2 * HIDDEN * (tokens - tokens // ranks)  # what a layer saves more that gathers first, twice a block
    assert whole - split == pytest.approx((2 * LAYERS + 1) * more, rel=1e-3)


def test_the_buffer_in_which_megatrons_head_gathers_its_input_stays() -> None:
    """``GlobalMemoryBuffer`` hands out one buffer for all calls, and keeps it between steps."""
    step = [
        phase(budget({"tensor": 2, "sequence_parallel": choice}, {"framework": "megatron"}), "optimizer step").temporary
        for choice in (True, False)
    ]
    assert step[0] - step[1] == 2 * 512 * HIDDEN * 2  # all tokens of the micro-batch, in bf16


@pytest.mark.parametrize("sequences", [1, 2])
def test_of_several_sequences_megatrons_projection_keeps_a_copy_of_flash_attentions_output(sequences: int) -> None:
    """flash-attn has the batch first; TransformerEngine transposes it, which takes a copy of several sequences."""
    flash, fused = (
        phase(budget({}, {"framework": "megatron", "micro_batch": sequences}, attention=each), "forward").activations
        for each in ("flash_attention_2", "sdpa")
    )
    assert flash - fused == (LAYERS * sequences * 512 * HIDDEN * 2 if sequences > 1 else 0)


def test_megatrons_batches_bring_a_mask_of_all_pairs_to_the_ends_of_the_pipeline() -> None:
    """Each rank has the rows of its own positions (``get_batch_on_this_cp_rank`` of megatron/core/utils.py)."""
    masks = []
    for length in (512, 1024):  # of as many tokens, each of which is masked against twice the positions
        training = {"framework": "megatron", "sequence_length": length, "micro_batch": 1024 // length}
        masks.append(phase(budget({"context": 2}, training), "forward").temporary)
    assert masks[1] - masks[0] == 2 * 512 * 256


def test_tables_of_positions_are_whole_on_each_tensor_rank_and_on_the_first_stage_alone() -> None:
    """Megatron's ``LanguageModelEmbedding`` splits the tokens' table, and not the positions'."""

    def elements(positions: int, parallel: dict[str, Any]) -> list[float]:
        config = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 1024}
        training = {"micro_batch": 1, "sequence_length": 64, "framework": "megatron"}
        model = {"config": {**config, "n_positions": positions}}
        tables = {"model": model, "training": training, "parallel": parallel}
        job = job_from_mapping(tables, where="test")
        found = resolve_model(job.model)
        arch = read_architecture(found.config, job.model.task, where=found.where)
        return [stage.elements() for stage in make_plan(job, arch, count_parameters(arch)).stages]

    def grown(parallel: dict[str, Any]) -> list[float]:
        before, after = elements(512, parallel), elements(1024, parallel)
        return [large - small for small, large in zip(before, after, strict=True)]

    assert grown({"tensor": 2}) == [512 * 64]
    assert grown({"pipeline": 2}) == [512 * 64, 0]


EXPERTS = 8


@pytest.mark.parametrize(
    ("strategy", "ranks", "each"), [("fsdp2", 4, 2), ("fsdp2", 16, 1), ("fsdp2", 5, 2), ("fsdp1", 16, 0.5)]
)
def test_fsdp2_cuts_fused_experts_into_whole_ones(strategy: str, ranks: int, each: float) -> None:
    """``_chunk_with_empty`` cuts along the first dimension: of 16 ranks the first eight have an expert each."""
    mixtral = {**CONFIG, "model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    made = budget({"strategy": strategy, "data_shard": ranks}, config=mixtral)
    expert, router = 3 * HIDDEN * 2816, EXPERTS * HIDDEN
    rest = PARAMETERS - LAYERS * 3 * HIDDEN * 2816
    held = LAYERS * (each * expert + router / min(ranks, EXPERTS)) + rest / ranks
    assert phase(made, "loading").weights == pytest.approx(2 * held, rel=0.005)
    few = budget({"strategy": strategy, "data_shard": 4}, config=mixtral)
    gathered, of_few = (
        phase(one, "backward").communication - phase(one, "optimizer step").communication for one in (made, few)
    )
    assert (gathered > 1.6 * of_few) == (strategy == "fsdp2" and ranks == 16)
