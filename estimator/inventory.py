"""The parameters of a model, grouped by name: what weights, gradients, states, adapters and shards are counted from.

Legend of shapes: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

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

    @property
    def elements(self) -> int:
        """Over all repeats."""
        return prod(self.shape) * self.repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All parameters of a model, tied ones once."""

    groups: tuple[ParameterGroup, ...]
    layers: int
    """Repeated blocks, encoder and decoder together."""
    tied_head: bool
    """The output head is the token embedding; it then has no group of its own."""
    count: Literal["exact", "approximate"]
    source: str
    """For people: where the count comes from, such as ``transformers 5.23.0 on the meta device``."""

    @property
    def parameters(self) -> int:
        """Every parameter once."""
        return sum(group.elements for group in self.groups)

    def elements(self, *roles: Role, groups: Iterable[ParameterGroup] | None = None) -> int:
        """Elements of the groups with these roles."""
        return sum(g.elements for g in (self.groups if groups is None else groups) if g.role in roles)
