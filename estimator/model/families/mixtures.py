"""Rows of the mixture-of-experts families, and names of the experts of families that are not known otherwise.

Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
models that transformers builds. Expert names: peft 0.21, ``utils/transformers_weight_conversion.py``.
"""

from ...common.records import replace
from ..architecture import BlockRules
from .decoders import LLAMA_LIKE, NO_QA, NO_QA_OR_TOKENS

_GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
_FUSED = replace(LLAMA_LIKE, expert_names=_GATE_UP_DOWN)
_DEEPSEEK = replace(
    _FUSED, bias_fields=("attention_bias",), rules=BlockRules(copies_attention_output=True, fp32_routing=True)
)
_DEEPSEEK_ABSENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MIXTURES = {
    "mixtral": replace(
        LLAMA_LIKE,
        expert_names=("w1", "w3", "w2"),
        rules=BlockRules(fp32_routing=True),
        absent={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": replace(
        LLAMA_LIKE,
        qkv_bias=True,
        bias_fields=("qkv_bias",),
        window_off_by_default=True,
        shared_expert="shared_expert",
        shared_expert_gate=True,
        linear_expert_names=_GATE_UP_DOWN,
        absent={
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "qwen3_moe": replace(
        _FUSED,
        qa_prefix="transformer",
        qk_norm="head",
        bias_fields=("attention_bias",),
        window_off_by_default=True,
        absent={
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "gpt_oss": replace(
        LLAMA_LIKE,
        qkv_bias=True,
        output_bias=True,
        bias_fields=("attention_bias",),
        router="router",
        router_bias=True,
        without_head=NO_QA,
        full_attention_every=2,
        rules=BlockRules(supports_sdpa=False, attention_sinks=True, fp32_norm_scale=True, expert_bias=True),
        absent={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
        },
    ),
    "llama4_text": replace(
        LLAMA_LIKE,
        mlp="feed_forward",
        router="router",
        shared_expert="shared_expert",
        without_head=("sequence-classification", *NO_QA_OR_TOKENS),
        rules=BlockRules(every_expert=True),
        field_names={
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "intermediate_size",
            "intermediate_size": "intermediate_size_mlp",
        },
        absent={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size": 16384,
        },
    ),
    "deepseek_v2": replace(
        _DEEPSEEK,
        bias_fields=("attention_bias", "mlp_bias"),
        without_head=NO_QA_OR_TOKENS,
        absent={
            **_DEEPSEEK_ABSENT,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek_v3": replace(
        _DEEPSEEK,
        without_head=NO_QA,
        absent={
            **_DEEPSEEK_ABSENT,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
        },
    ),
}
_QWEN3 = ("qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_text", "qwen3_omni_moe_thinker")
_OTHERS = (
    "afmoe",
    "cohere2_moe",
    "deepseek_v32",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm_moe_dsa",
    "hunyuan_v1_moe",
    "longcat_flash",
    "minimax",
    "minimax_m2",
    "olmoe",
    "solar_open",
)
WITH_EXPERT_NAMES = {
    **dict.fromkeys(_QWEN3, replace(_FUSED, window_off_by_default=True)),
    **dict.fromkeys(_OTHERS, _FUSED),
}
"""Families of which only the names of their experts are known; the rest is read as Llama's."""
