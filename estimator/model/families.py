"""What the config of each known model family leaves unsaid: layouts, defaults, norms, biases and task heads.

Source: the configuration and modelling files of transformers 5 (``models/<family>``), checked by the tests against
models that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from ..job.job import Task

Layout = Literal["llama", "phi", "phi3", "gpt2", "gpt_neox", "bert", "distilbert", "t5"]
"""Which parameters a block has and what they are called."""

DECODER_TASKS: tuple[Task, ...] = (
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
)
ENCODER_TASKS: tuple[Task, ...] = ("masked-lm", *DECODER_TASKS)
T5_TASKS: tuple[Task, ...] = ("seq2seq-lm", *DECODER_TASKS[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family, as ``model_type`` names it."""

    layout: Layout = "llama"
    prefix: str = "model"
    """Where the model without its head hangs in a model with a head."""
    qa_prefix: str | None = None
    """The same in the question-answering model, where it differs."""
    tasks: tuple[Task, ...] = DECODER_TASKS
    """What one can ask for; the first is the usual one."""
    without_head: tuple[Task, ...] = ()
    """Tasks for which transformers 5 has no class of this family: their head is an ordinary one by assumption."""
    absent: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Values of fields that a config does not mention."""
    tied: bool = False
    """The default of ``tie_word_embeddings``."""
    norm: Literal["rms", "layer"] = "rms"
    norms_per_layer: int = 2
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norms on queries and keys: per head, or over all heads."""
    gated: bool = True
    activation: str = "silu"
    bias_fields: tuple[str, ...] = ()
    """Which of the fields ``attention_bias``, ``mlp_bias``, ``qkv_bias`` the family's code looks at."""
    qkv_bias: bool = False
    """Queries, keys and values have a bias where no field says otherwise."""
    output_bias: bool = False
    """The attention's output projection has one."""
    mlp_bias: bool = False
    dropout: float = 0.0
    """Of hidden states and attention probabilities, where no field says otherwise."""
    full_attention_every: int | None = None
    """Every so-many-th layer sees the whole sequence, the others a sliding window."""
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    router_bias: bool = False
    expert_bias: bool = False


_NO_QA: tuple[Task, ...] = ("question-answering",)
_NO_QA_OR_TOKENS: tuple[Task, ...] = ("question-answering", "token-classification")


def _encoder(layout: Layout, prefix: str, tasks: tuple[Task, ...]) -> Family:
    return Family(
        layout=layout,
        prefix=prefix,
        tasks=tasks,
        tied=True,
        norm="layer",
        gated=False,
        activation="gelu",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dropout=0.1,
    )


GENERIC = Family()
"""What an unknown ``model_type`` is taken for: a decoder like Llama's."""

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(qa_prefix="transformer", bias_fields=("attention_bias", "mlp_bias")),
        "mistral": Family(absent={"num_key_value_heads": 8, "sliding_window": 4096}),
        "mixtral": Family(absent={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2}),
        "qwen2": Family(
            qa_prefix="transformer", qkv_bias=True, absent={"num_key_value_heads": 32, "max_window_layers": 28}
        ),
        "qwen3": Family(
            qa_prefix="transformer",
            qk_norm="head",
            bias_fields=("attention_bias",),
            absent={"num_key_value_heads": 32, "head_dim": 128},
        ),
        "qwen2_moe": Family(
            qkv_bias=True,
            bias_fields=("qkv_bias",),
            absent={
                "num_key_value_heads": 16,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
            },
        ),
        "qwen3_moe": Family(
            qa_prefix="transformer",
            qk_norm="head",
            bias_fields=("attention_bias",),
            absent={
                "num_key_value_heads": 4,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            },
        ),
        "gemma": Family(
            tied=True,
            activation="gelu_pytorch_tanh",
            bias_fields=("attention_bias",),
            without_head=_NO_QA,
            absent={"num_key_value_heads": 16, "head_dim": 256},
        ),
        "gemma2": Family(
            tied=True,
            norms_per_layer=4,
            activation="gelu_pytorch_tanh",
            bias_fields=("attention_bias",),
            without_head=_NO_QA,
            full_attention_every=2,
            logit_softcap=30.0,
            attention_softcap=50.0,
            absent={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        ),
        "gemma3_text": Family(
            tied=True,
            norms_per_layer=4,
            qk_norm="head",
            activation="gelu_pytorch_tanh",
            bias_fields=("attention_bias",),
            without_head=_NO_QA_OR_TOKENS,
            full_attention_every=6,
            absent={
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 4096,
                "vocab_size": 262208,
            },
        ),
        "olmo2": Family(qk_norm="full", bias_fields=("attention_bias",), without_head=_NO_QA_OR_TOKENS),
        "gpt_oss": Family(
            qkv_bias=True,
            output_bias=True,
            bias_fields=("attention_bias",),
            router_bias=True,
            expert_bias=True,
            without_head=_NO_QA,
            full_attention_every=2,
            absent={
                "num_key_value_heads": 8,
                "head_dim": 64,
                "num_local_experts": 128,
                "num_experts_per_tok": 4,
                "sliding_window": 128,
            },
        ),
        "deepseek_v2": Family(
            bias_fields=("attention_bias", "mlp_bias"),
            without_head=_NO_QA_OR_TOKENS,
            absent={
                "kv_lora_rank": 512,
                "q_lora_rank": 1536,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1407,
                "first_k_dense_replace": 0,
            },
        ),
        "deepseek_v3": Family(
            bias_fields=("attention_bias",),
            without_head=_NO_QA,
            absent={
                "kv_lora_rank": 512,
                "q_lora_rank": 1536,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 256,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 2048,
                "first_k_dense_replace": 3,
            },
        ),
        "phi": Family(
            layout="phi",
            norm="layer",
            norms_per_layer=1,
            gated=False,
            activation="gelu_new",
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            without_head=_NO_QA,
        ),
        "phi3": Family(layout="phi3", without_head=_NO_QA),
        "gpt2": Family(
            layout="gpt2",
            prefix="transformer",
            tied=True,
            norm="layer",
            gated=False,
            activation="gelu_new",
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            dropout=0.1,
        ),
        "gpt_neox": Family(
            layout="gpt_neox",
            prefix="gpt_neox",
            norm="layer",
            gated=False,
            activation="gelu",
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            bias_fields=("attention_bias",),
        ),
        "bert": _encoder("bert", "bert", ENCODER_TASKS),
        "roberta": _encoder("bert", "roberta", ENCODER_TASKS),
        "distilbert": _encoder("distilbert", "distilbert", tuple(t for t in ENCODER_TASKS if t != "causal-lm")),
        "t5": Family(
            layout="t5", prefix="transformer", tasks=T5_TASKS, tied=True, gated=False, activation="relu", dropout=0.1
        ),
    }
)
