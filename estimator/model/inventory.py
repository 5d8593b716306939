"""The parameters of a model, grouped by name: the basis of weights, gradients, optimizer states, adapters and shards.

Legend of shapes: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

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
    """Buffers of a model with one name and size."""

    name: str
    """Layer numbers are written as ``*``."""
    repeat: int
    tensor_bytes: int
    """Bytes of one tensor, in the dtype in which the model creates it."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all repeats."""
        return self.tensor_bytes * self.repeat


@dataclass(frozen=True, kw_only=True)  # not slotted: its count and its hash are cached
class Inventory:
    """All parameters of a model, tied ones once, and the buffers and config of a built model.

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
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    """Config of the built model, if it has one."""

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
