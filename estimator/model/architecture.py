"""A model's architecture: sizes read from its Hugging Face config, and the rules by which its blocks use memory.

Legend: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

from dataclasses import dataclass
from typing import Literal

from ..job.settings import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRules:
    """Properties of a family's code in transformers on which the memory of a block depends."""

    supports_sdpa: bool = True
    """False if the family has no sdpa attention (sinks, capped scores) and runs eager attention instead."""
    softmax_in_score_dtype: bool = False
    """Eager attention takes the softmax in the dtype of the scores; other families take it in fp32."""
    attention_sinks: bool = False
    """Every head has a learned sink, a parameter that joins the scores in the softmax."""
    fused_qkv_views: bool = False
    """Values are a view of one tensor with queries and keys, which rotation copies: the whole tensor stays."""
    copies_attention_output: bool = False
    """Queries are concatenated, so attention's output has another layout and is copied for its projection."""
    gathers_attention: bool = False
    """The tensor-parallel plan all-gathers the outputs of attention's projections and splits them again afterwards."""
    gathers_mlp: bool = False
    """The tensor-parallel plan all-gathers the outputs of the MLP's projections and splits them again afterwards."""
    fp32_norm_scale: bool = False
    """Norms multiply by their weight in fp32."""
    expert_bias: bool = False
    """Experts have biases and clamp the factors of their product."""
    every_expert: bool = False
    """Every token passes through every expert, weighted by a score that is 0 for those that it is not sent to."""
    fp32_routing: bool = False
    """The router's weights are fp32, and so is what it makes of the experts' outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The architecture of one model with one task head."""

    family: str
    """``model_type``."""
    approximate: bool
    """The family is unknown (read as a Llama-like decoder), or transformers has no such head for it."""
    task: Task
    """The head, or the one that is counted in its place."""
    uncounted_parts: tuple[str, ...] = ()
    """Encoders beside a multimodal model's language model, by their names in the config: ``vision_config``."""
    uncounted_parameters: int = 0
    """Their parameters, as those of plain Transformers."""
    layers: int
    """Repeated blocks, encoder and decoder together."""
    encoder_layers: int
    """Blocks with bidirectional attention; 0 for decoders."""
    decoder_layers: int
    """Causal blocks, including those with cross attention; 0 for encoders."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """Head size of queries and keys."""
    value_head_dim: int
    """Head size of values: differs from ``head_dim`` only under latent attention."""
    query_size: int
    """Elements of all query heads per token: a d."""
    key_size: int
    """Elements of all key heads per token, as attention reads them: k d."""
    value_size: int
    """Elements of all value heads per token."""
    attention_output_size: int
    """Elements per token that enter the attention's output projection: a x value_head_dim."""
    mlp_size: int
    """f of the dense layers."""
    gated: bool
    """The MLP multiplies two projections (SwiGLU, GeGLU) instead of using one."""
    activation: str
    vocab: int
    positions: int
    """Rows of the learned position embedding; 0 if positions are rotary or relative."""
    token_types: int
    """Rows of the token type embedding; 0 if there is none."""
    max_positions: int | None
    """The longest sequence that the model supports; None if the config does not state it."""
    experts: int
    """Routed experts per MoE layer; 0 for dense models."""
    experts_per_token: int
    expert_mlp_size: int
    """f of one routed expert."""
    shared_mlp_size: int
    """f of one layer's shared experts, all together; 0 if there are none."""
    moe_layers: int
    dense_layers: int
    """Layers with an ordinary MLP."""
    tied: bool
    """The output head shares the token embedding's weight (only for tasks with such a head)."""
    hidden_dropout: float
    attention_dropout: float
    norms_per_layer: int
    """Norms over the hidden size; norms on queries and keys come on top."""
    norm: Literal["rms", "layer"]
    qk_norm: Literal["none", "head", "full"]
    """Norms on queries and keys: per head, or over all heads."""
    parallel_residual: bool
    """Attention and MLP read the same input."""
    sliding_window: int | None
    """Tokens that a windowed layer attends to; None if every layer attends to all."""
    sliding_layers: int
    """Number of layers with that window."""
    q_lora_rank: int | None
    """Latent attention: rank of the query compression; None if queries are not compressed."""
    kv_lora_rank: int | None
    """Latent attention: rank of keys and values; None for ordinary attention."""
    rope_head_dim: int
    """Rotated elements of a head: all of them, except under latent attention."""
    logit_softcap: float | None
    attention_softcap: float | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    relative_buckets: int
    """T5's buckets of relative positions; 0 for other families."""
    dtype: Literal["float32", "bfloat16", "float16"] | None
    """The dtype of the checkpoint; None if the config does not state it."""
    causal: bool
    num_labels: int
    """Outputs of a classification head."""
    rules: BlockRules
    own_code: bool = False
    """The model comes with its own code, which nobody has read."""
    recurrent: bool = False
    """Blocks are recurrent, all or some, which no rule describes: state spaces, linear attention, convolutions."""

    @property
    def encoder_decoder(self) -> bool:
        """True if there is an encoder and a decoder with cross attention."""
        return bool(self.encoder_layers and self.decoder_layers)

    @property
    def has_vocab_head(self) -> bool:
        """True if the output is one logit per vocabulary entry."""
        return self.task in ("causal-lm", "masked-lm", "seq2seq-lm")
