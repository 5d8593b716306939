"""A model's architecture: sizes read from its Hugging Face config, and the rules by which its blocks use memory.

Legend: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

from ..job.setting_values import Task


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


# The parameters of a model, grouped by name: the basis of weights, gradients, optimizer states, adapters and shards.
#
# Legend of shapes: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.


Role = Literal["embedding", "attention", "mlp", "expert", "router", "norm", "head", "other"]
"""The part of the model that a parameter belongs to.

``embedding``: looked up, not multiplied (tokens, positions, types). ``expert``: routed experts, which expert
parallelism splits; shared experts are ``mlp``. ``head``: the task's output.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters with one name and shape, one per layer."""

    name: str
    """Name in ``named_parameters``, layer numbers as ``*``: ``model.layers.*.self_attn.q_proj.weight``."""
    shape: tuple[int, ...]
    """Shape of one tensor; linear weights are (out, in), fused experts (E, out, in) or (E, in, out)."""
    repeat: int
    """Number of tensors with this name and shape."""
    role: Role
    linear: bool
    """It is the weight of a linear layer, which adapters attach to and bitsandbytes quantizes (except the head)."""
    layered: bool
    """It belongs to one of the repeated blocks, and so to a pipeline stage and an FSDP unit of that block."""
    dtype: str | None = field(default=None, compare=False)
    """dtype in which the model creates it, such as ``float32``; None: unknown, because the model was not built."""
    transposed: bool = False
    """Stored (in, out): GPT-2's linear layers."""
    places: tuple[tuple[int, ...], ...] | None = None
    """The numbers for which ``*`` stands in the name, of each tensor; None: not known."""
    quantized: bool | None = None
    """transformers passes it to bitsandbytes; None: the model was not built, and ``linear`` and ``role`` decide."""

    @property
    def elements(self) -> int:
        """Elements of all repeats."""
        return prod(self.shape) * self.repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Buffers of a model with one name and shape."""

    name: str
    """Layer numbers are written as ``*``."""
    shape: tuple[int, ...]
    repeat: int
    dtype: str
    tensor_bytes: int
    """Bytes of one tensor, in the dtype in which the model creates it."""
    persistent: bool
    """Checkpoints contain it."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all repeats."""
        return self.tensor_bytes * self.repeat


@dataclass(frozen=True, kw_only=True)  # not slotted: its count and its hash are cached
class Inventory:
    """All parameters of a model, tied ones once, and the buffers, plans and config of a built model.

    Two inventories are equal if the same memory follows from them; the fields left out of the comparison affect none.
    """

    groups: tuple[ParameterGroup, ...]
    layers: int
    """Repeated blocks, encoder and decoder together."""
    tied_head: bool
    """The output head is the token embedding; it then has no group of its own."""
    count: Literal["exact", "approximate"]
    source: str
    """Source of the count, for people: ``transformers 5.23.0 on the meta device``."""
    family: str | None = None
    """``model_type``; None if the model has none."""
    adapters: tuple[ParameterGroup, ...] | None = None
    """The adapters that peft added for the job; None: predicted from the linear layers."""
    tied: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """Groups of names that share one parameter. Empty, like all fields below, if the model was not built."""
    buffers: tuple[Buffer, ...] = ()
    experts: int = field(default=0, compare=False)
    """Routed experts per layer; their elements have the role ``expert``."""
    tensor_plan: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """The model's own tensor-parallel plan: module names with ``*``, and transformers' style names."""
    no_split: tuple[str, ...] = field(default=(), compare=False)
    """Classes of blocks that sharding wraps as a unit."""
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    """Config of the built model, if it has one."""
    device_map: Mapping[str, int | str] | None = field(default=None, compare=False)
    """The device of each module, as accelerate placed them for a job; None: it was not asked."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.groups, self.layers, self.adapters))

    @cached_property
    def parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(group.elements for group in self.groups)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.total_bytes for buffer in self.buffers)

    def elements(self, role: Role) -> int:
        """Elements of the groups with a role."""
        return sum(group.elements for group in self.groups if group.role == role)


# The role of a parameter, derived from its name, shape and kind: one rule for counted and for built models.


ParameterKind = Literal["linear", "conv1d", "embedding", "norm", "bias", "parameter"]
"""The part that a parameter has in its module. ``conv1d``: GPT-2's linear layer, stored (in, out)."""


@dataclass(frozen=True, slots=True)
class NamedShape:
    """Parameters of one name and shape, without a role."""

    name: str
    """Layer numbers are written as ``*``."""
    shape: tuple[int, ...]
    repeat: int
    kind: ParameterKind
    dtype: str | None = None
    quantized: bool | None = None
    places: tuple[tuple[int, ...], ...] | None = None
    """The numbers for which ``*`` stands, of each tensor; None: not known."""


def linear(name: str, out_size: int, in_size: int, repeat: int, *, bias: bool = False) -> Iterator[NamedShape]:
    """Yield a linear layer's weight, and its bias if it has one."""
    yield NamedShape(f"{name}.weight", (out_size, in_size), repeat, "linear")
    if bias:
        yield NamedShape(f"{name}.bias", (out_size,), repeat, "bias")


def norm(name: str, size: int, repeat: int, *, bias: bool = False) -> Iterator[NamedShape]:
    """Yield a norm's scale, and its shift if it is a layer norm."""
    yield NamedShape(f"{name}.weight", (size,), repeat, "norm")
    if bias:
        yield NamedShape(f"{name}.bias", (size,), repeat, "norm")


_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("router", re.compile(r"\.(gate|router|shared_expert_gate|wg)\.(weight|bias|proj\.weight|scale)$|\.router\.")),
    ("mlp", re.compile(r"\.shared_experts?\.")),
    ("expert", re.compile(r"\.experts?\.")),
    ("attention", re.compile(r"attn|attention|mixer", re.IGNORECASE)),
    (
        "mlp",
        re.compile(r"\.(mlp|ffn|ff|feed_forward|intermediate|output|densereludense|fc\d|w\d)\.|\.fc\d", re.IGNORECASE),
    ),
)
_HEAD = re.compile(
    r"(^|\.)(lm_head|score|classifier|classification_head|qa_outputs|pre_classifier|embed_out|output_projection|cls"
    r"|vocab_transform|vocab_projector|generator_lm_head)\."
)
_ORDER = {"embedding": 0, "other": 1, "head": 4}


def assign_roles(found: Iterable[NamedShape]) -> tuple[ParameterGroup, ...]:
    """Return the groups with their roles, sorted: embeddings, blocks, final norms, head; within these by name."""
    groups = [with_role(group) for group in found]
    return tuple(sorted(groups, key=lambda group: (_order(group), group.name, group.shape)))


def with_role(found: NamedShape) -> ParameterGroup:
    """Return the group with its role, marked if it is a linear layer's weight or part of a repeated block."""
    layered = ".*." in found.name
    return ParameterGroup(
        name=found.name,
        shape=found.shape,
        repeat=found.repeat,
        role=_role(found, layered=layered),
        linear=found.kind in ("linear", "conv1d") and len(found.shape) == 2,
        layered=layered,
        transposed=found.kind == "conv1d",
        dtype=found.dtype,
        quantized=found.quantized,
        places=found.places,
    )


def _role(found: NamedShape, *, layered: bool) -> Role:
    if found.kind == "norm":
        return "norm"
    if not layered:
        if found.kind == "embedding":
            return "embedding"
        return "head" if _HEAD.search(found.name) else "other"
    return next((role for role, pattern in _ROLES if pattern.search(found.name)), "other")


def _order(group: ParameterGroup) -> int:
    if group.layered:
        return 2
    return _ORDER.get(group.role, 3)
