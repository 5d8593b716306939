"""Bytes that the forward pass saves for the backward pass, per layer and around the layers.

Read off what torch autograd saves for each operation of transformers 5's blocks, and checked in the tests against
what autograd does save on real models. Legend: T tokens on the rank, h hidden size, f MLP size, a heads, s sequence.
All figures are for the tokens of one micro-batch.
"""

from dataclasses import dataclass
from functools import lru_cache

from . import litgpt
from .architecture import Architecture
from .job import Job
from .linear_slots import Slot, slot_of
from .rank import Stage
from .software import keeps_quantized_inputs, saves_softmax_inputs
from .states import unpacked_bytes
from .widths import Widths

_ACTIVATION_EXTRA = {"gelu_new": 4, "gelu_fast": 5, "quick_gelu": 2, "relu": 0}
"""Tensors of f per token that an activation function saves; the native ones (silu, gelu) save their input."""

_AUTOCAST_EXTRA = {"gelu_new": 7}
"""The same in units of two bytes under CUDA's autocast, which runs ``pow`` and all that follows it in fp32."""
_FUSED_VIEWS = frozenset({"phi3", "gpt_neox"})
"""Values are a view of one tensor with queries and keys, which rotation copies: the whole tensor stays."""
_COPIED_OUTPUT = frozenset({"phi", "phi3", "gpt_neox", "deepseek_v2", "deepseek_v3"})
"""Queries are concatenated, so attention's output comes in another layout and is copied for its projection."""
_WIDE_SCALE = ("gemma", "olmo2", "gpt_oss")
"""Families (the beginnings of their names) whose norms multiply by their weight in fp32."""
_GATHERED_ATTENTION = frozenset({"phi3", "olmo2"})
_GATHERED_MLP = frozenset({"phi3"})
"""Families whose plan for tensor parallelism gathers what the projections give, and splits it again behind."""
_PLAIN_SOFTMAX = frozenset({"bert", "roberta", "distilbert", "gpt2", "t5"})
"""Families whose eager attention takes the softmax in the type of the scores; the others' takes it in fp32."""
_NO_FUSED_KERNEL = frozenset({"gpt_oss", "gemma2"})
"""Families for which transformers 5 has no sdpa: sinks, or capped scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What is saved of one micro-batch on one stage."""

    layer_bytes: int
    """By one layer in full; the fullest kind of layer, where they differ."""
    layers_bytes: int
    """By all layers of the stage, as checkpointing leaves them."""
    around_bytes: int
    """By embedding, final norm and head, logits and loss excepted."""
    recomputed_bytes: int
    """What one layer's backward pass brings back first, of what checkpointing or offloading took away."""
    mlp_half_bytes: int
    """Of one layer what is gone again when the half with the MLP has run backward."""
    working_bytes: int
    """What one layer's MLP needs besides while it runs backward."""
    attention_working_bytes: int
    """The same for its attention."""
    norm_working_bytes: int
    """What a norm needs while it runs backward."""
    forward_bytes: int
    """What one layer's forward pass needs besides what it saves."""
    boundary_bytes: int
    """The residual stream between two blocks."""
    previous_bytes: int = 0
    """What the graph of the micro-batch before still holds during the forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the per-token formulas look at."""

    arch: Architecture
    job: Job
    widths: Widths
    consumers: dict[Slot, tuple[int, int]]
    """By slot: linear layers per block that read it, and how many of these need their input for a weight gradient."""
    tensor: int
    adapted_experts: int
    """Elements of the experts of one layer, where they are adapted: peft adds A B to them before they multiply."""

    @property
    def full(self) -> bool:
        """The model's own weights are trained."""
        return self.job.lora is None

    @property
    def residual_split(self) -> int:
        return self.tensor if self.job.parallel.sequence_parallel else 1

    @property
    def adapter(self) -> int:
        """Bytes per element in which adapters multiply; FSDP gathers them in the compute type too."""
        return self.widths.compute if self.widths.mixed and not self.widths.autocast else self.widths.adapter

    @property
    def experts(self) -> int:
        """Bytes per element in which experts multiply: autocast knows no grouped products (integrations/moe.py)."""
        return self.widths.weight if self.widths.autocast else self.widths.compute

    @property
    def casts_anew(self) -> bool:
        """Linear layers read an fp32 norm's output under autocast, and each casts it for itself."""
        return self.widths.autocast or (self.widths.mixed and self.arch.norm == "layer" and self.arch.causal)

    def gathers(self, families: frozenset[str]) -> bool:
        """Tensor parallelism leaves this family's activations whole here."""
        return self.tensor > 1 and self.arch.family in families and self.job.training.framework == "transformers"


def saved_activations(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> Saved:
    """What the forward pass of one micro-batch saves on a stage."""
    context = _Context(
        arch=arch,
        job=job,
        widths=widths,
        consumers=_consumers(stage, full=job.lora is None),
        tensor=job.parallel.tensor,
        adapted_experts=_adapted_experts(stage),
    )
    tokens = tokens_per_rank(job)
    dense, moe = _layer_per_token(context, moe=False), _layer_per_token(context, moe=True)
    moe_share = arch.moe_layers / arch.layers
    cross = _cross_attention(context)
    mean = dense * (1 - moe_share) + moe * moe_share + cross * arch.decoder_layers / arch.layers
    fullest = max(dense if arch.dense_layers else 0.0, moe if arch.moe_layers else 0.0) + cross
    shared = _stacks_biases(context)
    checkpoint = widths.residual * arch.hidden / context.residual_split
    checkpointing, offload = job.training.activation_checkpointing, job.training.activation_offload
    kept = {"none": mean, "full": checkpoint, "selective": checkpoint + _selective_per_token(context)}[checkpointing]
    kept += shared
    recomputed = fullest + shared - kept if checkpointing != "none" else 0.0
    if offload:
        recomputed += 2 * kept  # one layer on its way out or in, one in use
    gone = _mlp_half(context, moe=arch.moe_layers > 0) if job.training.framework == "transformers" else 0.0
    unpacked = unpacked_bytes(job, (held for held in stage.held if held.group.layered))
    return Saved(
        layer_bytes=round(fullest * tokens),
        layers_bytes=0 if offload else round((kept * stage.layers - _before_adapters(context, stage)) * tokens),
        around_bytes=round(_around_per_token(context, stage) * tokens),
        recomputed_bytes=round(recomputed * tokens),
        mlp_half_bytes=round(gone * tokens),
        working_bytes=round(_mlp_working(context) * tokens) + unpacked,
        attention_working_bytes=round(_attention_working(context) * tokens) + unpacked,
        norm_working_bytes=round(_norm_working(context) * tokens),
        forward_bytes=round(_passing_per_token(context) * tokens) + unpacked,
        boundary_bytes=round(checkpoint * tokens),
        previous_bytes=round(_previous_per_token(context, stage) * tokens),
    )


def tokens_per_rank(job: Job) -> int:
    """Tokens of one micro-batch on one rank: context parallelism splits the sequence."""
    return job.training.micro_batch * -(-job.training.sequence_length // job.parallel.context)


@lru_cache(maxsize=256)
def _consumers(stage: Stage, *, full: bool) -> dict[Slot, tuple[int, int]]:
    adapted = {held.group.name.partition(".lora_")[0] for held in stage.held if held.adapter}
    found: dict[Slot, set[str]] = {}
    for held in stage.held:
        slot = slot_of(held.group.name)
        if slot and held.group.linear and held.group.layered:
            found.setdefault(slot, set()).add(held.group.name.removesuffix(".weight"))
    return {slot: (_kinds(names), _kinds(names if full else names & adapted)) for slot, names in found.items()}


@lru_cache(maxsize=256)
def _adapted_experts(stage: Stage) -> int:
    experts = [held for held in stage.held if held.group.role == "expert"]
    if not any(held.adapter for held in experts):
        return 0
    return sum(held.elements // max(1, held.tensors) for held in experts if not held.adapter)


def _kinds(names: set[str]) -> int:
    """Of T5's three attentions each block half has one."""
    return len({name.rpartition(".")[2] for name in names})


def _layer_per_token(context: _Context, *, moe: bool) -> float:
    arch = context.arch
    attention = _attention_per_token(context)
    half = (_norms(context) + _masks(context)) / 2 / context.residual_split
    reads = _inputs(context, "attention_in", arch.hidden) + _bias(context)
    kept = sum(_quantized_inputs(context).values())
    return half + reads + attention + kept + _between_adapters(context) + _mlp_half(context, moe=moe)


def _before_adapters(context: _Context, stage: Stage) -> float:
    """What the first block does not save under LoRA, because nothing before its first adapter has a gradient."""
    arch, job = context.arch, context.job
    if (
        context.full
        or _checkpoints(context)
        or not stage.first
        or job.training.framework != "transformers"
        or not arch.causal
    ):
        return 0.0
    norm = _norm(context, arch.hidden)
    if arch.parallel_residual and not context.consumers.get("mlp_in", (1, 0))[1]:
        return norm + _mlp_per_token(context, arch.mlp_size)
    return norm


def _cross_attention(context: _Context) -> float:
    """What a decoder block with cross attention saves for that; 0 without."""
    arch = context.arch
    if not arch.encoder_decoder:
        return 0.0
    mask = arch.hidden if arch.hidden_dropout else 0
    reads = _inputs(context, "attention_in", arch.hidden)
    return _attention_per_token(context) + _norm(context, arch.hidden) + reads + mask


def _mlp_half(context: _Context, *, moe: bool) -> float:
    """Of a layer the half after attention: its norms, the MLP, and what that reads."""
    arch = context.arch
    half = (_norms(context) + _masks(context)) / 2 / context.residual_split
    if moe:
        return half + _experts_per_token(context)
    shared = arch.parallel_residual and arch.norms_per_layer == 1
    return half + _mlp_per_token(context, arch.mlp_size) + _inputs(context, "mlp_in", arch.hidden, shared=shared)


def _bias(context: _Context) -> float:
    """What a block of T5 adds to its scores: a bias on every pair of positions, the same for all sequences."""
    if not context.arch.relative_buckets or context.job.model.attention != "sdpa":
        return 0.0
    pairs = context.arch.heads * _length(context) / context.tensor
    return context.widths.residual * pairs / context.job.training.micro_batch


def _norms(context: _Context) -> float:
    arch = context.arch
    norms = arch.norms_per_layer * _norm(context, arch.hidden)
    if arch.parallel_residual and arch.norms_per_layer > 1:
        norms -= (arch.norms_per_layer - 1) * context.widths.residual * arch.hidden  # they read one and the same input
    return norms


def _masks(context: _Context) -> float:
    """Of dropout on the outputs of attention and MLP."""
    return 2 * context.arch.hidden if context.arch.hidden_dropout else 0


def _between_adapters(context: _Context) -> float:
    """What lies between an adapter's two matrices: rank-sized."""
    lora, widths = context.job.lora, context.widths
    if lora is None:
        return 0.0
    adapted = sum(needing for _, needing in context.consumers.values())
    return adapted * lora.rank * (widths.compute if widths.autocast else context.adapter)


def _norm(context: _Context, size: float) -> float:
    """A norm's saved tensors per token, its output excepted (whoever reads it saves it)."""
    widths, arch = context.widths, context.arch
    if arch.norm == "layer":
        return (4 if widths.mixed else widths.residual) * size + 8  # input, mean and reciprocal deviation
    if context.job.training.framework in ("torchtitan", "megatron"):
        return widths.residual * size + 4  # fused: input and reciprocal deviation
    scaled = 4 if arch.family.startswith(_WIDE_SCALE) else widths.residual
    if context.job.training.framework == "litgpt":
        scaled = litgpt.norm_width(context.job, widths)
    # T5's norm multiplies its input as it came, and not the copy in fp32 that it takes the variance of
    given = widths.residual * size if arch.relative_buckets and widths.residual != 4 else 0
    # the input in fp32 and the reciprocal deviation; for the norm's own weight, the normalised input
    return 4 * size + 4 + given + (scaled * size if context.full else 0)


def _inputs(context: _Context, slot: Slot, size: float, *, shared: bool = False) -> float:
    """What the linear layers that read one tensor keep of it for their weight gradients, per token."""
    readers, needing = context.consumers.get(slot, (1, 1 if context.full else 0))
    widths = context.widths
    if needing and not context.full and context.job.training.framework == "litgpt":
        return litgpt.inputs_per_token(context.job, context.arch, widths, slot, needing)
    if not needing or (shared and not context.casts_anew):
        return 0.0
    if not context.full:
        # an adapter casts its input to its own type: a copy each, unless they already agree
        if widths.autocast:
            return widths.compute * size * needing
        return context.adapter * size * (needing if context.adapter != widths.residual else 1)
    if context.casts_anew and slot in ("attention_in", "mlp_in"):
        return widths.compute * size * readers  # autocast casts the fp32 input anew for each reader
    return widths.compute * size


def _quantized_inputs(context: _Context) -> dict[Slot, float]:
    """Inputs that 4-bit layers keep, by older versions of bitsandbytes, where nothing else has kept them."""
    arch, c = context.arch, context.widths.compute
    if not keeps_quantized_inputs(context.job):
        return {}
    sizes = {"attention_in": arch.hidden, "mlp_in": arch.hidden, "mlp_out": arch.mlp_size}
    if arch.parallel_residual and arch.norms_per_layer == 1:
        del sizes["mlp_in"]  # the same tensor
    eager = uses_eager_attention(context.job, arch)
    if context.job.training.framework == "litgpt" or eager or arch.family in _COPIED_OUTPUT:
        sizes["attention_out"] = arch.attention_output_size  # else it is the tensor that attention has saved
    # an adapter of the same type without dropout before it keeps the tensor itself
    adapted = context.adapter == c and context.job.training.framework != "litgpt"
    kept = {slot for slot, (_, needing) in context.consumers.items() if needing and adapted}
    return {slot: c * size / context.tensor for slot, size in sizes.items() if slot not in kept}


def _previous_per_token(context: _Context, stage: Stage) -> float:
    if not litgpt.keeps_previous_graph(context.job):
        return 0.0
    return sum(_quantized_inputs(context).values()) * stage.layers + context.widths.compute * context.arch.hidden


def _attention_per_token(context: _Context) -> float:
    arch, widths, split = context.arch, context.widths, context.tensor
    c = widths.compute
    length = _length(context)
    framework = context.job.training.framework
    eager, masked = uses_eager_attention(context.job, arch), _masked_layers(context)
    fused = framework != "litgpt" and not eager
    grouped = arch.query_size + arch.key_size + arch.value_size
    whole = arch.query_size + arch.heads * (arch.head_dim + arch.value_head_dim)  # keys and values of all heads
    if eager and framework == "megatron":
        # its fused softmax keeps c-byte probabilities; dropout keeps them again, and a mask
        scores = arch.heads * length * (c + ((c + 1) if arch.attention_dropout else 0))
        core: float = c * grouped + scores
    elif framework == "litgpt" and not eager:
        core = litgpt.attention_per_token(context.job, arch, widths, context.consumers)
    elif uses_math_attention(context.job, arch, widths):
        core = c * (whole + arch.attention_output_size) + 4 * arch.heads * length
    elif eager:
        softmax = c if arch.family in _PLAIN_SOFTMAX and not widths.mixed else 4
        # dropout keeps a mask, and what it gives is multiplied; else it is the probabilities, or their cast
        kept = 1 + c if arch.attention_dropout else (c if c != softmax else 0)
        tanh = c if arch.attention_softcap else 0
        if arch.family == "gpt_oss":  # the softmax of scores and sinks, of which the scores' part is multiplied
            softmax, kept = (4, c) if widths.autocast else (c, 0)  # the sinks are parameters, and not cast
        given = (4 if widths.mixed else c) if saves_softmax_inputs(context.job) else 0
        core = c * whole + arch.heads * length * (softmax + kept + tanh + given)
    else:
        copied = arch.family in _COPIED_OUTPUT and context.full and c != 4  # the kernel for fp32 lays it out as needed
        core = c * grouped + 4 * arch.heads + c * arch.attention_output_size * (2 if copied else 1)
        core += masked * c * (whole - grouped)
    core += masked * c * length
    if arch.family in _FUSED_VIEWS and fused and not uses_math_attention(context.job, arch, widths):
        core += c * (arch.query_size + arch.key_size)
    needing = context.consumers.get("attention_out", (1, 1))[1]
    if eager and (needing or context.full):
        core += c * arch.attention_output_size
    elif needing and not context.full and context.adapter != c and framework != "litgpt":
        # the adapter's own cast; autocast casts that back, and it is the copy cast back that is saved
        core += (c if widths.autocast else context.adapter) * arch.attention_output_size
    if context.gathers(_GATHERED_ATTENTION):
        return core + _query_norms(context) + c * arch.attention_output_size / split
    return (core + _query_norms(context) + _latents(context)) / split


def _length(context: _Context) -> int:
    return -(-context.job.training.sequence_length // context.job.parallel.context)


def _masked_layers(context: _Context) -> float:
    """The share of layers in which sdpa is given a mask of every pair of positions, of which it saves a copy.

    A window needs one once the sequence is longer (masking_utils); keys and values are then copied to all heads.
    """
    arch, job = context.arch, context.job
    if job.training.framework != "transformers" or job.model.attention != "sdpa" or arch.sliding_window is None:
        return 0.0
    if job.training.sequence_length <= arch.sliding_window or uses_eager_attention(job, arch):
        return 0.0
    return arch.sliding_layers / arch.layers


def _query_norms(context: _Context) -> float:
    arch, c = context.arch, context.widths.compute
    if arch.qk_norm == "none":
        return 0.0
    size, heads = arch.query_size + arch.key_size, arch.heads + arch.kv_heads
    scaled = 4 if arch.family.startswith(_WIDE_SCALE) else c
    return 4 * size + 4 * heads + (scaled * size if context.full else 0)


def _latents(context: _Context) -> float:
    """DeepSeek's compressed queries, keys and values: their norms and what the expanding layers read."""
    arch, c = context.arch, context.widths.compute
    ranks = (arch.q_lora_rank or 0) + (arch.kv_lora_rank or 0)
    return ranks * (4 + (2 * c if context.full else 0))


def _mlp_per_token(context: _Context, size: int) -> float:
    arch, c = context.arch, context.widths.compute
    saved = _activation_tensors(context) + (2 if arch.gated else 0)  # gated: both factors of the product
    needing = context.consumers.get("mlp_out", (1, 1 if context.full else 0))[1]
    product: float = c * size if needing else 0
    if arch.gated and context.widths.mixed and arch.activation in _AUTOCAST_EXTRA:
        saved += 1  # the activation's output is a factor as wide as autocast left it
    if needing and not context.full and not context.widths.autocast:
        product = context.adapter * size
        if context.job.training.framework == "litgpt":
            product = litgpt.dropped_per_token(context.widths, size)
    if context.gathers(_GATHERED_MLP):
        return saved * c * size + product / context.tensor
    if arch.relative_buckets and arch.hidden_dropout:  # T5 drops out what its second projection reads
        product += (c + 1) * size
    return (saved * c * size + product) / context.tensor


def _activation_tensors(context: _Context) -> int:
    """How many tensors of the compute type an activation function keeps."""
    activation = context.arch.activation
    if context.job.training.framework in ("litgpt", "megatron"):
        return 1  # torch's own, or a fused one
    if context.widths.mixed and activation in _AUTOCAST_EXTRA:
        return _AUTOCAST_EXTRA[activation]
    return _ACTIVATION_EXTRA.get(activation, 1)


def _experts_per_token(context: _Context) -> float:
    arch, c, full, wide = context.arch, context.widths.compute, context.full, context.experts
    factors = 3 if arch.gated else 1  # two projections in one tensor and the activation's output
    # for the experts' gradient; what takes the place of the grouped product outside of bf16 keeps it anyway
    needed = full or context.adapted_experts > 0 or wide == 4
    tensors = (2 if needed else 1) * arch.hidden + (factors + needed) * arch.expert_mlp_size
    if arch.family == "gpt_oss":  # its experts have biases, and clamp what they multiply
        tensors += arch.hidden + arch.expert_mlp_size
    routed = arch.experts_per_token * wide * tensors
    router = 12 * arch.experts + (c * arch.hidden if full else 0)
    shared = _mlp_per_token(context, arch.shared_mlp_size) + c * arch.hidden if arch.shared_mlp_size else 0
    sums = wide * context.adapted_experts / tokens_per_rank(context.job)
    return routed / context.tensor + router + shared + sums


def _selective_per_token(context: _Context) -> float:
    """The per-op choice of torchtitan: attention's output, and of the matrix products every second one.

    These are the queries, the values, the MLP's first projection and its output, which is a whole tensor under tensor
    parallelism too; what the two reduce-scatters then make of it is kept besides.
    """
    arch, c = context.arch, context.widths.compute
    products = arch.query_size + arch.value_size + _mlp_size(context)
    kept = c * (products + arch.attention_output_size) / context.tensor + 4 * arch.heads / context.tensor
    scattered = 2 * c * arch.hidden / context.residual_split if context.residual_split > 1 else 0
    return kept + c * arch.hidden + scattered


def _mlp_working(context: _Context) -> float:
    """Gradients that are alive while one block's MLP runs backward, or what an adapter of it gives meanwhile."""
    arch, c = context.arch, context.widths.compute
    tensors = 2 if arch.gated else 1
    if arch.activation in _AUTOCAST_EXTRA:  # a chain of powers and products, in fp32 under autocast
        tensors = 3 * (4 // c if context.widths.mixed else 1)
    gradients = tensors * c * _mlp_size(context)
    if arch.moe_layers:
        rows, width = arch.experts_per_token, context.experts
        # their outputs are weighed and summed: DeepSeek's weights are fp32
        weighed = (3 * (4 if arch.kv_lora_rank and not context.widths.mixed else width) + c) * arch.hidden
        gradients = max(gradients, rows * weighed, rows * width * (tensors * arch.expert_mlp_size + arch.hidden))
    adapters = _adapter_outputs(context, saved_behind=True) if _checkpoints(context) else 0.0
    working = max(gradients, adapters) / context.tensor + _passing_gradients(context)
    return max(working, _norm_working(context)) if arch.norms_per_layer == 4 else working  # the last comes first


def _norm_working(context: _Context) -> float:
    """A norm running backward: autograd's chain of fp32 gradients, or torch's one kernel for layer norms."""
    arch, fused = context.arch, context.job.training.framework != "transformers"
    tensors = 2 if arch.norm == "layer" or fused else 5
    return tensors * 4 * arch.hidden / context.residual_split


def _adapter_outputs(context: _Context, *, saved_behind: bool) -> float:
    """What an adapter in fp32 of the MLP gives, it scaled, and what it is added to; 0 where there is none.

    Args:
        context: the layer.
        saved_behind: what the MLP saves behind it counts as there already, and is taken off.
    """
    arch, c = context.arch, context.widths.compute
    readers, needing = context.consumers.get("mlp_in", (1, 0))
    if context.full or not needing or context.adapter == c or context.widths.autocast:
        return 0.0
    fused = 2 if arch.gated and readers == 1 else 1
    passing = 2 * context.adapter * arch.hidden  # its input's cast, and a gradient
    outputs = (2 * context.adapter + c) * fused * arch.mlp_size + passing
    if not saved_behind:
        return outputs
    # of two projections, the activation of the other is there
    return outputs - _mlp_per_token(context, arch.mlp_size) + (2 * c * arch.mlp_size if readers > 1 else 0)


def _checkpoints(context: _Context) -> bool:
    return context.job.training.activation_checkpointing != "none"


def _attention_working(context: _Context) -> float:
    """The same for its attention: of the scores, where these are written, else of queries, keys and values."""
    arch, c = context.arch, context.widths.compute
    plain = context.job.training.framework == "transformers" and arch.family in {*_PLAIN_SOFTMAX, "gpt_oss"}
    scores = _scores_per_token(context) * (2 * c if plain and not context.widths.mixed else 4 + c)
    fused = (4 * arch.query_size + c * (arch.query_size + 2 * arch.heads * arch.value_head_dim)) / context.tensor
    # gradients of T5's biases, with checkpointing those of cross attention too: what came before and what is added
    biases = 4 if _checkpoints(context) else 2
    ring = 0.0
    if context.job.parallel.context > 1:
        # keys and values of the other ranks: all of them at once, or of one rank while the next one's come
        ranks = context.job.parallel.context if context.job.training.framework == "torchtitan" else 2
        ring = ranks * c * (arch.key_size + arch.value_size) / context.tensor
    return max(scores, fused) + ring + biases * _bias(context) + _passing_gradients(context)


def _passing_gradients(context: _Context) -> float:
    """The residual stream's gradient, of a block half's output and of its input."""
    widths, hidden = context.widths, context.arch.hidden
    # sequence parallelism gathers the split residual stream before a block half, and its gradient after it
    gathered = 2 * widths.compute * hidden if context.residual_split > 1 else 0
    return 2 * widths.residual * hidden / context.residual_split + gathered


def _passing_per_token(context: _Context) -> float:
    """What one block's forward pass holds for a moment: raw attention scores, or the MLP's product."""
    c, arch = context.widths.compute, context.arch
    tensors = 1
    if _checkpoints(context):  # what is saved otherwise
        tensors = (2 if arch.gated else 1) + (_activation_tensors(context) + 1) // 2
    mlp = max(tensors * c * _mlp_size(context), _adapter_outputs(context, saved_behind=not _checkpoints(context)))
    mlp /= context.tensor
    if context.residual_split > 1:  # the gathered input, and then the output before it is scattered
        mlp = c * arch.hidden + max(mlp, c * (_mlp_size(context) / context.tensor + arch.hidden))
    return max(2 * c * _scores_per_token(context), mlp)


def _scores_per_token(context: _Context) -> float:
    """Attention scores per token where they are written to memory; 0 with a fused kernel."""
    if not uses_eager_attention(context.job, context.arch):
        return 0.0
    return context.arch.heads * _length(context) / context.tensor


def _mlp_size(context: _Context) -> int:
    arch = context.arch
    return max(arch.mlp_size, arch.experts_per_token * arch.expert_mlp_size + arch.shared_mlp_size)


def _around_per_token(context: _Context, stage: Stage) -> float:
    arch, widths = context.arch, context.widths
    size = 0.0
    if stage.first:
        size += 8  # token ids
        if arch.norm == "layer" and not arch.causal:
            size += _norm(context, arch.hidden)
        if arch.hidden_dropout:
            size += arch.hidden
    if stage.last:
        size += _norm(context, arch.hidden) / context.residual_split if arch.causal or arch.norm == "rms" else 0.0
        size += _head_input(context, stage) if arch.has_vocab_head else 0.0
    if stage.last and arch.task == "masked-lm":  # the head's own dense layer, activation and norm
        size += 2 * widths.compute * arch.hidden + _norm(context, arch.hidden)
    if arch.encoder_decoder:  # the encoder's norm, dropped out at both ends, and its output as the decoder reads it
        size += _norm(context, arch.hidden) + 2 * arch.hidden + widths.compute * arch.hidden
    return size


def _stacks_biases(context: _Context) -> float:
    """What T5's blocks share per block: of each stack the buckets of all pairs, and cross attention's bias."""
    arch = context.arch
    if not arch.relative_buckets:
        return 0.0
    stacks = 2 if arch.decoder_layers else 1
    biases = stacks - 1
    if _checkpoints(context):
        biases += stacks  # each stack's own, which all its blocks are given
    buckets = 8 * stacks * _length(context) / context.job.training.micro_batch
    return (biases * _bias(context) + buckets) / arch.layers


def _head_input(context: _Context, stage: Stage) -> float:
    """What the head keeps of its input: for its own weight, for an adapter, or as a 4-bit layer."""
    size, c = context.arch.hidden, context.widths.compute
    if context.full:
        return c * size
    adapted = any(held.adapter and held.group.role == "head" for held in stage.held)
    quantized = any(held.quantized and held.group.role == "head" for held in stage.held)
    kept = c * size if quantized and keeps_quantized_inputs(context.job) else 0
    if adapted:
        dropped = context.job.training.framework == "litgpt"
        kept += litgpt.dropped_per_token(context.widths, size) if dropped else context.adapter * size
    return kept


def uses_math_attention(job: Job, arch: Architecture, widths: Widths) -> bool:
    """Whether sdpa has no fused kernel to choose and keeps its probabilities: grouped heads in fp32.

    torch's flash kernel takes 16-bit types only, and its memory-efficient one no grouped heads (sdp_utils.cpp).
    """
    return job.model.attention == "sdpa" and widths.compute == 4 and arch.kv_heads != arch.heads


def uses_eager_attention(job: Job, arch: Architecture) -> bool:
    """Attention keeps its probabilities: asked for, or the family has no other with sdpa."""
    return job.model.attention == "eager" or (job.model.attention == "sdpa" and arch.family in _NO_FUSED_KERNEL)


def key_value_cache_bytes(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> int:
    """Keys and values of every token and layer that inference keeps; 0 in training, which has no such cache."""
    if job.training.mode != "inference" or not arch.has_vocab_head or arch.task == "masked-lm":
        return 0
    per_token = (arch.key_size + arch.value_size) * widths.compute / job.parallel.tensor
    return round(per_token * tokens_per_rank(job) * stage.layers)
