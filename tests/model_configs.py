"""Configs of small models: of Llamas by their sizes, and of every family."""

from typing import Any


def llama_config(
    *,
    hidden: int | None = None,
    mlp: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    vocab: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the config of a Llama of these sizes, without those that are not given, and with further fields."""
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }
    return {"model_type": "llama", **{name: size for name, size in sizes.items() if size is not None}, **more}


COMMON = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
LATENT = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1]}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 8, "vocab_size": 1000}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 8, "vocab_size": 1000, "n_positions": 128}
DISTILBERT = {"dim": 64, "hidden_dim": 160, "n_layers": 2, "n_heads": 8, "vocab_size": 1000}
SMALL: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "mistral": COMMON,
    "mixtral": {**COMMON, "num_local_experts": 4},
    "qwen2": COMMON,
    "qwen3": {**COMMON, "head_dim": 16},
    "qwen2_moe": {**COMMON, **EXPERTS, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**COMMON, **EXPERTS, "head_dim": 16},
    "gemma": {**COMMON, "head_dim": 16},
    "gemma2": {**COMMON, "head_dim": 16},
    "gemma3_text": {**COMMON, "head_dim": 16},
    "olmo2": COMMON,
    "olmo3": COMMON | {"num_hidden_layers": 4},
    "gpt_oss": {**COMMON, "head_dim": 16, "num_local_experts": 4},
    "llama4_text": {**COMMON, "head_dim": 16, "num_local_experts": 4, "interleave_moe_layer_step": 2},
    "deepseek_v2": {**COMMON, **LATENT},
    "deepseek_v3": {**COMMON, **LATENT},
    "phi": COMMON,
    "phi3": {**COMMON, "pad_token_id": 0},
    "gpt2": GPT2,
    "gpt_neox": COMMON,
    "bert": COMMON,
    "roberta": COMMON,
    "distilbert": DISTILBERT,
    "t5": T5,
    "mt5": {**T5, "tie_word_embeddings": False},
}
"""By the family, each without its ``model_type``."""


def small_config(family: str, **more: Any) -> dict[str, Any]:
    """Return the config of a small model of a family, with further fields."""
    return {"model_type": family, **SMALL[family], **more}
