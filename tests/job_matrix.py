"""Jobs for tests that compare methods: families x precision x optimizer x sharding x adapters x tasks x attention."""

from collections.abc import Iterator
from typing import Any

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.families.registry import FAMILIES

_H: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _H | {"num_key_value_heads": 4}
_HEADS = _GROUPED | {"head_dim": 128}
_LONG = {"max_position_embeddings": 8194, "intermediate_size": 8192}
_MOE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 768}
_T5 = {"d_model": 2048, "num_layers": 3, "num_heads": 16, "vocab_size": 32000, "decoder_start_token_id": 0}
_LATENT = {
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 704,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "qwen3": _HEADS,
    "mistral": _GROUPED,
    "mixtral": _GROUPED | {"num_local_experts": 8, "intermediate_size": 2816},
    "qwen2_moe": _GROUPED | _MOE | {"shared_expert_intermediate_size": 1536},
    "qwen3_moe": _HEADS | _MOE,
    "gemma": _HEADS,
    "gemma2": _HEADS,
    "gemma3_text": _HEADS,
    "phi": _H,
    "phi3": _GROUPED,
    "gpt_neox": _H,
    "gpt2": {"n_embd": 2048, "n_layer": 4, "n_head": 16, "vocab_size": 32000, "n_positions": 8192},
    "bert": _H | _LONG,
    "roberta": _H | _LONG,
    "distilbert": {
        "dim": 2048,
        "n_layers": 4,
        "n_heads": 16,
        "hidden_dim": 8192,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
    },
    "t5": _T5 | {"d_kv": 128, "d_ff": 5632},
    "olmo2": _GROUPED,
    "olmo3": _GROUPED,
    "gpt_oss": _HEADS | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 1024},
    "llama4_text": _HEADS | {"num_local_experts": 8, "intermediate_size": 704, "intermediate_size_mlp": 5632},
    "deepseek_v2": _H | _LATENT,
    "deepseek_v3": _H | _LATENT | {"n_shared_experts": 1, "n_group": 4, "topk_group": 2},
}

_BF16 = {"precision": "bf16", "sequence_length": 1024, "micro_batch": 2}
_MIXED = _BF16 | {"precision": "bf16-mixed"}
_FP32 = _BF16 | {"precision": "fp32"}
_CHECKPOINTED = {"activation_checkpointing": "full"}
_FSDP = {"strategy": "fsdp2", "data_shard": 8}
_HSDP = {"strategy": "fsdp2", "data_shard": 4, "data_replicate": 2}
_FSDP1 = {"strategy": "fsdp1", "data_shard": 8}
_HYBRID = {"strategy": "fsdp1", "data_shard": 4, "data_replicate": 2, "sharding": "hybrid"}
_COPIES = {"strategy": "fsdp1", "data_replicate": 4, "sharding": "none"}
_DDP = {"strategy": "ddp", "data_replicate": 4}
_ADAPTERS = {"rank": 16, "targets": "all-linear"}
SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {"training": _BF16},
    "fp32": {"training": _FP32},
    "mixed": {"training": _MIXED},
    "fp16-mixed": {"training": _MIXED | {"precision": "fp16-mixed"}},
    "bf16 adafactor": {"training": _BF16 | {"optimizer": "adafactor"}},
    "mixed checkpointed": {"training": _MIXED | _CHECKPOINTED},
    "mixed accumulated": {"training": _MIXED | {"gradient_accumulation": 4}},
    "mixed 8 x 128": {"training": _MIXED | {"micro_batch": 8, "sequence_length": 128}},
    "mixed 1 x 8192": {"training": _MIXED | {"micro_batch": 1, "sequence_length": 8192}},
    "bf16 eager": {"training": _BF16, "model": {"attention": "eager"}},
    "mixed eager": {"training": _MIXED, "model": {"attention": "eager"}},
    "bf16 adapters": {"training": _BF16, "lora": _ADAPTERS},
    "nf4": {"training": _BF16, "lora": _ADAPTERS | {"quantization": "nf4"}},
    "nf4 dropout": {"training": _BF16, "lora": _ADAPTERS | {"quantization": "nf4", "dropout": 0.05}},
    "nf4 prepared checkpointed": {
        "training": _BF16 | _CHECKPOINTED,
        "lora": _ADAPTERS | {"quantization": "nf4-double", "kbit_preparation": True},
    },
    "nf4 mixed": {"training": _MIXED, "lora": _ADAPTERS | {"quantization": "nf4"}},
    "int8 dropout": {"training": _BF16, "lora": _ADAPTERS | {"quantization": "int8", "dropout": 0.05}},
    "mixed adapters checkpointed": {"training": _MIXED | _CHECKPOINTED, "lora": _ADAPTERS},
    "mixed ddp": {"training": _MIXED, "parallel": _DDP},
    "bf16 fsdp2": {"training": _BF16, "parallel": _FSDP},
    "mixed fsdp2": {"training": _MIXED, "parallel": _FSDP},
    "mixed fsdp2 kept": {"training": _MIXED, "parallel": _FSDP | {"reshard_after_forward": False}},
    "mixed fsdp2 checkpointed": {"training": _MIXED | _CHECKPOINTED, "parallel": _FSDP},
    "mixed fsdp2 accumulated": {"training": _MIXED | {"gradient_accumulation": 4}, "parallel": _FSDP},
    "fp32 fsdp2 accumulated": {"training": _FP32 | {"gradient_accumulation": 4}, "parallel": _FSDP},
    "mixed fsdp2 offloaded": {"training": _MIXED, "parallel": _FSDP | {"cpu_offload": "all"}},
    "mixed hsdp": {"training": _MIXED, "parallel": _HSDP},
    "mixed fsdp1": {"training": _MIXED, "parallel": _FSDP1},
    "mixed fsdp1 kept": {"training": _MIXED, "parallel": _FSDP1 | {"sharding": "grad_op"}},
    "mixed fsdp1 adapters": {"training": _MIXED, "parallel": _FSDP1, "lora": _ADAPTERS},
    "bf16 fsdp1 adapters checkpointed": {"training": _BF16 | _CHECKPOINTED, "parallel": _FSDP1, "lora": _ADAPTERS},
    "mixed fsdp1 by size": {"training": _MIXED, "parallel": _FSDP1 | {"fsdp_min_unit_parameters": 20_000_000}},
    "mixed fsdp1 by large size": {"training": _MIXED, "parallel": _FSDP1 | {"fsdp_min_unit_parameters": 60_000_000}},
    "mixed fsdp1 no prefetch": {"training": _MIXED, "parallel": _FSDP1 | {"fsdp_backward_prefetch": "none"}},
    "bf16 fsdp1 offloaded": {"training": _BF16 | _CHECKPOINTED, "parallel": _FSDP1 | {"cpu_offload": "all"}},
    "mixed fsdp1 copies": {"training": _MIXED, "parallel": _COPIES},
    "mixed fsdp1 copies offloaded": {"training": _MIXED, "parallel": _COPIES | {"cpu_offload": "all"}},
    "mixed hybrid": {"training": _MIXED, "parallel": _HYBRID},
    "mixed sequences": {"training": _MIXED, "model": {"task": "sequence-classification"}},
    "fp32 tokens": {"training": _FP32, "model": {"task": "token-classification"}},
}
ONLY_EAGER = ("gemma2", "gpt_oss")
"""Families without sdpa in transformers."""


def cells() -> Iterator[tuple[str, Job]]:
    """Yield every cell of the matrix that is a valid job, with its name."""
    for family, config in CONFIGS.items():
        for setting, tables in SETTINGS.items():
            model = {"task": FAMILIES[family].tasks[0], **tables.get("model", {})}
            known = FAMILIES[family].tasks, FAMILIES[family].without_head
            if model["task"] not in known[0] or model["task"] in known[1]:
                continue
            if family in ONLY_EAGER:
                model.setdefault("attention", "eager")
            model["config"] = {"model_type": family, **config}
            yield f"{family}, {setting}", job_from_mapping({**tables, "model": model}, where=family)


CELLS = dict(cells())
