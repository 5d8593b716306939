"""Model families: for each ``model_type`` a record of what its config leaves unstated and how its blocks use memory."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from ..common.records import replace
from ..job.settings import Task
from .architecture import Architecture, BlockRules, NamedShape, linear, norm

# The record that describes a model family: config defaults, parameter names, task heads, and block rules.


Body = Callable[[Architecture, "Family", str], Iterator[NamedShape]]
"""Yields the parameters of a model without its head, each name after a prefix."""

DECODER_TASKS: tuple[Task, ...] = (
    "causal-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
)


class MaskedLmHead(msgspec.Struct, frozen=True, kw_only=True):
    """Module names of a masked language model's head."""

    transform: str
    norm: str
    output: str
    output_is_linear: bool = False
    """The output module is the linear layer itself; otherwise it holds one named ``decoder`` and a bias of its own."""


class TaskHeads(msgspec.Struct, frozen=True, kw_only=True):
    """Names and shapes of the task heads that a family puts on top of its body."""

    without_prefix: tuple[Task, ...] = ("feature-extraction",)
    """Tasks whose model is the body itself, so that its parameters have no prefix."""
    lm_head_bias: bool = False
    masked_lm: MaskedLmHead | None = None
    """The language-model head of an encoder; None: ``lm_head``, a single linear layer."""
    sequence_classifier: tuple[str, ...] = ("score",)
    """Linear layers of the sequence classifier: the last gives the labels, those before it keep the hidden size."""
    sequence_classifier_bias: bool = False
    tokens_classifier: str = "score"
    """The linear layer of the token classifier."""
    answers_are_labels: bool = False
    """The question-answering head has ``num_labels`` outputs; otherwise two, the start and the end of the answer."""
    pooled: tuple[Task, ...] = ()
    """Tasks whose model has BERT's pooler."""


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
    in_transformers: bool = True
    """transformers has classes of this family; False: scripts build it themselves."""
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
    feed_forward_proj: bool = False
    """The config names activation and gating in one field, ``feed_forward_proj``."""
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


# Parameters of decoders as transformers 5 names them: Llama-like blocks, MoE, latent attention, Phi, GPT.
#
# Every function yields the parameters of a whole model without its head. Linear weights are (out, in).


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


# Rows of the dense decoder families.
#
# Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
# models that transformers builds.


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
    "olmo2": replace(
        LLAMA_LIKE,
        block_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="full",
        bias_fields=("attention_bias",),
        without_head=NO_QA_OR_TOKENS,
        rules=BlockRules(fp32_norm_scale=True, gathers_attention=True),
    ),
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


# Parameters of encoders and of T5 as transformers 5 names them.
#
# Every function yields the parameters of a whole model without its head. Linear weights are (out, in).


def bert_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of BERT and RoBERTa: embeddings, blocks, and the pooler if the task's model has one."""
    attention = ("self.query", "self.key", "self.value", "output.dense")
    mlp = ("intermediate.dense", "output.dense")
    yield from _encoder(arch, family, prefix, block="encoder.layer.*.", attention=attention, mlp=mlp)
    if arch.task in family.heads.pooled:
        yield from linear(f"{prefix}pooler.dense", arch.hidden, arch.hidden, 1, bias=True)


def distilbert_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of DistilBERT: BERT's block under other names."""
    attention, mlp = ("q_lin", "k_lin", "v_lin", "out_lin"), ("ffn.lin1", "ffn.lin2")
    yield from _encoder(arch, family, prefix, block="transformer.layer.*.", attention=attention, mlp=mlp)


def _encoder(
    arch: Architecture,
    family: Family,
    prefix: str,
    *,
    block: str,
    attention: tuple[str, ...],
    mlp: tuple[str, str],
) -> Iterator[NamedShape]:
    """Yield embeddings and blocks of an encoder with learned positions, layer norms and biases."""
    embeddings, block, layers, hidden = f"{prefix}embeddings.", f"{prefix}{block}", arch.layers, arch.hidden
    tables = {"word": arch.vocab, "position": arch.positions, "token_type": arch.token_types}
    for name, rows in tables.items():
        if rows:
            yield NamedShape(f"{embeddings}{name}_embeddings.weight", (rows, hidden), 1, "embedding")
    yield from norm(f"{embeddings}LayerNorm", hidden, 1, bias=True)
    for name in attention:
        yield from linear(f"{block}attention.{name}", hidden, hidden, layers, bias=True)
    yield from linear(f"{block}{mlp[0]}", arch.mlp_size, hidden, layers, bias=True)
    yield from linear(f"{block}{mlp[1]}", hidden, arch.mlp_size, layers, bias=True)
    for name in family.block_norms:
        yield from norm(block + name, hidden, layers, bias=True)


def t5_body(arch: Architecture, _family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of T5: relative positions in each stack's first block, RMS norms, no biases."""
    yield NamedShape(f"{prefix}shared.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from _t5_stack(arch, f"{prefix}encoder.", arch.encoder_layers, cross=False)
    if arch.decoder_layers:
        yield from _t5_stack(arch, f"{prefix}decoder.", arch.decoder_layers, cross=True)


def _t5_stack(arch: Architecture, prefix: str, layers: int, *, cross: bool) -> Iterator[NamedShape]:
    part = f"{prefix}block.*.layer.*."
    for attention in ("SelfAttention", "EncDecAttention") if cross else ("SelfAttention",):
        for name in ("q", "k", "v"):
            yield from linear(f"{part}{attention}.{name}", arch.query_size, arch.hidden, layers)
        yield from linear(f"{part}{attention}.o", arch.hidden, arch.query_size, layers)
    bias_shape = (arch.relative_buckets, arch.heads)
    yield NamedShape(f"{part}SelfAttention.relative_attention_bias.weight", bias_shape, 1, "embedding")
    for name in ("wi_0", "wi_1") if arch.gated else ("wi",):
        yield from linear(f"{part}DenseReluDense.{name}", arch.mlp_size, arch.hidden, layers)
    # transformers keeps it in its own type (``_keep_in_fp32_modules``)
    out = f"{part}DenseReluDense.wo.weight"
    yield NamedShape(out, (arch.hidden, arch.mlp_size), layers, "linear", quantized=False)
    yield from norm(f"{part}layer_norm", arch.hidden, (3 if cross else 2) * layers)
    yield from norm(f"{prefix}final_layer_norm", arch.hidden, 1)


# Rows of the encoder families and of T5.
#
# Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
# models that transformers builds.


_ENCODER_TASKS: tuple[Task, ...] = ("masked-lm", *DECODER_TASKS)
_T5_TASKS: tuple[Task, ...] = ("seq2seq-lm", *DECODER_TASKS[1:])
_BERT_HEADS = TaskHeads(
    masked_lm=MaskedLmHead(
        transform="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        output="cls.predictions",
    ),
    sequence_classifier=("classifier",),
    sequence_classifier_bias=True,
    tokens_classifier="classifier",
    answers_are_labels=True,
    pooled=("feature-extraction", "sequence-classification"),
)
_BERT = Family(
    body=bert_body,
    prefix="bert",
    tasks=_ENCODER_TASKS,
    heads=_BERT_HEADS,
    rules=BlockRules(softmax_in_score_dtype=True),
    stack="encoder",
    tied=True,
    norm="layer",
    block_norms=("attention.output.LayerNorm", "output.LayerNorm"),
    gated=False,
    activation="gelu",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    dropout=0.1,
    reads_kv_heads=False,
    reads_head_dim=False,
    experts=False,
    learned_positions=512,
    token_types=2,
)

ENCODERS: Mapping[str, Family] = {
    "bert": replace(_BERT, marker_field="type_vocab_size"),
    "roberta": replace(
        _BERT,
        prefix="roberta",
        heads=replace(
            _BERT_HEADS,
            masked_lm=MaskedLmHead(transform="lm_head.dense", norm="lm_head.layer_norm", output="lm_head"),
            sequence_classifier=("classifier.dense", "classifier.out_proj"),
            pooled=("feature-extraction",),
        ),
    ),
    "distilbert": replace(
        _BERT,
        body=distilbert_body,
        prefix="distilbert",
        tasks=tuple(task for task in _ENCODER_TASKS if task != "causal-lm"),
        block_norms=("sa_layer_norm", "output_layer_norm"),
        token_types=0,
        heads=replace(
            _BERT_HEADS,
            masked_lm=MaskedLmHead(
                transform="vocab_transform", norm="vocab_layer_norm", output="vocab_projector", output_is_linear=True
            ),
            sequence_classifier=("pre_classifier", "classifier"),
            pooled=(),
        ),
    ),
    "t5": Family(
        body=t5_body,
        prefix="transformer",
        tasks=_T5_TASKS,
        heads=TaskHeads(
            without_prefix=("feature-extraction", "seq2seq-lm", "question-answering"),
            sequence_classifier=("classification_head.dense", "classification_head.out_proj"),
            sequence_classifier_bias=True,
            tokens_classifier="classifier",
            answers_are_labels=True,
        ),
        rules=BlockRules(softmax_in_score_dtype=True),
        marker_field="d_kv",
        stack="encoder-decoder",
        tied=True,
        gated=False,
        activation="relu",
        feed_forward_proj=True,
        dropout=0.1,
        reads_kv_heads=False,
        experts=False,
        relative_positions=True,
    ),
}


# Rows of the mixture-of-experts families, and names of the experts of families that are not known otherwise.
#
# Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
# models that transformers builds. Expert names: peft 0.21, ``utils/transformers_weight_conversion.py``.


_GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
_FUSED = replace(LLAMA_LIKE, expert_names=_GATE_UP_DOWN)
_DEEPSEEK = replace(
    _FUSED, bias_fields=("attention_bias",), rules=BlockRules(copies_attention_output=True, fp32_routing=True)
)
_DEEPSEEK_ABSENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

MIXTURES = {
    "mixtral": replace(
        LLAMA_LIKE,
        expert_names=("w1", "w3", "w2"),
        rules=BlockRules(fp32_routing=True),
        absent={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": replace(
        LLAMA_LIKE,
        qkv_bias=True,
        bias_fields=("qkv_bias",),
        window_off_by_default=True,
        shared_expert="shared_expert",
        shared_expert_gate=True,
        linear_expert_names=_GATE_UP_DOWN,
        absent={
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "qwen3_moe": replace(
        _FUSED,
        qa_prefix="transformer",
        qk_norm="head",
        bias_fields=("attention_bias",),
        window_off_by_default=True,
        absent={
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "gpt_oss": replace(
        LLAMA_LIKE,
        qkv_bias=True,
        output_bias=True,
        bias_fields=("attention_bias",),
        router="router",
        router_bias=True,
        without_head=NO_QA,
        full_attention_every=2,
        rules=BlockRules(supports_sdpa=False, attention_sinks=True, fp32_norm_scale=True, expert_bias=True),
        absent={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
        },
    ),
    "llama4_text": replace(
        LLAMA_LIKE,
        mlp="feed_forward",
        router="router",
        shared_expert="shared_expert",
        without_head=("sequence-classification", *NO_QA_OR_TOKENS),
        rules=BlockRules(every_expert=True),
        field_names={
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "intermediate_size",
            "intermediate_size": "intermediate_size_mlp",
        },
        absent={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size": 16384,
        },
    ),
    "deepseek_v2": replace(
        _DEEPSEEK,
        bias_fields=("attention_bias", "mlp_bias"),
        without_head=NO_QA_OR_TOKENS,
        absent={
            **_DEEPSEEK_ABSENT,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1407,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek_v3": replace(
        _DEEPSEEK,
        without_head=NO_QA,
        absent={
            **_DEEPSEEK_ABSENT,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
        },
    ),
}

_QWEN3 = ("qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_text", "qwen3_omni_moe_thinker")
_OTHERS = (
    "afmoe",
    "cohere2_moe",
    "deepseek_v32",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm_moe_dsa",
    "hunyuan_v1_moe",
    "longcat_flash",
    "minimax",
    "minimax_m2",
    "olmoe",
    "solar_open",
)
WITH_EXPERT_NAMES = {
    **dict.fromkeys(_QWEN3, replace(_FUSED, window_off_by_default=True)),
    **dict.fromkeys(_OTHERS, _FUSED),
}
"""Families of which only the names of their experts are known; the rest is read as Llama's."""


# Decoders that scripts build of torch's layers: GPT-2's block with plain linear layers, biases or none, other heads.
#
# They have no class in transformers; the reader of scripts finds their sizes.


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


# The registry of model families by ``model_type``.
#
# A family is added by one row in ``DECODERS``, ``MIXTURES`` or ``ENCODERS``; a block that no other family has needs its
# own body function, like ``llama_body``.


FAMILIES: dict[str, Family] = {**DECODERS, **MIXTURES, **ENCODERS, **PLAIN_MODELS}
"""The families whose parameters are counted exactly; of two marker fields in a config the later family's counts."""
GENERIC = LLAMA_LIKE
"""The record of an unknown ``model_type``: a decoder like Llama's."""
_RELATIVES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen": replace(GENERIC, window_off_by_default=True),
        **dict.fromkeys(("gemma", "olmo2", "gpt_oss"), replace(GENERIC, rules=BlockRules(fp32_norm_scale=True))),
    }
)
"""Rules of unknown families by the beginning of their name, which they share with a known one."""


def family_of(model_type: str | None) -> Family:
    """Return the record of a family; an unknown one is read as a decoder like Llama's."""
    name = model_type or ""
    family = FAMILIES.get(name) or WITH_EXPERT_NAMES.get(name)
    return family or next((rules for start, rules in _RELATIVES.items() if name.startswith(start)), GENERIC)


# Families for which Liger-Kernel has fused kernels, and the parts of their blocks that these compute.
#
# Read from Liger-Kernel 0.8.2 (``transformers/monkey_patch.py``, ``ops/``). Its norms save their input and the
# reciprocal deviation in fp32, and write the input's gradient over the output's; its gated MLPs save both factors but
# not the activation's output, and write the factors' gradients over them; its rotary embeddings work in place and
# save nothing of their own. Unsloth's kernels save the same. Experts are not among the parts: their kernel (since
# 0.8) gathers and multiplies in another way, and they are counted as they are without it.


_ALL = frozenset(("norm", "mlp", "rope"))
LIGER_PATCHES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "granite", "phi3"), _ALL),
        **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4", "falcon_h1"), _ALL),
        **dict.fromkeys(("hunyuan_v1_dense", "mllama_text_model", "llama4_text"), _ALL),
        **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _ALL),
        **dict.fromkeys(("glm4", "gemma4_text", "qwen3_5_text"), _ALL - {"rope"}),
        **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _ALL - {"rope"}),
        **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "hunyuan_v1_moe", "qwen3_vl_text"), _ALL - {"mlp"}),
        "deepseek_v4": frozenset(("norm",)),
    }
)
"""By ``model_type``: what ``apply_liger_kernel_to_*`` patches by default."""


# The parameters of task heads on top of a model's body, as transformers 5 names them.


QUESTION_ANSWERING_OUTPUTS = 2
"""Start and end of the answer."""


def head_parameters(arch: Architecture, heads: TaskHeads) -> Iterator[NamedShape]:
    """Yield the head's own parameters: none if it shares the token embedding, or if the task has no head."""
    hidden = arch.hidden
    if arch.has_vocab_head:
        yield from _masked_lm_head(arch, heads.masked_lm) if heads.masked_lm else _lm_head(arch, heads)
    elif arch.task == "sequence-classification":
        *before, last = heads.sequence_classifier
        for name in before:
            yield from linear(name, hidden, hidden, 1, bias=heads.sequence_classifier_bias)
        yield from linear(last, arch.num_labels, hidden, 1, bias=heads.sequence_classifier_bias)
    elif arch.task == "token-classification":
        yield from linear(heads.tokens_classifier, arch.num_labels, hidden, 1, bias=True)
    elif arch.task == "question-answering":
        outputs = arch.num_labels if heads.answers_are_labels else QUESTION_ANSWERING_OUTPUTS
        yield from linear("qa_outputs", outputs, hidden, 1, bias=True)


def _lm_head(arch: Architecture, heads: TaskHeads) -> Iterator[NamedShape]:
    if not arch.tied:
        yield NamedShape("lm_head.weight", (arch.vocab, arch.hidden), 1, "linear")
    if heads.lm_head_bias:
        yield NamedShape("lm_head.bias", (arch.vocab,), 1, "bias")


def _masked_lm_head(arch: Architecture, head: MaskedLmHead) -> Iterator[NamedShape]:
    yield from linear(head.transform, arch.hidden, arch.hidden, 1, bias=True)
    yield from norm(head.norm, arch.hidden, 1, bias=True)
    yield NamedShape(f"{head.output}.bias", (arch.vocab,), 1, "bias" if head.output_is_linear else "parameter")
    if arch.tied:
        return
    if head.output_is_linear:
        yield NamedShape(f"{head.output}.weight", (arch.vocab, arch.hidden), 1, "linear")
    else:
        yield from linear(f"{head.output}.decoder", arch.vocab, arch.hidden, 1, bias=True)
