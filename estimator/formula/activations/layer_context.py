"""The quantities that the per-token activation formulas share, resolved once from a job.

Legend: h hidden size, f MLP size, a heads, s sequence.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...common.library_versions import ASSUMED_TRANSFORMERS, older
from ...job.resolved_job import ResolvedJob
from ...job.rules.dtype_widths import Widths
from ...job.rules.frameworks import Framework
from ...job.rules.version_rules import VersionRules
from ...model.adapters import separates_experts
from ...model.architecture import Architecture
from ...model.rank_share import Stage
from ...model.trained_parameters import BlockRun
from .trained_parts import ALL_PARTS, NO_PARTS, LinearInput, TrainedParts, linear_input_of, trained_parts

NormKind = Literal["autograd", "fused", "litgpt", "torch"]
"""Named as in ``RmsNorm``; ``torch``: torch's own chain of operations, which multiplies by the scale in fp32."""


def norm_kind(framework: Framework, versions: VersionRules) -> NormKind:
    """Return what computes an RMSNorm in eager mode."""
    if framework.rms_norm == "torch-fp32":  # torchtune's last version is older than torch 2.9
        return "autograd" if versions.chains_fp32_norms else "torch"
    if framework.rms_norm != "torch":
        return framework.rms_norm
    if versions.chains_norms:
        return "autograd"
    return "fused" if versions.fuses_norms else "torch"


COMPILED_PARTS = frozenset(("norm", "mlp"))


class LayerContext(Struct, frozen=True, kw_only=True):
    """One block of one pipeline stage, as the per-token formulas see it."""

    arch: Architecture
    framework: Framework
    versions: VersionRules
    widths: Widths

    # --- the micro-batch
    micro_batch: int
    """Sequences."""
    length: int
    """Tokens of one sequence on the rank."""
    targets: int
    """Tokens of one sequence that a decoder behind an encoder reads."""
    recomputes: bool
    """Activation checkpointing is full or selective."""
    caches: bool
    """Attention adds its keys and values to a cache."""
    prompts: bool
    """Inference runs prompts; in training blocks without a graph are those that are recomputed, or frozen."""

    # --- attention
    asks_flash: bool
    """flash-attn computes attention."""
    asks_sdpa: bool
    """The job asks for sdpa, whichever kernel that finds."""
    eager_attention: bool
    """Attention writes its scores and keeps its probabilities: requested, or the family has no sdpa."""
    math_attention: bool
    """sdpa finds no fused kernel and keeps its probabilities."""
    masked_layers: float
    """Share of layers whose sdpa is given a mask of every pair of positions, of which it saves a copy."""

    # --- parallelism
    tensor_parallel: int
    """Ranks over which blocks are split."""
    residual_ranks: int
    """Ranks over which sequence parallelism splits the residual stream."""
    context_parallel: int
    """Ranks over which each sequence is split."""

    keeps_inputs: bool
    """Frozen linear layers save their input too (ZeRO 3's, DeepSpeed's runtime/zero/linear.py)."""

    # --- adapters
    lora_rank: int | None
    """Rank of the adapters; None: the model's own weights are trained."""
    lora_targets: Collection[str]
    """Names of the adapted linear layers, or ``all-linear``; empty without adapters."""
    own_casts: bool = False
    """Each adapter makes its own copy of its input: peft casts it to the type of the fp32 shard that it sees outside
    of FSDP1's unit, and autocast casts it back (``_cast_input_dtype`` in ``peft/tuners/tuners_utils.py``)."""
    readers: dict[LinearInput, tuple[int, int]]
    """Per input: linear layers of a block that read it, and how many of them need it for a weight gradient."""
    parts: TrainedParts
    """The parts of the block whose own weights train."""
    fused: frozenset[str] = frozenset()
    """Parts that fused kernels compute: norm, mlp, rope."""
    rms_norm: NormKind
    """Implementation of an RMSNorm in eager mode."""
    compiled: bool = False
    """torch.compile has made kernels of the block: it saves what fused kernels save, but not in place.

    The min-cut partitioner (torch/_functorch/partitioners.py) keeps inputs and outputs of matrix products and of
    attention, and recomputes what lies between them: norms save their input, the MLP both factors and the product.
    """
    masks_compiled: bool = False
    """A mask of all pairs of positions, which all blocks share: transformers makes one while it is traced."""
    masks_apart: bool = False
    """Compiled blocks make such a mask each, from one of bools."""
    repeats_keys: bool = False
    """Keys and values are copied to all query heads."""
    lays_heads_out: bool = False
    """Each head's queries, keys and values are made contiguous before attention."""
    drops_adapter_input: bool = False
    """Adapters drop their input out: each saves what it reads, and a mask of one byte (``native_dropout``)."""
    separate_experts: bool = False
    """Each expert is a list of linear layers that is called with its own tokens (transformers 4)."""
    quantization: str | None = None
    """Storage format of frozen linear weights; None: not quantized."""
    adapted_expert_elements: int
    """Elements of one layer's experts, if they have adapters: peft adds A B to them before they multiply."""
    expert_adapter_elements: int
    """Elements of the adapters of one layer's experts, which are cast to the experts' type first."""

    def trains_input(self, name: LinearInput) -> bool:
        """Return True if a layer that reads this input trains its own weight, which needs the input."""
        return self.parts.readers.get(name, self.parts.unnamed) > 0

    @property
    def copies_output(self) -> bool:
        """True if attention's output has another layout than its projection reads, and is copied."""
        return self.arch.rules.copies_attention_output or self.lays_heads_out

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on the rank."""
        return self.micro_batch * self.length

    @property
    def input_ranks(self) -> int:
        """Ranks over which the saved input of a block's first linear layers is split.

        Megatron's save it before they gather it, and gather it again (``save_for_backward`` in core/tensor_parallel/
        layers.py, TransformerEngine's LayerNormLinear); elsewhere the gathered input is what they read.
        """
        return self.residual_ranks if self.framework.saves_split_inputs else 1

    @property
    def copies_flash_output(self) -> bool:
        """True if the output projection reads, and keeps, a copy of the output that flash-attn has saved.

        TransformerEngine hands it ``[batch, sequence, ...]``, and turns the result back (``FlashAttention.forward`` in
        pytorch/attention/dot_product_attention/backends.py, v2.8: ``transpose(0, 1)``, ``contiguous()``); cuDNN's
        fused attention writes ``[sequence, batch, ...]`` itself. Of one sequence both are the same.
        """
        return self.framework.copies_flash_output and self.asks_flash and self.micro_batch > 1

    @property
    def widest_mlp(self) -> int:
        """MLP elements per token in the widest layer: the dense MLP, or all experts that process a token."""
        arch = self.arch
        experts = arch.experts_per_token * arch.expert_mlp_size
        if self.separate_experts:  # one after the other, each with its share of the tokens
            return max(arch.mlp_size if arch.dense_layers else 0, arch.shared_mlp_size, -(-experts // arch.experts))
        return max(arch.mlp_size, experts + arch.shared_mlp_size)

    @property
    def adapter_width(self) -> int:
        """Bytes per element in which adapters multiply; FSDP all-gathers them in the compute type too."""
        return self.widths.compute if self.widths.casts and not self.widths.autocast else self.widths.adapter

    @property
    def read_adapter_width(self) -> int:
        """Bytes per element of the tensor that an adapter's product saves: autocast casts what it reads."""
        return self.widths.compute if self.widths.autocast else self.adapter_width

    def dropped_input_per_token(self, size: float) -> float:
        """Bytes that one adapter keeps of an input of that size that it drops out: its result, and the mask."""
        return (self.read_adapter_width + 1) * size

    @property
    def keeps_quantized_inputs(self) -> bool:
        """True if quantized layers keep their input: 8-bit ones do (``MatMul8bitLt``), and older 4-bit ones."""
        return self.quantization == "int8" or self.versions.keeps_quantized_inputs

    def fuses_norm(self, *, final: bool) -> bool:
        """Return True if a norm is one of the fused kernels: the final one is not where blocks are compiled alone."""
        eager = final and self.compiled and self.framework.compiles_blocks
        return "norm" in self.fused and not eager

    @property
    def expert_width(self) -> int:
        """Bytes per element in which experts multiply: autocast ignores transformers' (its integrations/moe.py)."""
        ignored = self.widths.autocast and not self.framework.autocasts_fused_experts
        return self.widths.weight if ignored else self.widths.compute

    @property
    def casts_per_linear(self) -> bool:
        """True if linear layers read an fp32 norm's output under autocast, and each makes its own cast of it."""
        if self.compiled:
            return False  # one cast, which all of them read
        widened = self.widths.autocast and self.widths.residual > self.widths.compute
        return widened or (self.widths.mixed and self.arch.norm == "layer" and self.arch.causal)

    @property
    def follows_plan(self) -> bool:
        """True if tensor parallelism follows the plan in a transformers model."""
        return self.tensor_parallel > 1 and self.framework.tensor_parallel_plan


_LIGER_PARTS = frozenset(("norm", "mlp", "rope"))
_LIGER_PATCHES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "granite", "phi3"), _LIGER_PARTS
        ),
        **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4", "falcon_h1"), _LIGER_PARTS),
        **dict.fromkeys(("hunyuan_v1_dense", "mllama_text_model", "llama4_text"), _LIGER_PARTS),
        **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _LIGER_PARTS),
        **dict.fromkeys(("glm4", "gemma4_text", "qwen3_5_text"), _LIGER_PARTS - {"rope"}),
        **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _LIGER_PARTS - {"rope"}),
        **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss", "hunyuan_v1_moe", "qwen3_vl_text"), _LIGER_PARTS - {"mlp"}),
        "deepseek_v4": frozenset(("norm",)),
    }
)
"""By ``model_type``: the parts of its blocks that ``apply_liger_kernel_to_*`` patches by default.

Read from Liger-Kernel 0.8.2 (``transformers/monkey_patch.py``, ``ops/``). Its norms save their input and the
reciprocal deviation in fp32, and write the input's gradient over the output's; its gated MLPs save both factors but
not the activation's output, and write the factors' gradients over them; its rotary embeddings work in place and
save nothing of their own. Unsloth's kernels save the same. Experts are not among the parts: their kernel (since
0.8) gathers and multiplies in another way, and they are counted as they are without it.
"""


def layer_context(job: ResolvedJob, arch: Architecture, stage: Stage) -> LayerContext:
    """Return the context of the blocks on one stage."""
    parallel, lora = job.parallel, job.lora
    eager = uses_eager_attention(job, arch)
    compiled = job.training.compile and not job.framework.transformer_engine
    masks = compiled and job.framework.trainer and job.model.attention == "sdpa"
    by_transformers = job.framework.transformers_models and job.model.attention == "sdpa"
    repeats_keys = (
        job.framework.repeats_keys
        or job.versions.repeats_keys
        or (by_transformers and job.versions.repeats_keys_for_sdpa)
        or masks  # a mask keeps sdpa from sharing keys itself
    )
    return LayerContext(
        arch=arch,
        framework=job.framework,
        versions=job.versions,
        widths=job.widths,
        micro_batch=job.sequences,
        length=job.local_length,
        targets=(arch.encoder_decoder and job.training.loss_length) or job.local_length,
        recomputes=job.recomputes,
        prompts=not job.trains,
        caches=not job.trains and arch.causal and arch.has_vocab_head,
        asks_flash=job.model.attention in ("flash_attention_2", "flash_attention_3"),
        asks_sdpa=job.model.attention == "sdpa",
        eager_attention=eager,
        math_attention=job.model.attention == "sdpa" and _uses_math_attention(arch, job.widths, copies=repeats_keys),
        masked_layers=_masked_layers(job, arch) if not eager else 0.0,
        tensor_parallel=parallel.tensor,
        residual_ranks=parallel.tensor if parallel.sequence_parallel else 1,
        context_parallel=parallel.context,
        keeps_inputs=job.partitions_weights and job.deepspeed and parallel.data_ranks > 1 and lora is not None,
        fused=COMPILED_PARTS if compiled else job.fused_kernels & _LIGER_PATCHES.get(arch.family, frozenset()),
        rms_norm=norm_kind(job.framework, job.versions),
        compiled=compiled,
        repeats_keys=repeats_keys,
        lays_heads_out=arch.causal and by_transformers and job.versions.lays_heads_out,
        masks_compiled=masks,
        masks_apart=masks and job.masks_blocks_apart,
        lora_rank=lora.rank if lora else None,
        drops_adapter_input=job.adapters.dropout > 0 and job.trains,
        quantization=job.quantization,
        separate_experts=arch.moe_layers > 0 and separates_experts(job, arch.family),
        lora_targets=lora.targets if lora else (),
        own_casts=job.adapter_units and job.shards.weights > 1 and job.widths.casts,
        readers=_readers(stage, trains_weights=lora is None),
        parts=ALL_PARTS if lora is None else NO_PARTS,
        adapted_expert_elements=_expert_elements(stage, adapters=False),
        expert_adapter_elements=_expert_elements(stage, adapters=True),
    )


def run_context(context: LayerContext, stage: Stage, run: BlockRun) -> LayerContext:
    """Return the context of blocks in which some of the model's own parameters are frozen."""
    parts = trained_parts(stage, context.arch, run.trained)
    adapted = _readers(stage, trains_weights=False)  # by adapters
    readers = {name: (count, max(needing, parts.readers.get(name, 0))) for name, (count, needing) in adapted.items()}
    return replace(context, readers=readers, parts=parts)


_SDPA_SINCE: Mapping[str, tuple[int, ...] | None] = {
    "mixtral": (4, 37),
    **dict.fromkeys(("phi", "stablelm"), (4, 39)),
    **dict.fromkeys(("bert", "vit", "wav2vec2"), (4, 41)),
    **dict.fromkeys(("gpt2", "gpt_neox"), (4, 42)),
    **dict.fromkeys(("roberta", "albert", "xlm-roberta", "xlm-roberta-xl", "camembert", "mbart"), (4, 45)),
    **dict.fromkeys(("biogpt", "m2m_100", "phi3"), (4, 45)),
    **dict.fromkeys(("distilbert", "opt"), (4, 46)),
    **dict.fromkeys(("pegasus", "marian", "blenderbot", "blenderbot-small", "persimmon", "plbart"), (4, 53)),
    "esm": (4, 56),
    **dict.fromkeys(("electra", "ernie", "data2vec-text", "mobilebert", "roc_bert", "xmod"), (5, 0)),
    **dict.fromkeys(("roberta-prelayernorm", "bert-generation"), (5, 0)),
    **dict.fromkeys(("t5", "mt5", "umt5"), (5, 16)),
    **dict.fromkeys(("codegen", "gptj", "layoutlmv3"), (5, 24)),
    **dict.fromkeys(("bigbird_pegasus", "big_bird", "bloom", "canine", "convbert", "cpmant", "deberta", "deberta-v2")),
    **dict.fromkeys(("flaubert", "fsmt", "funnel", "gpt_neo", "gpt_neox_japanese", "ibert", "layoutlmv2", "led")),
    **dict.fromkeys(("lilt", "longt5", "luke", "markuplm", "megatron-bert", "mpnet", "mpt", "mra", "mvp")),
    **dict.fromkeys(("nystromformer", "openai-gpt", "prophetnet", "rembert", "roformer", "squeezebert")),
    **dict.fromkeys(("switch_transformers", "trocr", "xglm", "xlm", "xlnet")),
    **dict.fromkeys(("plain-gpt", "plain-gpt-rotary"), ()),  # of a script's own
}
"""The first version of transformers in which a model type supports sdpa (``_supports_sdpa`` in its modeling file).

None: none does. The others support it since 4.36. Read from the last release of every minor version to 5.0, and every
other one to 5.24.
"""


def uses_eager_attention(job: ResolvedJob, arch: Architecture) -> bool:
    """Return True if attention keeps its probabilities: requested, or the family has no sdpa in the job's version.

    Args:
        job: the job.
        arch: the model's architecture.
    """
    attention, since = job.model.attention, _SDPA_SINCE.get(arch.family, (4, 36))
    version = job.software.transformers or ASSUMED_TRANSFORMERS
    has_sdpa = arch.rules.supports_sdpa and since is not None and not older(version, *since)
    return attention == "eager" or (attention == "sdpa" and not has_sdpa)


def _uses_math_attention(arch: Architecture, widths: Widths, *, copies: bool) -> bool:
    """Return True if sdpa has no fused kernel: grouped heads in fp32 without copies, or Falcon's one key for all heads.

    torch's flash kernel takes 16-bit types only, and its memory-efficient one no grouped heads (sdp_utils.cpp). Falcon
    leaves it to sdpa to broadcast its key, which no fused kernel does.
    """
    broadcasts = arch.family == "falcon" and arch.kv_heads == 1
    return arch.kv_heads != arch.heads and (broadcasts or (widths.compute == 4 and not copies))


def _masked_layers(job: ResolvedJob, arch: Architecture) -> float:
    """Share of layers in which sdpa is given a mask of every pair of positions.

    A window needs one once the sequence is longer (masking_utils); keys and values are then copied to all heads.
    """
    if not job.framework.masks_sliding_window or job.model.attention != "sdpa" or arch.sliding_window is None:
        return 0.0
    return arch.sliding_layers / arch.layers if job.training.sequence_length > arch.sliding_window else 0.0


@lru_cache(maxsize=256)
def _readers(stage: Stage, *, trains_weights: bool) -> dict[LinearInput, tuple[int, int]]:
    adapted = {local.group.name.partition(".lora_")[0] for local in stage.parameters if local.adapter}
    found: dict[LinearInput, set[str]] = {}
    for local in stage.parameters:
        name = linear_input_of(local.group.name)
        if name and local.group.linear and local.group.layered:
            found.setdefault(name, set()).add(local.group.name.removesuffix(".weight"))
    return {
        name: (_distinct_modules(modules), _distinct_modules(modules if trains_weights else modules & adapted))
        for name, modules in found.items()
    }


@lru_cache(maxsize=256)
def _expert_elements(stage: Stage, *, adapters: bool) -> int:
    """Return the elements of one layer's experts that have adapters, or of these."""
    experts = [local for local in stage.parameters if local.group.role == "expert"]
    if not any(local.adapter for local in experts):
        return 0
    return sum(local.elements // max(1, local.tensors) for local in experts if local.adapter is adapters)


def _distinct_modules(names: set[str]) -> int:
    """Number of different module names: each half of a block has one of T5's three attentions."""
    return len({name.rpartition(".")[2] for name in names})
