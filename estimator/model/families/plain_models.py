"""Decoders that scripts build of torch's layers: GPT-2's block with plain linear layers, biases or none, other heads.

They have no class in transformers; the reader of scripts finds their sizes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..architecture import Architecture
from ..parameter_roles import NamedShape, linear, norm
from .family import Family


def plain_gpt_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of nanoGPT's block: fused queries, keys and values, an MLP without gate, layer norms."""
    block, layers, hidden = f"{prefix}h.*.", arch.layers, arch.hidden
    yield NamedShape(f"{prefix}wte.weight", (arch.vocab, hidden), 1, "embedding")
    if arch.positions:
        yield NamedShape(f"{prefix}wpe.weight", (arch.positions, hidden), 1, "embedding")
    fused = arch.query_size + arch.key_size + arch.value_size
    yield from linear(f"{block}attn.c_attn", fused, hidden, layers, bias=arch.qkv_bias)
    yield from linear(f"{block}attn.c_proj", hidden, arch.attention_output_size, layers, bias=arch.output_bias)
    yield from linear(f"{block}mlp.c_fc", arch.mlp_size, hidden, layers, bias=arch.mlp_bias)
    yield from linear(f"{block}mlp.c_proj", hidden, arch.mlp_size, layers, bias=arch.mlp_bias)
    for name in family.block_norms:
        yield from norm(block + name, hidden, layers, bias=arch.mlp_bias)
    yield from norm(f"{prefix}ln_f", hidden, 1, bias=arch.mlp_bias)


_WITH_POSITIONS = Family(
    body=plain_gpt_body,
    prefix="transformer",
    tasks=("causal-lm",),
    in_transformers=False,
    norm="layer",
    block_norms=("ln_1", "ln_2"),
    gated=False,
    activation="gelu",
    bias_fields=("attention_bias", "mlp_bias"),
    mlp_ratio=4,
    learned_positions=1024,
    tied=True,
    experts=False,
)
PLAIN_MODELS: Mapping[str, Family] = {
    "plain-gpt": _WITH_POSITIONS,
    "plain-gpt-rotary": replace(_WITH_POSITIONS, learned_positions=0),
}
"""By the ``model_type`` that the reader of scripts gives them."""
