"""The closed form against the trace: families x precision x optimizer x sharding x adapters x tasks x attention."""

import sys
from pathlib import Path
from typing import Any

import pytest
from job_matrix import CELLS

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

CLOSE = 0.03
"""Maximum relative error of the allocated bytes, in every phase."""

PART = {
    "llama": (
        "mixed fsdp1",
        "bf16 fsdp1 adapters checkpointed",
        "mixed fsdp1 adapters",
        "mixed fsdp1 kept",
        "mixed fsdp1 by size",
        "mixed fsdp1 by large size",
        "mixed fsdp1 no prefetch",
        "bf16 fsdp1 offloaded",
        "mixed fsdp1 copies",
        "mixed fsdp1 copies offloaded",
        "mixed hybrid",
        "mixed fsdp2 kept",
        "mixed fsdp2 accumulated",
        "fp32 fsdp2 accumulated",
        "bf16 adafactor",
        "mixed 8 x 128",
    ),
    "qwen2": ("mixed sequences", "bf16 fsdp2", "nf4 dropout"),
    "qwen3": ("mixed fsdp2 checkpointed",),
    "mistral": ("mixed 1 x 8192", "nf4 prepared checkpointed", "nf4 mixed", "int8 dropout"),
    "mixtral": ("mixed", "mixed fsdp2", "bf16 adapters"),
    "qwen3_moe": ("bf16", "mixed fsdp2"),
    "gemma": ("mixed accumulated", "mixed fsdp2"),
    "gemma2": ("mixed",),
    "gemma3_text": ("mixed", "mixed fsdp2 offloaded"),
    "phi": ("mixed fsdp2",),
    "phi3": ("mixed hsdp",),
    "gpt_neox": ("mixed fsdp2",),
    "gpt2": ("mixed eager", "mixed fsdp2"),
    "bert": ("mixed", "bf16 eager"),
    "roberta": ("fp32 tokens",),
    "distilbert": ("mixed ddp",),
    "t5": ("fp32", "mixed", "bf16 eager"),
    "olmo2": ("bf16",),
    "olmo3": ("mixed",),
    "gpt_oss": ("mixed", "bf16 fsdp2"),
    "llama4_text": ("bf16", "mixed fsdp2"),
    "deepseek_v2": ("mixed checkpointed",),
    "deepseek_v3": ("bf16",),
}
"""Cells that the tests run."""
QUICK = ("qwen3, mixed fsdp2 checkpointed",)
"""Cells that every test run includes."""


DIFFERENT = {
    "deepseek_v2, mixed checkpointed": "the closed form has its peak earlier in the backward pass (+1.5 %)",
    "llama, bf16 fsdp1 offloaded": "42 MiB are communication in the one and temporary in the other; the sum is equal",
}
"""Cells of which a figure lies further off, though inside the stated range, and why."""


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    different = (pytest.mark.xfail(reason=DIFFERENT[name], strict=True),) if name in DIFFERENT else ()
    return different if name in QUICK else (pytest.mark.slow, *different)


PART_NAMES = [f"{family}, {setting}" for family, settings in PART.items() for setting in settings]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in PART_NAMES])
def test_closed_form_and_trace_agree(name: str, own_cache: Path) -> None:
    if "nf4" in name or "int8" in name:
        pytest.importorskip("bitsandbytes")
    formula, trace = estimate(CELLS[name]), estimate(CELLS[name], method="traced", python=sys.executable)
    assert formula.peak.allocated_bytes == pytest.approx(trace.peak.allocated_bytes, rel=CLOSE)
    assert formula.peak.low_bytes <= trace.peak.device_bytes <= formula.peak.high_bytes
    low, high = formula.peak.reserved_range.low_bytes, formula.peak.reserved_range.high_bytes
    assert (1 - CLOSE) * low <= trace.peak.reserved_bytes <= (1 + CLOSE) * high
    for component, error in _errors(formula, trace).items():
        assert abs(error) <= CLOSE, component  # two errors that cancel are errors


@pytest.mark.parametrize(("targets", "checkpointing"), [(64, "none"), (1024, "full")])
def test_a_decoder_has_as_many_tokens_as_its_targets(targets: int, checkpointing: str) -> None:
    training = {"micro_batch": 4, "sequence_length": 512, "activation_checkpointing": checkpointing}
    fields = {"model": {"id": "t5-small", "task": "seq2seq-lm"}, "training": {**training, "loss_length": targets}}
    job = job_from_mapping(fields, where="test")
    formula, traced = (estimate(job, method=method).peak.allocated_bytes for method in ("formula", "traced"))
    assert formula == pytest.approx(traced, rel=0.05)


ADAPTERS = {"rank": 64, "targets": "all-linear"}
SIZES = {"vocab_size": 1000, "hidden_size": 256, "n_embd": 256, "d_model": 256, "intermediate_size": 1024}
DEPTH = {"num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_attention_heads": 8, "n_head": 8, "n_heads": 8}
POSITIONS = {"max_position_embeddings": 1024, "n_positions": 1024, "max_seq_len": 1024, "seq_length": 1024}
SHORT = {"micro_batch": 1, "sequence_length": 128}
SHARDED = {"strategy": "fsdp2", "data_shard": 8}
EXPERTS = {
    "hidden_size": 512,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts_per_tok": 2,
}
"""A model that is little beside its experts."""
QWEN3_MOE = {**EXPERTS, "model_type": "qwen3_moe", "num_experts": 128}
GPT_OSS = {**EXPERTS, "model_type": "gpt_oss", "num_local_experts": 4, "moe_intermediate_size": 1024}
FEW = {"micro_batch": 1, "sequence_length": 64, "optimizer": "adamw"}
BESIDE = {"rank": 8, "targets": "all-linear"}
TIED = {"model_type": "qwen2", "vocab_size": 32000, "num_key_value_heads": 2, "tie_word_embeddings": True}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "falcon, one key for all heads": ({"model_type": "falcon", "multi_query": True}, {}),
    "experts, the gradient of W + A B": (QWEN3_MOE, {"training": {**FEW, "precision": "bf16-mixed"}, "lora": BESIDE}),
    "gathered for short sequences": (TIED, {"training": SHORT, "parallel": SHARDED}),
    "bloom": ({"model_type": "bloom"}, {}),
    "phi, adapters of parallel halves": ({"model_type": "phi"}, {"lora": ADAPTERS}),
    "mpt": ({"model_type": "mpt"}, {}),
    "codegen": ({"model_type": "codegen", "rotary_dim": 16}, {}),
    "starcoder2, adapters of each projection": (
        {"model_type": "starcoder2", "num_key_value_heads": 2, "residual_dropout": 0.1, "embedding_dropout": 0.0},
        {"lora": ADAPTERS},
    ),
    "starcoder2, scores dropped out": (
        {"model_type": "starcoder2", "num_hidden_layers": 12, "num_key_value_heads": 2, "attention_dropout": 0.1},
        {"training": {"precision": "fp32"}},
    ),
    "esm, its own activation": (
        {"model_type": "esm", "hidden_act": "gelu", "position_embedding_type": "rotary", "mask_token_id": 3},
        {"model": {"task": "masked-lm"}},
    ),
    "falcon, fused projection": (
        {"model_type": "falcon", "multi_query": True},
        {"lora": {"rank": 64, "targets": ["query_key_value"], "autocast": True}},
    ),
    "mpt, fused projection": ({"model_type": "mpt"}, {"lora": {"rank": 64, "targets": ["Wqkv"]}}),
    "gptj": ({"model_type": "gptj", "rotary_dim": 16}, {}),
    "gpt_bigcode, positions": ({"model_type": "gpt_bigcode", "n_positions": 8192}, {}),
    "gathered for short sequences, FSDP1": (
        {"model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 32},
        {"training": SHORT, "parallel": {**SHARDED, "strategy": "fsdp1"}},
    ),
    "gathered beside adapters": ({"model_type": "phi3"}, {"training": SHORT, "parallel": SHARDED, "lora": ADAPTERS}),
    "experts, computed twice in each step": (
        QWEN3_MOE,
        {"training": {**FEW, "activation_checkpointing": "full"}, "lora": {**BESIDE, "autocast": True}},
    ),
    "experts, the casts of A and B": (QWEN3_MOE, {"training": FEW, "lora": {**BESIDE, "autocast": True}}),
    "experts, bf16 sinks beside bf16 scores": (
        GPT_OSS,
        {"training": {**FEW, "sequence_length": 1024}, "lora": {**BESIDE, "autocast": True}},
    ),
}
"""Blocks and shards of another kind: fields of the model's config, and tables of the job."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if at == 1 else [pytest.mark.slow]) for at, name in enumerate(OTHERS)]
)
def test_blocks_and_shards_of_other_kinds(name: str, own_cache: Path) -> None:
    fields, tables = OTHERS[name]
    config = {**SIZES, **DEPTH, **POSITIONS, "pad_token_id": 0, **fields}
    model = {"config": config, **tables.get("model", {})}
    training = {"precision": "bf16", "micro_batch": 4, "sequence_length": 512, "optimizer": "sgd"}
    tables = {**tables, "model": model, "training": training | tables.get("training", {})}
    job = job_from_mapping(tables, where="test")
    formula, trace = estimate(job), estimate(job, method="traced", python=sys.executable)
    assert formula.peak.allocated_bytes == pytest.approx(trace.peak.allocated_bytes, rel=0.04)


def _errors(formula: Budget, trace: Budget) -> dict[str, float]:
    """Return the closed form's error by component at the trace's peak, relative to all allocated bytes."""
    same = formula.phase(trace.peak.phase)
    ours, theirs = dict(same.components.items()), dict(trace.peak.components.items())
    return {name: (ours[name] - size) / trace.peak.allocated_bytes for name, size in theirs.items()}
