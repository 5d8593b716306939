"""Bytes per token that attention saves for the backward pass, and which kernel decides it.

Read off what torch autograd saves for each operation of transformers 5's blocks. Legend: h hidden size, a heads,
s sequence.
"""

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...job.version_rules import saves_softmax_inputs
from ...model.architecture import Architecture
from . import litgpt
from .layer_context import LayerContext

_FUSED_VIEWS = frozenset({"phi3", "gpt_neox"})
"""Values are a view of one tensor with queries and keys, which rotation copies: the whole tensor stays."""
COPIED_OUTPUT = frozenset({"phi", "phi3", "gpt_neox", "deepseek_v2", "deepseek_v3"})
"""Queries are concatenated, so attention's output comes in another layout and is copied for its projection."""
_GATHERED_ATTENTION = frozenset({"phi3", "olmo2"})
"""Families whose plan for tensor parallelism gathers what the projections give, and splits it again behind."""
WIDE_SCALE = ("gemma", "olmo2", "gpt_oss")
"""Families (the beginnings of their names) whose norms multiply by their weight in fp32."""
PLAIN_SOFTMAX = frozenset({"bert", "roberta", "distilbert", "gpt2", "t5"})
"""Families whose eager attention takes the softmax in the type of the scores; the others' takes it in fp32."""
_NO_FUSED_KERNEL = frozenset({"gpt_oss", "gemma2"})
"""Families for which transformers 5 has no sdpa: sinks, or capped scores."""


def uses_math_attention(job: Job, arch: Architecture, widths: Widths) -> bool:
    """Whether sdpa has no fused kernel to choose and keeps its probabilities: grouped heads in fp32.

    torch's flash kernel takes 16-bit types only, and its memory-efficient one no grouped heads (sdp_utils.cpp).
    """
    return job.model.attention == "sdpa" and widths.compute == 4 and arch.kv_heads != arch.heads


def uses_eager_attention(job: Job, arch: Architecture) -> bool:
    """Attention keeps its probabilities: asked for, or the family has no other with sdpa."""
    return job.model.attention == "eager" or (job.model.attention == "sdpa" and arch.family in _NO_FUSED_KERNEL)


def attention_per_token(context: LayerContext) -> float:
    """What one attention saves, its own norms and the cast for its projection included."""
    arch, widths, split = context.arch, context.widths, context.tensor_parallel
    c = widths.compute
    length = context.length
    framework = context.job.training.framework
    eager, masked = uses_eager_attention(context.job, arch), _masked_layer_share(context)
    fused = framework != "litgpt" and not eager
    grouped = arch.query_size + arch.key_size + arch.value_size
    whole = arch.query_size + arch.heads * (arch.head_dim + arch.value_head_dim)  # keys and values of all heads
    if eager and framework == "megatron":
        # its fused softmax keeps c-byte probabilities; dropout keeps them again, and a mask
        scores = arch.heads * length * (c + ((c + 1) if arch.attention_dropout else 0))
        core: float = c * grouped + scores
    elif framework == "litgpt" and not eager:
        core = litgpt.attention_per_token(context.job, arch, widths, context.readers)
    elif uses_math_attention(context.job, arch, widths):
        core = c * (whole + arch.attention_output_size) + 4 * arch.heads * length
    elif eager:
        softmax = c if arch.family in PLAIN_SOFTMAX and not widths.mixed else 4
        # dropout keeps a mask, and what it gives is multiplied; else it is the probabilities, or their cast
        kept = 1 + c if arch.attention_dropout else (c if c != softmax else 0)
        tanh = c if arch.attention_softcap else 0
        if arch.family == "gpt_oss":  # the softmax of scores and sinks, of which the scores' part is multiplied
            softmax, kept = (4, c) if widths.autocast else (c, 0)  # the sinks are parameters, and not cast
        given = (4 if widths.mixed else c) if saves_softmax_inputs(context.job) else 0
        core = c * whole + arch.heads * length * (softmax + kept + tanh + given)
    else:
        copied = (
            arch.family in COPIED_OUTPUT and context.trains_weights and c != 4
        )  # the kernel for fp32 lays it out as needed
        core = c * grouped + 4 * arch.heads + c * arch.attention_output_size * (2 if copied else 1)
        core += masked * c * (whole - grouped)
    core += masked * c * length
    if arch.family in _FUSED_VIEWS and fused and not uses_math_attention(context.job, arch, widths):
        core += c * (arch.query_size + arch.key_size)
    needing = context.readers.get("attention_out", (1, 1))[1]
    if eager and (needing or context.trains_weights):
        core += c * arch.attention_output_size
    elif needing and not context.trains_weights and context.adapter_width != c and framework != "litgpt":
        # the adapter's own cast; autocast casts that back, and it is the copy cast back that is saved
        core += (c if widths.autocast else context.adapter_width) * arch.attention_output_size
    if context.gathers(_GATHERED_ATTENTION):
        return core + _query_norms_per_token(context) + c * arch.attention_output_size / split
    return (core + _query_norms_per_token(context) + _latents_per_token(context)) / split


def scores_per_token(context: LayerContext) -> float:
    """Attention scores per token where they are written to memory; 0 with a fused kernel."""
    written = uses_math_attention(context.job, context.arch, context.widths)
    if not written and not uses_eager_attention(context.job, context.arch):
        return 0.0
    return context.arch.heads * context.length / context.tensor_parallel


def relative_bias_per_token(context: LayerContext) -> float:
    """What a block of T5 adds to its scores: a bias on every pair of positions, the same for all sequences."""
    if not context.arch.relative_buckets or context.job.model.attention != "sdpa":
        return 0.0
    pairs = context.arch.heads * context.length / context.tensor_parallel
    return context.widths.residual * pairs / context.job.training.micro_batch


def _masked_layer_share(context: LayerContext) -> float:
    """The share of layers in which sdpa is given a mask of every pair of positions, of which it saves a copy.

    A window needs one once the sequence is longer (masking_utils); keys and values are then copied to all heads.
    """
    arch, job = context.arch, context.job
    if job.training.framework != "transformers" or job.model.attention != "sdpa" or arch.sliding_window is None:
        return 0.0
    if job.training.sequence_length <= arch.sliding_window or uses_eager_attention(job, arch):
        return 0.0
    return arch.sliding_layers / arch.layers


def _query_norms_per_token(context: LayerContext) -> float:
    arch, c = context.arch, context.widths.compute
    if arch.qk_norm == "none":
        return 0.0
    size, heads = arch.query_size + arch.key_size, arch.heads + arch.kv_heads
    scaled = 4 if arch.family.startswith(WIDE_SCALE) else c
    return 4 * size + 4 * heads + (scaled * size if context.trains_weights else 0)


def _latents_per_token(context: LayerContext) -> float:
    """DeepSeek's compressed queries, keys and values: their norms and what the expanding layers read."""
    arch, c = context.arch, context.widths.compute
    ranks = (arch.q_lora_rank or 0) + (arch.kv_lora_rank or 0)
    return ranks * (4 + (2 * c if context.trains_weights else 0))
