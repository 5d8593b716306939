"""The parts of a block that train, where some of the model's own parameters are frozen: what each part needs saved.

By autograd's rules a linear layer saves its input for its weight's gradient only, and an RMS norm its normalised input
for its scale's; what passes gradients on to the block before (norms, attention, products) saves what it needs for that
in any case, unless nothing before it trains.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct

from ...model import Architecture, Stage
from .linear_inputs import LinearInput, linear_input_of

_QUERY_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
_LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")
_SECOND_NORMS = (
    "post_attention",
    "pre_feedforward",
    "post_feedforward",
    "ln_2",
    "output.LayerNorm",
    "output_layer_norm",
)


class TrainedParts(Struct, frozen=True, kw_only=True, eq=False):
    """The parts of one block whose own parameters train."""

    readers: Mapping[LinearInput, int]
    """Per input: linear layers that read it and train their own weight."""
    unnamed: int
    """The same for an input that is not among them."""
    norms: float
    """Share of the block's norms that train their scales."""
    query_norms: bool
    latents: bool
    experts: bool
    router: bool
    attention: bool
    """Anything in the half with attention trains."""
    mlp: bool
    """Anything in the other half trains."""
    first_norm: bool
    """The norm before attention trains."""


ALL_PARTS = TrainedParts(
    readers=MappingProxyType({}),
    unnamed=1,
    norms=1.0,
    query_norms=True,
    latents=True,
    experts=True,
    router=True,
    attention=True,
    mlp=True,
    first_norm=True,
)
NO_PARTS = TrainedParts(
    readers=MappingProxyType({}),
    unnamed=0,
    norms=0.0,
    query_norms=False,
    latents=False,
    experts=False,
    router=False,
    attention=False,
    mlp=False,
    first_norm=False,
)


def trained_parts(stage: Stage, arch: Architecture, names: Collection[str]) -> TrainedParts:
    """Return the parts that train, by the names of the groups whose parameters do."""
    readers: dict[LinearInput, set[str]] = {}
    norms: set[str] = set()
    experts = router = attention = mlp = first_norm = query_norms = latents = False
    for held in stage.parameters:
        group = held.group
        if group.name not in names or not group.layered:
            continue
        reads = linear_input_of(group.name.removesuffix(".bias"))
        if reads and group.linear:
            readers.setdefault(reads, set()).add(group.name.removesuffix(".weight").rpartition(".")[2])
        module = group.name.rpartition(".")[0]
        own = module.rpartition(".")[2]
        if group.role == "norm":
            if own in _QUERY_NORMS:
                query_norms = attention = True
            elif own in _LATENT_NORMS:
                latents = attention = True
            else:
                norms.add(module)
                second = any(name in module for name in _SECOND_NORMS)
                first_norm |= not second
                mlp |= second
        experts |= group.role == "expert"
        router |= group.role == "router"
        mlp |= group.role in ("mlp", "expert", "router")
        attention |= group.role == "attention"
    return TrainedParts(
        readers={name: len(modules) for name, modules in readers.items()},
        unnamed=0,
        norms=min(1.0, len(norms) / max(1, arch.norms_per_layer)),
        query_norms=query_norms,
        latents=latents,
        experts=experts,
        router=router,
        attention=attention or first_norm,
        mlp=mlp,
        first_norm=first_norm,
    )
