"""Rows of the dense decoder families.

Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with models
that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...job import Task
from ..architecture import BlockRules
from .decoder_blocks import gpt2_body, gpt_neox_body, llama_body, phi3_body, phi_body
from .family import Family, TaskHeads

NO_QA: tuple[Task, ...] = ("question-answering",)
NO_QA_OR_TOKENS: tuple[Task, ...] = ("question-answering", "token-classification")
FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

LLAMA_LIKE = Family(body=llama_body)
"""A decoder with Llama's block: the base of most families, and the record of an unknown ``model_type``."""
_GEMMA = replace(
    LLAMA_LIKE,
    tied=True,
    activation="gelu_pytorch_tanh",
    bias_fields=("attention_bias",),
    without_head=NO_QA,
    rules=BlockRules(fp32_norm_scale=True),
    absent={"num_key_value_heads": 16, "head_dim": 256},
)
_LAYER_NORM_DECODER = Family(
    body=gpt2_body,
    norm="layer",
    gated=False,
    activation="gelu_new",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    reads_head_dim=False,
    experts=False,
)

DECODERS: Mapping[str, Family] = {
    "llama": replace(
        LLAMA_LIKE, qa_prefix="transformer", bias_fields=("attention_bias", "mlp_bias"), marker_field="rms_norm_eps"
    ),
    "mistral": replace(LLAMA_LIKE, absent={"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": replace(
        LLAMA_LIKE,
        qa_prefix="transformer",
        qkv_bias=True,
        window_off_by_default=True,
        absent={"num_key_value_heads": 32, "max_window_layers": 28},
    ),
    "qwen3": replace(
        LLAMA_LIKE,
        qa_prefix="transformer",
        qk_norm="head",
        bias_fields=("attention_bias",),
        window_off_by_default=True,
        absent={"num_key_value_heads": 32, "head_dim": 128},
    ),
    "gemma": _GEMMA,
    "gemma2": replace(
        _GEMMA,
        block_norms=FOUR_NORMS,
        full_attention_every=2,
        logit_softcap=30.0,
        attention_softcap=50.0,
        rules=BlockRules(fp32_norm_scale=True, supports_sdpa=False),
        absent={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    ),
    "gemma3_text": replace(
        _GEMMA,
        block_norms=FOUR_NORMS,
        qk_norm="head",
        without_head=NO_QA_OR_TOKENS,
        full_attention_every=6,
        absent={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262208,
        },
    ),
    "olmo2": replace(
        LLAMA_LIKE,
        block_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="full",
        bias_fields=("attention_bias",),
        without_head=NO_QA_OR_TOKENS,
        rules=BlockRules(fp32_norm_scale=True, gathers_attention=True),
    ),
    "phi": replace(
        _LAYER_NORM_DECODER,
        body=phi_body,
        block_norms=("input_layernorm",),
        parallel_residual="always",
        without_head=NO_QA,
        heads=TaskHeads(lm_head_bias=True),
        rules=BlockRules(copies_attention_output=True),
    ),
    "phi3": replace(
        LLAMA_LIKE,
        body=phi3_body,
        reads_head_dim=False,
        experts=False,
        without_head=NO_QA,
        rules=BlockRules(fused_qkv_views=True, copies_attention_output=True, gathers_attention=True, gathers_mlp=True),
    ),
    "gpt2": replace(
        _LAYER_NORM_DECODER,
        prefix="transformer",
        tied=True,
        block_norms=("ln_1", "ln_2"),
        marker_field="n_embd",
        mlp_ratio=4,
        dropout=0.1,
        reads_kv_heads=False,
        learned_positions=1024,
        heads=TaskHeads(tokens_classifier="classifier"),
        rules=BlockRules(softmax_in_score_dtype=True),
    ),
    "gpt_neox": replace(
        _LAYER_NORM_DECODER,
        body=gpt_neox_body,
        prefix="gpt_neox",
        activation="gelu",
        bias_fields=("attention_bias",),
        reads_kv_heads=False,
        parallel_residual="by config",
        heads=TaskHeads(tokens_classifier="classifier"),
        rules=BlockRules(fused_qkv_views=True, copies_attention_output=True),
    ),
}
