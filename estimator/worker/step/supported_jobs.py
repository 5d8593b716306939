"""Jobs that can be traced, and measured: a sentence for each setting that cannot. Refusals are quick: no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Request

_MAX_TOKENS = 2**36
"""Times a vocabulary and 4 bytes, the most that fits into 63 bits."""
_MAX_LAYERS = 512
"""Tracing takes about a fifth of a second for each."""
_LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MAX_SHARDS = 512
"""torch cuts every parameter into all shards: tracing 32 layers takes 8 seconds over 8 ranks, 22 over 512."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_STRATEGIES = ("none", "ddp", "fsdp2")
_ATTENTION_TARGETS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_AUTOMODEL_EXPERTS = frozenset(
    (
        *("deepseek_v3", "deepseek_v32", "deepseek_v4", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
        *("gpt_oss", "minimax_m2", "mimo_v2_flash", "mistral4", "nemotron_h", "qwen3_moe", "qwen3_next", "qwen3_5_moe"),
        *("qwen3_5_moe_text", "step3p5", "bailing_moe_v2", "hunyuan_v3", "gemma4_text", "qwen3_vl_moe_text"),
    )
)
"""Types of mixtures of experts of which NeMo AutoModel has models of its own (0.2 to 0.5, its ``registry.py``)."""
LOSSES = {
    "transformers": ("full", "fused-linear"),
    "automodel": ("full", "fused-linear"),
    "torchtune": ("full", "chunked"),
    "torchtitan": ("full", "chunked"),
    "litgpt": ("full", "chunked"),
}
"""Losses that can be traced, by framework."""
FRAMEWORKS = tuple(LOSSES)
LITGPT_STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2")
COMPILED_STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2")
"""Strategies under which a transformers model can be traced as compiled: they leave its blocks whole."""
STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron-fsdp")


def check_supported(request: Request) -> None:
    """Raise for the first setting of the job that cannot be traced.

    Raises:
        UnsupportedError: there is one.
    """
    for sentence in _unsupported_settings(request):
        raise UnsupportedError(sentence)


def _unsupported_settings(request: Request) -> Iterator[str]:
    counts = (request.config.get(name) for name in _LAYER_NAMES)
    layers = max((count for count in counts if isinstance(count, int)), default=1)
    if layers > _MAX_LAYERS:
        yield f"a model of {layers:,} layers cannot be traced in time; the limit is {_MAX_LAYERS}"
    yield from _unsupported_training(request)
    yield from _unsupported_parallelism(request)
    if request.lora is not None and request.lora.quantization != "none" and request.parallel.tensor > 1:
        yield (
            f"bitsandbytes {request.lora.quantization} weights do not work with tensor parallelism: splitting loses "
            "their quantization state"
        )


def _unsupported_training(request: Request) -> Iterator[str]:
    training = request.training
    yield from _unsupported_loop(request)
    if request.optimizer is None and training.optimizer != "none":
        yield f"the optimizer {training.optimizer} cannot be traced"
    if request.optimizer is not None and request.optimizer.path == "bitsandbytes" and request.parallel.zero_stage:
        yield "bitsandbytes' optimizers under ZeRO cannot be traced"
    yield from _unrun_passes(request, "traced")
    if training.activation_checkpointing == "selective" and training.framework != "torchtitan":
        yield f"{training.framework} has no selective activation checkpointing, so it cannot be traced"
    yield from _unrun_settings(request, "traced")
    tokens = training.micro_batch * training.sequence_length
    if tokens > _MAX_TOKENS:
        yield f"a micro-batch of {tokens:,} tokens cannot be traced: torch cannot count the bytes of its logits"
    if request.task == "feature-extraction" and training.mode == "train":
        yield "feature-extraction has no loss, so no training step can be traced"


def _unsupported_loop(request: Request) -> Iterator[str]:
    """Yield what is unknown of the loops of other frameworks, and of fused kernels, on transformers' model."""
    training, loop = request.training, request.loop
    framework, own = training.framework, training.framework != "transformers"
    if framework not in FRAMEWORKS:
        yield f"the training loop of {framework} cannot be traced, only those of {', '.join(FRAMEWORKS)}"
    if training.loss not in LOSSES.get(framework, ()):
        yield f"the {training.loss} loss cannot be traced"
    if training.loss == "chunked":
        yield from _unsupported_chunks(request)
    if training.loss_length is not None:
        yield "logits of a part of each sequence cannot be traced"
    if training.compile and not own:
        yield from _unsupported_compile(request)
    if not own and not loop.fused and not loop.keeps_outputs and training.loss == "full":
        return
    if request.task != "causal-lm":
        yield f"the loop of {framework} with these settings can be traced for causal language models only"
    if framework == "litgpt":
        yield from _unsupported_litgpt(request)
    if own and any(request.config.get(name) for name in _EXPERTS):
        yield from _unsupported_experts(request)
    if request.parallel.tensor > 1:
        yield f"tensor parallelism of {framework} with these settings cannot be traced"
    if request.code is not None and request.code.model:
        yield "fused kernels in your own code cannot be traced"


def _unsupported_experts(request: Request) -> Iterator[str]:
    """Yield what is unknown of another framework's experts: AutoModel has transformers', of some families."""
    framework, family = request.training.framework, request.config.get("model_type")
    if request.loop.experts:
        yield from _unsupported_own_experts(request)
        return
    if framework != "automodel" or family in _AUTOMODEL_EXPERTS:
        yield f"the experts of {framework} are not those of transformers and cannot be traced"
    if request.loop.fused:
        yield "Liger-Kernel's experts cannot be traced; set fused_kernels = [] for a job without them"
    if request.training.activation_checkpointing == "full":
        yield "AutoModel's checkpointing of experts cannot be traced"


def _unsupported_own_experts(request: Request) -> Iterator[str]:
    """Yield what is unknown of torchtitan's and torchtune's own experts."""
    training, parallel, framework = request.training, request.parallel, request.training.framework
    if training.compile:
        yield f"torch.compile of the experts of {framework} cannot be traced"
    if framework == "torchtune" and training.precision != "bf16":
        yield "torchtune's experts multiply only bf16 weights, so other precisions cannot be traced"
    if request.lora is not None and request.lora.quantization != "none":
        yield f"quantized experts of {framework} cannot be traced"
    if request.lora is not None and not set(request.lora.targets) <= _ATTENTION_TARGETS:
        yield f"adapters of the experts of {framework} cannot be traced"
    if parallel.strategy not in _EXPERT_STRATEGIES:
        yield f"the experts of {framework} under {parallel.strategy} cannot be traced"
    if training.mode == "inference":
        yield f"inference with the experts of {framework} cannot be traced"


def _unsupported_chunks(request: Request) -> Iterator[str]:
    """Yield what is unknown of a loss of chunks of positions."""
    framework, loop = request.training.framework, request.loop
    if request.config.get("final_logit_softcapping"):
        yield "a loss in chunks of logits that are capped cannot be traced"
    if loop.chunks_at_once and request.parallel.strategy == "ddp":
        yield f"{framework}'s chunked loss under ddp cannot be traced"


def _unsupported_litgpt(request: Request) -> Iterator[str]:
    """Yield what is unknown of LitGPT's own model."""
    lora, config = request.lora, request.config
    if request.training.mode == "inference":
        yield "LitGPT's inference cannot be traced"
    if request.training.compile:
        yield "torch.compile of LitGPT's model cannot be traced"
    if request.attention == "eager":
        yield "LitGPT has no eager attention, so it cannot be traced"
    if request.trainable is not None:
        yield "training parts of LitGPT's model cannot be traced"
    if lora is not None and lora.quantization == "int8":
        yield "LitGPT's 8-bit layers cannot be traced"
    if lora is not None and request.training.activation_checkpointing == "full" and lora.quantization != "none":
        yield "LitGPT's checkpointing of quantized layers cannot be traced"
    if request.parallel.strategy not in LITGPT_STRATEGIES:
        yield f"{request.parallel.strategy} is not a strategy of LitGPT's scripts and cannot be traced"
    if config.get("final_logit_softcapping") or config.get("attn_logit_softcapping"):
        yield "LitGPT's soft caps cannot be traced"


def _unsupported_compile(request: Request) -> Iterator[str]:
    """Yield what is unknown of a whole transformers model under torch.compile."""
    training, strategy = request.training, request.parallel.strategy
    if not request.loop.compiles:
        yield "torch.compile cannot be traced"
    if training.mode == "inference":
        yield "torch.compile of inference cannot be traced"
    if request.attention == "eager":
        yield "torch.compile of eager attention cannot be traced"
    if strategy not in COMPILED_STRATEGIES:
        yield f"torch.compile under {strategy} cannot be traced, only {', '.join(COMPILED_STRATEGIES)}"
    if strategy == "fsdp1" and (request.lora is not None or request.parallel.fsdp_min_unit_parameters is not None):
        yield "torch.compile under fsdp1 with units inside of blocks cannot be traced"
    if request.lora is not None and request.lora.quantization != "none":
        yield f"torch.compile of weights quantized to {request.lora.quantization} cannot be traced"
    if training.loss != "full" or training.fused_kernels:
        yield "Liger-Kernel's kernels under torch.compile cannot be traced"
    if request.older.copies_shifted_logits:
        yield "torch.compile of the loss of transformers before 4.49 cannot be traced"
    if request.config.get("final_logit_softcapping"):
        yield "torch.compile of logits that are capped cannot be traced"
    if any(request.config.get(name) for name in _EXPERTS):
        yield "torch.compile of experts cannot be traced"


def _unsupported_parallelism(request: Request) -> Iterator[str]:
    parallel = request.parallel
    if parallel.strategy not in STRATEGIES:
        yield f"the strategy {parallel.strategy} cannot be traced, only {', '.join(STRATEGIES)}"
    if parallel.zero_stage:
        yield from _unsupported_zero(request)
    if parallel.megatron_fsdp:
        yield from _unsupported_megatron_fsdp(request)
    for name in ("tensor",) if parallel.zero_stage or parallel.megatron_fsdp else ("data_shard", "tensor"):
        if getattr(parallel, name) > _MAX_SHARDS:
            yield f"{name} = {getattr(parallel, name):,} cannot be traced; at most {_MAX_SHARDS}"
    for name in ("pipeline", "context"):
        if getattr(parallel, name) > 1 and not (name == "pipeline" and parallel.device_map is not None):
            yield f"{name} parallelism cannot be traced"
    if parallel.expert > 1:
        yield from _unsupported_expert_parallelism(request)
    if parallel.cpu_offload == "optimizer" and not parallel.zero_stage:
        yield "CPU offload of the optimizer alone can be traced under ZeRO only"
    if parallel.cpu_offload == "all" and not (parallel.sharded or parallel.flat_sharded or parallel.zero_stage == 3):
        yield "CPU offload can be traced under fsdp1, fsdp2 and zero3 only"


def _unsupported_expert_parallelism(request: Request) -> Iterator[str]:
    """Yield what is unknown of experts that are split over ranks: torchtitan's under FSDP2 are known."""
    parallel = request.parallel
    if not request.loop.experts or request.training.framework != "torchtitan" or parallel.strategy != "fsdp2":
        yield "expert parallelism cannot be traced, except torchtitan's under fsdp2"
    if parallel.data_replicate > 1:
        yield "expert parallelism with replicas cannot be traced"
    if parallel.data_shard % parallel.expert:
        yield (
            f"experts over {parallel.expert} of {parallel.data_shard} ranks cannot be traced: the numbers do not "
            "divide evenly"
        )


def _unsupported_zero(request: Request) -> Iterator[str]:
    parallel, precision = request.parallel, request.training.precision
    wide = precision == "bf16" and parallel.gradient_dtype == "fp32" and parallel.cpu_offload == "none"
    if request.training.mode == "inference":
        yield "inference under ZeRO cannot be traced"
    if parallel.tensor > 1:
        yield "tensor parallelism under ZeRO cannot be traced"
    if parallel.zero_stage == 1 and wide:
        yield "fp32 gradients of bf16 weights under ZeRO 1 cannot be traced: DeepSpeed uses another optimizer for them"


def _unsupported_megatron_fsdp(request: Request) -> Iterator[str]:
    parallel, training = request.parallel, request.training
    if training.mode == "inference":
        yield "inference under Megatron-FSDP cannot be traced"
    if parallel.tensor > 1:
        yield "tensor parallelism under Megatron-FSDP cannot be traced"
    if training.precision.startswith("fp16"):
        yield "fp16 under Megatron-FSDP cannot be traced"
    if request.lora is not None and request.lora.quantization != "none":
        yield f"weights quantized to {request.lora.quantization} under Megatron-FSDP cannot be traced"
    if any(request.config.get(name) for name in _EXPERTS):
        yield "experts under Megatron-FSDP cannot be traced: they need their own mesh"
    if parallel.outer_sharding != "none":
        yield "Megatron-FSDP's sharding over replicas cannot be traced"
    weights = "fp32" if training.precision == "fp32" else "bf16"
    reduced = parallel.reduce_dtype or weights
    accumulated = parallel.gradient_dtype or (weights if weights == "fp32" else reduced)
    if parallel.data_replicate > 1 and accumulated != reduced:
        yield "Megatron-FSDP's replicas with gradients of two dtypes cannot be traced"
    casts = request.older.lazy_states or (parallel.main_weights and weights == "bf16")
    if accumulated != weights and not casts:
        yield (
            f"{accumulated} gradients of {weights} weights cannot be traced: Megatron-FSDP's optimizer fails on them, "
            "unless it has main weights"
        )
    if training.optimizer_in_backward:
        yield "an optimizer that steps in the backward pass cannot be traced under Megatron-FSDP"


# What is neither traced nor measured, and jobs whose real step can be run here.


MEASURED_STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2")
MEASURED_COMPILED_STRATEGIES = ("none", "ddp")
MEASURED_LOSSES = ("full", "fused-linear")
"""With the Trainer; TRL's tiles (``chunked``) are a loop of their own."""


def _unrun_passes(request: Request, run: str) -> Iterator[str]:
    if request.training.reference_pass:
        yield f"a reference's forward pass cannot be {run}"
    if request.rollout:
        yield f"text that is generated during training cannot be {run}"


def _unrun_settings(request: Request, run: str) -> Iterator[str]:
    training, ranks = request.training, request.parallel.world_size
    if training.activation_offload:
        yield f"activation offload cannot be {run}"
    if training.optimizer_in_backward and (ranks > 1 or training.precision == "fp16-mixed"):
        yield f"an optimizer that steps in the backward pass can be {run} on one GPU only, without a gradient scaler"


def check_measurable(request: Request) -> None:
    """Raise for the first setting of the job whose real step is not run here: nothing stands in for it.

    Raises:
        UnsupportedError: there is one.
    """
    for sentence in (*_unmeasured_training(request), *_unmeasured_parallelism(request)):
        raise UnsupportedError(sentence)


def _unmeasured_training(request: Request) -> Iterator[str]:
    training = request.training
    if training.framework != "transformers":
        yield f"the training loop of {training.framework} cannot be measured; that of transformers' Trainer can"
    if training.compile:
        yield from _unmeasured_compile(request)
    elif training.loss not in MEASURED_LOSSES:
        yield f"the {training.loss} loss cannot be measured, only {', '.join(MEASURED_LOSSES)}"
    elif request.device == "cpu" and (request.loop.fused or training.loss != "full"):
        parts = ", ".join(request.loop.fused) or f"the {training.loss} loss"
        yield (
            f"fused kernels ({parts}) can be measured on a GPU only, where they run; without them "
            "(training.fused_kernels, training.loss) the job can be measured on the CPU"
        )
    if request.optimizer is None and training.optimizer != "none" and training.mode == "train":
        yield f"vramtop has no class for the optimizer {training.optimizer} to run"
    yield from _unrun_passes(request, "measured")
    if training.activation_checkpointing not in ("none", "full"):
        yield f"activation checkpointing {training.activation_checkpointing} cannot be measured, none and full can"
    yield from _unrun_settings(request, "measured")
    if training.loss_length is not None:
        yield "logits of a part of each sequence cannot be measured"
    if request.task == "feature-extraction" and training.mode == "train":
        yield "feature-extraction has no loss, so there is no training step"


def _unmeasured_compile(request: Request) -> Iterator[str]:
    training, lora = request.training, request.lora
    if request.device == "cpu":
        yield (
            "torch.compile can be measured on a GPU only: on the CPU, allocations by its kernels are not counted; "
            "without training.compile the job can be measured"
        )
    if training.mode != "train" or training.loss != "full":
        yield 'torch.compile can be measured of training with the whole loss only (training.loss = "full")'
    if request.parallel.strategy not in MEASURED_COMPILED_STRATEGIES:
        known = ", ".join(MEASURED_COMPILED_STRATEGIES)
        yield f"torch.compile under {request.parallel.strategy} cannot be measured, only {known}"
    if lora is not None and lora.quantization != "none":
        yield f"torch.compile of weights quantized to {lora.quantization} cannot be measured"


def _unmeasured_parallelism(request: Request) -> Iterator[str]:
    parallel, lora = request.parallel, request.lora
    if parallel.strategy not in MEASURED_STRATEGIES:
        yield f"the strategy {parallel.strategy} cannot be measured, only {', '.join(MEASURED_STRATEGIES)}"
    for name in ("pipeline", "context", "expert"):
        if getattr(parallel, name) > 1:
            yield f"{name} parallelism cannot be measured"
    if parallel.device_map is not None:
        yield "a device map over several devices cannot be measured"
    if parallel.tensor > 1 and parallel.data_replicate > 1 and not parallel.sharded:
        yield "copies of tensor-parallel ranks cannot be measured; one copy takes the same memory (data_replicate = 1)"
    if parallel.cpu_offload != "none" and not parallel.sharded:
        yield "CPU offload can be measured under fsdp2 only"
    if parallel.cpu_offload == "optimizer":
        yield "CPU offload of the optimizer alone cannot be measured"
    if lora is not None and lora.quantization != "none" and (parallel.tensor > 1 or parallel.sharded):
        yield f"weights quantized to {lora.quantization} can be measured on whole models only (none, ddp)"
    if lora is not None and lora.quantization != "none" and parallel.flat_sharded:
        yield f"weights quantized to {lora.quantization} cannot be measured under fsdp1"
