"""Makes a job so small that its steps run on a CPU within seconds: the same kind of model and settings."""

from typing import Any

import msgspec

from ...job.job import Job
from ...model.find_config import ResolvedModel

_SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    "qk_rope_head_dim": 8,
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("sliding_window", "query_pre_attn_scalar", "global_head_dim"), 16),
    "embedding_size": 64,
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 256),
}
"""Sizes by their names in configs; a size that is smaller, or None, stays."""
_MICRO_BATCH, _SEQUENCE_LENGTH = 2, 32


def tiny_job(job: Job, model: ResolvedModel) -> Job:
    """Return the job with a tiny model, short sequences, and at most two ranks in each dimension.

    A model that is Python code stays as it is.
    """
    training = msgspec.structs.replace(
        job.training,
        micro_batch=min(job.training.micro_batch, _MICRO_BATCH),
        sequence_length=min(job.training.sequence_length, _SEQUENCE_LENGTH),
        gradient_accumulation=min(job.training.gradient_accumulation, 2),
    )
    parallel = msgspec.structs.replace(
        job.parallel,
        **{name: min(2, getattr(job.parallel, name)) for name in ("data_shard", "data_replicate", "tensor")},
    )
    lora = job.lora and msgspec.structs.replace(job.lora, rank=min(job.lora.rank, 8))
    changed = msgspec.structs.replace(job, training=training, parallel=parallel, lora=lora, name=f"tiny {job.label}")
    if model.source == "code" or model.code is not None:
        return changed
    attention = job.model.attention if job.model.attention in ("sdpa", "eager") else "sdpa"  # others are CUDA's alone
    spec = msgspec.structs.replace(job.model, id=None, config=_shrunk(dict(model.config)), attention=attention)
    return msgspec.structs.replace(changed, model=spec)


def _shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with small sizes, those of nested configs among them."""
    made: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("_config"):
            made[name] = _shrunk(value)
        elif name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            made[name] = min(value, _SIZES[name])
        elif name == "layer_types" and isinstance(value, list):
            made[name] = value[-_SIZES["num_layers"] :]
        elif name.endswith("_token_id") and isinstance(value, int):
            made[name] = min(value, _SIZES["vocab_size"] - 1)
        elif name.endswith("_token_id") and isinstance(value, list):
            made[name] = [min(each, _SIZES["vocab_size"] - 1) for each in value]
        else:
            made[name] = value
    return made
