"""The parts of a block, by the names of its parameters: which input a linear layer reads, and which parts train.

Layers that share an input save it once. By autograd's rules a linear layer saves its input for its weight's
gradient only, and an RMS norm its normalised input for its scale's; what passes gradients on to the block before
(norms, attention, products) saves what it needs for that in any case, unless nothing before it trains.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from ...model.architecture import Architecture
from ...model.rank_share import Stage

LinearInput = Literal["attention_in", "attention_out", "mlp_in", "mlp_out"]
"""A tensor that linear layers of a block read; ``*_out``: the input of the last projection."""
_MODULES: dict[LinearInput, tuple[str, ...]] = {
    "attention_in": (
        *("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv", "q_lin", "k_lin", "v_lin"),
        *("query", "key", "value", "q", "k", "v", "q_a_proj", "kv_a_proj_with_mqa"),
    ),
    "attention_out": ("o_proj", "out_proj", "out_lin", "o"),
    "mlp_in": (
        *("gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "c_fc", "dense_h_to_4h"),
        *("wi", "wi_0", "wi_1", "lin1"),
    ),
    "mlp_out": ("down_proj", "fc2", "fc_out", "dense_4h_to_h", "wo", "lin2"),
}
_INPUTS = {module: name for name, modules in _MODULES.items() for module in modules}
_SECOND_NORMS = (
    "post_attention",
    "pre_feedforward",
    "post_feedforward",
    "ln_2",
    "output.LayerNorm",
    "output_layer_norm",
)


class TrainedParts(Struct, frozen=True, kw_only=True, eq=False):
    """The parts of one block whose own parameters train; by default all."""

    readers: Mapping[LinearInput, int] = MappingProxyType({})
    """Per input: linear layers that read it and train their own weight."""
    unnamed: int = 1
    """Bytes per element of an input that is not among them."""
    norms: float = 1.0
    """Share of the block's norms that train their scales."""
    query_norms: bool = True
    latents: bool = True
    experts: bool = True
    router: bool = True
    attention: bool = True
    """Anything in the half with attention trains."""
    mlp: bool = True
    """Anything in the other half trains."""
    first_norm: bool = True
    """The norm before attention trains."""


ALL_PARTS = TrainedParts()
NO_PARTS = TrainedParts(
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
            if own in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"):
                query_norms = attention = True
            elif own in ("q_a_layernorm", "kv_a_layernorm"):
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


def linear_input_of(parameter: str) -> LinearInput | None:
    """Return the input of the linear layer with that parameter name; None if it belongs to no block."""
    parts = parameter.removesuffix(".weight").split(".")
    last = parts[-1]
    if last == "dense":
        if "intermediate" in parts:
            return "mlp_in"
        return "attention_out" if any(part.endswith(("attention", "attn")) for part in parts) else "mlp_out"
    if last == "c_proj":
        return "mlp_out" if "mlp" in parts else "attention_out"
    return _INPUTS.get(last)
