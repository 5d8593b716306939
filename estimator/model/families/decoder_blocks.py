"""Parameters of decoders as transformers 5 names them: Llama-like blocks, MoE, latent attention, Phi, GPT.

Every function yields the parameters of a whole model without its head. Linear weights are (out, in).
"""

from collections.abc import Iterator

from ..architecture import Architecture
from ..parameter_roles import NamedShape, linear, norm
from .family import Family


def llama_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield embedding, blocks and final norm of Llama-like decoders, including MoE and latent attention."""
    block = f"{prefix}layers.*."
    yield NamedShape(f"{prefix}embed_tokens.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from _latent_attention(arch, block) if arch.kv_lora_rank else _attention(arch, block)
    if arch.rules.attention_sinks:
        yield NamedShape(f"{block}self_attn.sinks", (arch.heads,), arch.layers, "parameter")
    if arch.dense_layers:
        yield from _gated_mlp(f"{block}{family.mlp}.", arch, arch.mlp_size, arch.dense_layers)
    if arch.moe_layers:
        yield from _moe(arch, family, f"{block}{family.mlp}.")
    for name in family.block_norms:
        yield from norm(block + name, arch.hidden, arch.layers)
    yield from norm(f"{prefix}norm", arch.hidden, 1)


def phi3_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of Phi-3: Llama's block with fused projections."""
    block, layers = f"{prefix}layers.*.", arch.layers
    fused = arch.query_size + arch.key_size + arch.value_size
    yield NamedShape(f"{prefix}embed_tokens.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from linear(f"{block}self_attn.qkv_proj", fused, arch.hidden, layers)
    yield from linear(f"{block}self_attn.o_proj", arch.hidden, arch.attention_output_size, layers)
    yield from linear(f"{block}mlp.gate_up_proj", 2 * arch.mlp_size, arch.hidden, layers)
    yield from linear(f"{block}mlp.down_proj", arch.hidden, arch.mlp_size, layers)
    for name in family.block_norms:
        yield from norm(block + name, arch.hidden, layers)
    yield from norm(f"{prefix}norm", arch.hidden, 1)


def phi_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of Phi-1 and Phi-2: attention and MLP in parallel after one layer norm, all with biases."""
    block, layers = f"{prefix}layers.*.", arch.layers
    yield NamedShape(f"{prefix}embed_tokens.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from linear(f"{block}self_attn.q_proj", arch.query_size, arch.hidden, layers, bias=True)
    yield from linear(f"{block}self_attn.k_proj", arch.key_size, arch.hidden, layers, bias=True)
    yield from linear(f"{block}self_attn.v_proj", arch.value_size, arch.hidden, layers, bias=True)
    yield from linear(f"{block}self_attn.dense", arch.hidden, arch.attention_output_size, layers, bias=True)
    if arch.qk_norm == "head":
        for name in ("q_layernorm", "k_layernorm"):
            yield from norm(f"{block}self_attn.{name}", arch.head_dim, layers, bias=True)
    yield from linear(f"{block}mlp.fc1", arch.mlp_size, arch.hidden, layers, bias=True)
    yield from linear(f"{block}mlp.fc2", arch.hidden, arch.mlp_size, layers, bias=True)
    for name in family.block_norms:
        yield from norm(block + name, arch.hidden, layers, bias=True)
    yield from norm(f"{prefix}final_layernorm", arch.hidden, 1, bias=True)


def gpt_neox_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of GPT-NeoX and Pythia: fused query, key and value; layer norms."""
    block, layers = f"{prefix}layers.*.", arch.layers
    yield NamedShape(f"{prefix}embed_in.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from linear(f"{block}attention.query_key_value", 3 * arch.hidden, arch.hidden, layers, bias=arch.qkv_bias)
    yield from linear(f"{block}attention.dense", arch.hidden, arch.hidden, layers, bias=arch.output_bias)
    yield from linear(f"{block}mlp.dense_h_to_4h", arch.mlp_size, arch.hidden, layers, bias=True)
    yield from linear(f"{block}mlp.dense_4h_to_h", arch.hidden, arch.mlp_size, layers, bias=True)
    for name in family.block_norms:
        yield from norm(block + name, arch.hidden, layers, bias=True)
    yield from norm(f"{prefix}final_layer_norm", arch.hidden, 1, bias=True)


def gpt2_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of GPT-2, whose linear layers are stored (in, out)."""
    block, layers, hidden = f"{prefix}h.*.", arch.layers, arch.hidden
    yield NamedShape(f"{prefix}wte.weight", (arch.vocab, hidden), 1, "embedding")
    yield NamedShape(f"{prefix}wpe.weight", (arch.positions, hidden), 1, "embedding")
    for name, in_size, out_size in (
        ("attn.c_attn", hidden, 3 * hidden),
        ("attn.c_proj", hidden, hidden),
        ("mlp.c_fc", hidden, arch.mlp_size),
        ("mlp.c_proj", arch.mlp_size, hidden),
    ):
        yield NamedShape(f"{block}{name}.weight", (in_size, out_size), layers, "conv1d")
        yield NamedShape(f"{block}{name}.bias", (out_size,), layers, "bias")
    for name in family.block_norms:
        yield from norm(block + name, hidden, layers, bias=True)
    yield from norm(f"{prefix}ln_f", hidden, 1, bias=True)


def _attention(arch: Architecture, block: str) -> Iterator[NamedShape]:
    attn, layers = f"{block}self_attn.", arch.layers
    yield from linear(f"{attn}q_proj", arch.query_size, arch.hidden, layers, bias=arch.qkv_bias)
    yield from linear(f"{attn}k_proj", arch.key_size, arch.hidden, layers, bias=arch.qkv_bias)
    yield from linear(f"{attn}v_proj", arch.value_size, arch.hidden, layers, bias=arch.qkv_bias)
    yield from linear(f"{attn}o_proj", arch.hidden, arch.attention_output_size, layers, bias=arch.output_bias)
    if arch.qk_norm != "none":
        whole = arch.qk_norm == "full"
        yield from norm(f"{attn}q_norm", arch.query_size if whole else arch.head_dim, layers)
        yield from norm(f"{attn}k_norm", arch.key_size if whole else arch.head_dim, layers)


def _latent_attention(arch: Architecture, block: str) -> Iterator[NamedShape]:
    attn, layers, bias = f"{block}self_attn.", arch.layers, arch.qkv_bias
    rank = arch.kv_lora_rank or 0
    if arch.q_lora_rank:
        yield from linear(f"{attn}q_a_proj", arch.q_lora_rank, arch.hidden, layers, bias=bias)
        yield from norm(f"{attn}q_a_layernorm", arch.q_lora_rank, layers)
        yield from linear(f"{attn}q_b_proj", arch.query_size, arch.q_lora_rank, layers)
    else:
        yield from linear(f"{attn}q_proj", arch.query_size, arch.hidden, layers)
    yield from linear(f"{attn}kv_a_proj_with_mqa", rank + arch.rope_head_dim, arch.hidden, layers, bias=bias)
    yield from norm(f"{attn}kv_a_layernorm", rank, layers)
    unrotated = arch.heads * (arch.head_dim - arch.rope_head_dim)
    yield from linear(f"{attn}kv_b_proj", unrotated + arch.value_size, rank, layers)
    yield from linear(f"{attn}o_proj", arch.hidden, arch.attention_output_size, layers, bias=bias)


def _gated_mlp(prefix: str, arch: Architecture, size: int, repeat: int) -> Iterator[NamedShape]:
    yield from linear(f"{prefix}gate_proj", size, arch.hidden, repeat, bias=arch.mlp_bias)
    yield from linear(f"{prefix}up_proj", size, arch.hidden, repeat, bias=arch.mlp_bias)
    yield from linear(f"{prefix}down_proj", arch.hidden, size, repeat, bias=arch.mlp_bias)


def _moe(arch: Architecture, family: Family, mlp: str) -> Iterator[NamedShape]:
    """Yield router, routed experts (fused into one tensor per projection) and shared experts."""
    layers, experts, size = arch.moe_layers, arch.experts, arch.expert_mlp_size
    router = f"{mlp}{family.router}"
    if arch.rules.every_expert:  # llama4's router is a linear layer
        yield from linear(router, experts, arch.hidden, layers)
    else:
        yield NamedShape(f"{router}.weight", (experts, arch.hidden), layers, "parameter")
    if family.router_bias:
        yield NamedShape(f"{router}.bias", (experts,), layers, "parameter")
    up, down = (2 * size, arch.hidden), (arch.hidden, size)
    if arch.rules.expert_bias or arch.rules.every_expert:  # gpt_oss and llama4 store them (in, out)
        up, down = (up[1], up[0]), (down[1], down[0])
    if arch.rules.expert_bias:
        yield NamedShape(f"{mlp}experts.gate_up_proj_bias", (experts, 2 * size), layers, "parameter")
        yield NamedShape(f"{mlp}experts.down_proj_bias", (experts, arch.hidden), layers, "parameter")
    yield NamedShape(f"{mlp}experts.gate_up_proj", (experts, *up), layers, "parameter")
    yield NamedShape(f"{mlp}experts.down_proj", (experts, *down), layers, "parameter")
    if arch.shared_mlp_size:
        yield from _gated_mlp(f"{mlp}{family.shared_expert}.", arch, arch.shared_mlp_size, layers)
        if family.shared_expert_gate:
            yield from linear(f"{mlp}shared_expert_gate", 1, arch.hidden, layers)
