"""The parameters of a model, grouped by name: what weights, gradients, states, adapters and shards are counted from.

Legend of shapes: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

Role = Literal["embedding", "attention", "mlp", "expert", "router", "norm", "head", "other"]
"""What a parameter belongs to. ``embedding``: looked up, not multiplied (tokens, positions, types).
``expert``: routed experts, which expert parallelism splits; shared experts are ``mlp``. ``head``: the task's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters of one name and shape, once per layer."""

    name: str
    """As ``named_parameters`` has it, numbers of layers as ``*``: ``model.layers.*.self_attn.q_proj.weight``."""
    shape: tuple[int, ...]
    """Of one tensor; linear weights are (out, in), fused experts (E, out, in) or (E, in, out)."""
    repeat: int
    """How many tensors have this name and shape."""
    role: Role
    linear: bool
    """The weight of a linear layer: what adapters attach to and what bitsandbytes quantizes (the head excepted)."""
    layered: bool
    """It belongs to one of the repeated blocks, and so to a pipeline stage and an FSDP unit of that block."""
    dtype: str | None = field(default=None, compare=False)
    """As the model itself makes it, such as ``float32``; None: not built, so not known."""
    transposed: bool = False
    """Stored (in, out): GPT-2's linear layers."""
    quantized: bool | None = None
    """transformers hands it to bitsandbytes; None: not built, so told from ``linear`` and ``role``."""

    @property
    def elements(self) -> int:
        """Over all repeats."""
        return prod(self.shape) * self.repeat

    @property
    def is_block_matrix(self) -> bool:
        """True if it is a matrix, or a stack of matrices, in one of the repeated blocks."""
        return self.layered and len(self.shape) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Tensors of a model that are no parameters, of one name and shape."""

    name: str
    """Numbers of layers as ``*``."""
    shape: tuple[int, ...]
    repeat: int
    dtype: str
    tensor_bytes: int
    """Of one tensor, in the type the model itself makes it in."""
    persistent: bool
    """A checkpoint holds it."""

    @property
    def total_bytes(self) -> int:
        """Over all repeats."""
        return self.tensor_bytes * self.repeat


@dataclass(frozen=True, kw_only=True)  # not slotted: its count and its hash are kept
class Inventory:
    """All parameters of a model, tied ones once; and of a built model, what else is in it.

    Two are equal if the same memory follows from them: what is left out of the comparison decides none.
    """

    groups: tuple[ParameterGroup, ...]
    layers: int
    """Repeated blocks, encoder and decoder together."""
    tied_head: bool
    """The output head is the token embedding; it then has no group of its own."""
    count: Literal["exact", "approximate"]
    source: str
    """For people: where the count comes from, such as ``transformers 5.23.0 on the meta device``."""
    family: str | None = None
    """``model_type``; None where the model has none."""
    adapters: tuple[ParameterGroup, ...] | None = None
    """What peft itself put in for the job; None: told by rule from the linear layers."""
    tied: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """Names of one and the same parameter. Empty, as all that follows, where the model was not built."""
    buffers: tuple[Buffer, ...] = ()
    experts: int = field(default=0, compare=False)
    """Routed experts of a layer; their elements are those of the role ``expert``."""
    tensor_plan: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """The model's own tensor-parallel plan: names with ``*``, and transformers' names of styles."""
    no_split: tuple[str, ...] = field(default=(), compare=False)
    """Classes of the blocks that sharding keeps whole."""
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    """Of the built model, where it has one."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.groups, self.layers, self.adapters))

    @cached_property
    def parameters(self) -> int:
        """Every parameter once."""
        return sum(group.elements for group in self.groups)

    @property
    def buffer_bytes(self) -> int:
        """Of all buffers."""
        return sum(buffer.total_bytes for buffer in self.buffers)

    def elements(self, *roles: Role, groups: Iterable[ParameterGroup] | None = None) -> int:
        """Elements of the groups with these roles."""
        return sum(g.elements for g in (self.groups if groups is None else groups) if g.role in roles)
