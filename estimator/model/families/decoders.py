"""Decoder families: their parameters as transformers 5 names them, and a row for each dense one.

Every function yields the parameters of a whole model without its head. Linear weights are (out, in).

Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
models that transformers builds.
"""

from collections.abc import Iterator, Mapping

from ...common.records import replace
from ...job.settings import Task
from ..architecture import Architecture, BlockRules
from ..parameter_roles import NamedShape, linear, norm
from .family import Body, Family
from .task_heads import TaskHeads


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
    if arch.positions:
        yield NamedShape(f"{prefix}embed_positions.weight", (arch.positions, arch.hidden), 1, "embedding")
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


def fused_body(qkv: str, output: str, up: str, down: str) -> Body:
    """Return a body with the parameters of ``plain_gpt_body`` whose linear layers have names of their own."""
    names = {"attn.c_attn": qkv, "attn.c_proj": output, "mlp.c_fc": up, "mlp.c_proj": down}

    def body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
        for each in plain_gpt_body(arch, family, prefix):
            old = next((old for old in names if f".{old}." in each.name), None)
            yield each if old is None else replace(each, name=each.name.replace(old, names[old]))

    return body


def gpt2_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of GPT-2, whose linear layers are stored (in, out)."""
    for each in plain_gpt_body(arch, family, prefix):
        yield replace(each, shape=each.shape[::-1], kind="conv1d") if each.kind == "linear" else each


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


NO_QA: tuple[Task, ...] = ("question-answering",)
NO_QA_OR_TOKENS: tuple[Task, ...] = ("question-answering", "token-classification")
FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
LLAMA_LIKE = Family(body=llama_body)
"""A decoder with Llama's block: the base of most families, and the record of an unknown ``model_type``."""
_GEMMA = replace(
    LLAMA_LIKE,
    tied=True,
    activation="gelu_pytorch_tanh",
    bias_fields=("attention_bias",),
    without_head=NO_QA,
    rules=BlockRules(fp32_norm_scale=True),
    absent={"num_key_value_heads": 16, "head_dim": 256},
)
_LAYER_NORM_DECODER = Family(
    body=gpt2_body,
    norm="layer",
    gated=False,
    activation="gelu_new",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    reads_head_dim=False,
    experts=False,
)
_OLMO_2 = replace(
    LLAMA_LIKE,
    block_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    qk_norm="full",
    bias_fields=("attention_bias",),
    without_head=NO_QA_OR_TOKENS,
    rules=BlockRules(fp32_norm_scale=True, gathers_attention=True),
)
DECODERS: Mapping[str, Family] = {
    "llama": replace(
        LLAMA_LIKE, qa_prefix="transformer", bias_fields=("attention_bias", "mlp_bias"), marker_field="rms_norm_eps"
    ),
    "mistral": replace(LLAMA_LIKE, absent={"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": replace(
        LLAMA_LIKE,
        qa_prefix="transformer",
        qkv_bias=True,
        window_off_by_default=True,
        absent={"num_key_value_heads": 32, "max_window_layers": 28},
    ),
    "qwen3": replace(
        LLAMA_LIKE,
        qa_prefix="transformer",
        qk_norm="head",
        bias_fields=("attention_bias",),
        window_off_by_default=True,
        absent={"num_key_value_heads": 32, "head_dim": 128},
    ),
    "gemma": _GEMMA,
    "gemma2": replace(
        _GEMMA,
        block_norms=FOUR_NORMS,
        full_attention_every=2,
        logit_softcap=30.0,
        attention_softcap=50.0,
        rules=BlockRules(fp32_norm_scale=True, supports_sdpa=False),
        absent={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    ),
    "gemma3_text": replace(
        _GEMMA,
        block_norms=FOUR_NORMS,
        qk_norm="head",
        without_head=NO_QA_OR_TOKENS,
        full_attention_every=6,
        absent={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262208,
        },
    ),
    "olmo2": _OLMO_2,
    "olmo3": replace(_OLMO_2, full_attention_every=4, absent={"sliding_window": 4096}),
    "phi": replace(
        _LAYER_NORM_DECODER,
        body=phi_body,
        block_norms=("input_layernorm",),
        parallel_residual="always",
        without_head=NO_QA,
        heads=TaskHeads(lm_head_bias=True),
        rules=BlockRules(copies_attention_output=True),
    ),
    "phi3": replace(
        LLAMA_LIKE,
        body=phi3_body,
        reads_head_dim=False,
        experts=False,
        without_head=NO_QA,
        rules=BlockRules(fused_qkv_views=True, copies_attention_output=True, gathers_attention=True, gathers_mlp=True),
    ),
    "gpt2": replace(
        _LAYER_NORM_DECODER,
        prefix="transformer",
        tied=True,
        block_norms=("ln_1", "ln_2"),
        marker_field="n_embd",
        mlp_ratio=4,
        dropout=0.1,
        reads_kv_heads=False,
        learned_positions=1024,
        heads=TaskHeads(tokens_classifier="classifier"),
        rules=BlockRules(softmax_in_score_dtype=True),
    ),
    "gpt_neox": replace(
        _LAYER_NORM_DECODER,
        body=gpt_neox_body,
        prefix="gpt_neox",
        activation="gelu",
        bias_fields=("attention_bias",),
        reads_kv_heads=False,
        parallel_residual="by config",
        heads=TaskHeads(tokens_classifier="classifier"),
        rules=BlockRules(fused_qkv_views=True, copies_attention_output=True),
    ),
}
_WITH_POSITIONS = Family(
    body=plain_gpt_body,
    prefix="transformer",
    tasks=("causal-lm",),
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
"""Decoders that scripts build of torch's layers, by the ``model_type`` that the reader of scripts gives them.

They have no class in transformers; the reader of scripts finds their sizes.
"""
