"""The record of a model family: config defaults, parameter names, task heads, and block rules."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from ...job.settings import Task
from ..architecture import Architecture, BlockRules
from ..parameter_roles import NamedShape
from .task_heads import TaskHeads

Body = Callable[[Architecture, "Family", str], Iterator[NamedShape]]
"""Yields the parameters of a model without its head, each name after a prefix."""
DECODER_TASKS: tuple[Task, ...] = (
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
)


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A model family, as ``model_type`` names it."""

    body: Body
    prefix: str = "model"
    """Module name of the body in a model with a head."""
    qa_prefix: str | None = None
    """Module name of the body in the question-answering model, if it differs."""
    tasks: tuple[Task, ...] = DECODER_TASKS
    """Supported tasks; the first is the usual one."""
    without_head: tuple[Task, ...] = ()
    """Tasks for which transformers 5 has no class of this family: their head is assumed to be an ordinary one."""
    heads: TaskHeads = TaskHeads()
    rules: BlockRules = msgspec.field(default_factory=BlockRules)

    # --- config
    marker_field: str | None = None
    """Config field that identifies the family, or its nearest relative, where ``model_type`` is missing."""
    absent: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """Values of fields that a config does not mention."""
    field_names: Mapping[str, str] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """The family's own names of config fields, by the name that other families have for the same."""
    stack: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    tied: bool = False
    """The default of ``tie_word_embeddings``."""
    norm: Literal["rms", "layer"] = "rms"
    block_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Norms of a block over the hidden size."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norms on queries and keys: per head, or over all heads."""
    gated: bool = True
    activation: str = "silu"
    reads_activation: bool = True
    """The family's code reads the field of the activation; otherwise it has its own, whatever the config has."""
    feed_forward_proj: str | None = None
    """Default of the field in which the config names activation and gating; None: it has fields of their own."""
    mlp_ratio: int | None = None
    """MLP size over hidden size if the config states none; None: the config must state the MLP size."""
    mlp: str = "mlp"
    """Module name of a block's MLP, or of its experts with their router."""
    bias_fields: tuple[str, ...] = ()
    """Fields that the family's code reads, of ``attention_bias``, ``mlp_bias`` and ``qkv_bias``."""
    qkv_bias: bool = False
    """Queries, keys and values have a bias unless a field states otherwise."""
    output_bias: bool = False
    """The attention's output projection has a bias unless a field states otherwise."""
    mlp_bias: bool = False
    dropout: float = 0.0
    """Dropout of hidden states and attention probabilities unless a field states otherwise."""
    multi_query: bool = False
    """All heads share one key and value unless its config says otherwise."""
    reads_kv_heads: bool = True
    """The family's code reads ``num_key_value_heads``; otherwise every head has its own keys and values."""
    reads_head_dim: bool = True
    """The family's code reads ``head_dim``; otherwise it is the hidden size over the heads, whatever the config has."""
    parallel_residual: Literal["never", "always", "by config"] = "never"
    """Attention and MLP read the same input; ``by config``: unless ``use_parallel_residual`` is false."""
    full_attention_every: int | None = None
    """Every n-th layer attends to the whole sequence, the others to a sliding window."""
    window_off_by_default: bool = False
    """Layers have a sliding window only if ``use_sliding_window`` is true."""
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    learned_positions: int = 0
    """Rows of the learned position embedding if the config states none; 0: positions are rotary or relative."""
    token_types: int = 0
    """Rows of the token type embedding if the config states none; 0: there is no such embedding."""
    relative_positions: bool = False
    """Attention adds T5's learned bias for relative positions."""

    # --- mixtures of experts
    experts: bool = True
    """The config may have experts."""
    router: str = "gate"
    """Module name of the router."""
    router_bias: bool = False
    shared_expert: str = "shared_experts"
    """Module name of the shared experts, which are one MLP."""
    shared_expert_gate: bool = False
    """The shared expert is weighted by a gate of its own."""
    expert_names: tuple[str, str, str] | None = None
    """Names of an expert's gate, up and down projection in checkpoints; transformers 5 fuses them.

    peft accepts these names for the fused tensors; None: it does not.
    """
    linear_expert_names: tuple[str, str, str] | None = None
    """Names of an expert's linear layers in transformers 4; None: ``expert_names``, if there are any."""

    @property
    def separate_expert_names(self) -> tuple[str, str, str] | None:
        """Names of an expert's linear layers in transformers 4; None: its experts were fused there too."""
        return self.linear_expert_names or self.expert_names
