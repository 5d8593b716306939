"""What an estimate takes for granted, and what its user should know: in sentences."""

from collections.abc import Iterator

from ..job.dtype_widths import uses_zero
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.version_rules import (
    copies_shifted_logits,
    keeps_quantized_inputs,
    loads_kernels_eagerly,
    version_assumptions,
    zeroes_gradients,
)
from ..model.architecture import Architecture
from ..model.count_parameters import UNKNOWN_FAMILY_ERROR
from ..model.families.registry import FAMILIES
from ..model.lora import adapter_groups
from ..model.parameters import Inventory
from .activations.layer_context import uses_eager_attention
from .activations.logits_and_loss import compiles_loss
from .model_states import accumulates_whole


def assumptions(job: Job, arch: Architecture | None, gpu: Gpu | None) -> tuple[str, ...]:
    """What was taken for granted, one sentence each; of a model without a known shape, what holds for all."""
    return tuple(_assumptions(job, arch, gpu))


def warnings(job: Job, arch: Architecture | None, inventory: Inventory | None) -> tuple[str, ...]:
    """What may make the figure wrong, or the run fail for another reason, one sentence each.

    Args:
        job: what is trained.
        arch: the model's shape; None where its config tells none.
        inventory: the count that the figure rests on; None where the step itself was run.
    """
    return tuple(_warnings(job, arch, inventory))


def _assumptions(job: Job, arch: Architecture | None, gpu: Gpu | None) -> Iterator[str]:
    training, words = job.training, arch is not None and arch.has_vocab_head
    card = gpu.label if gpu else "a card of the Hopper generation"
    lazy = "" if loads_kernels_eagerly(job) else ", with lazily loaded kernels (torch 1.13 or newer)"
    yield f"CUDA context and cuBLAS workspaces as on {card}{lazy}."
    yield from version_assumptions(job)
    if training.mode == "train":
        yield "Every sequence has the full length, and no padding mask is passed to attention."
        freed = "zeroed" if zeroes_gradients(job) else "set to None"
        yield f"Gradients are {freed} between steps, and optimizer states exist (the second step or a later one)."
    if training.optimizer == "adamw" and training.mode == "train":
        yield "AdamW is torch's with foreach, which copies what it steps; the fused one (adamw-fused) does not."
    if training.optimizer.startswith("paged"):
        yield "Paged optimizer states are managed memory, not counted: the driver moves them away when room is short."
    if job.lora and job.lora.quantization.startswith("nf4") and not keeps_quantized_inputs(job):
        yield "bitsandbytes is 0.43.2 or newer: 4-bit linear layers do not keep their inputs."
    if training.framework == "litgpt" and training.loss != "fused-linear" and words:
        yield "LitGPT: Fabric casts the logits to fp32, which outlive the loss; under adapters the head runs by chunks."
    elif training.loss == "full" and words and not copies_shifted_logits(job):
        yield "The loss is transformers' since 4.49: fp32 logits and log-probabilities, no shifted copy."
    if job.lora and job.lora.quantization != "none":
        yield "Embeddings, norms and head of the quantized model stay in 16 bits (not upcast to fp32)."
    if job.lora and training.framework == "transformers" and not uses_zero(job):
        yield "Adapter weights are fp32, as peft makes them by default."
    yield from _of_frameworks(job)
    if arch and arch.moe_layers:
        yield "Tokens are dealt to the experts evenly."


def _of_frameworks(job: Job) -> Iterator[str]:
    """What frameworks, and what spreads the job, bring with them."""
    training, parallel = job.training, job.parallel
    if uses_zero(job):
        yield "DeepSpeed's buckets have their default size of 5e8 elements; 'auto' in the Trainer makes them smaller."
    if parallel.world_size > 1:
        yield "NCCL takes 0.5 GiB for each communicator of two ranks and 0.7 for one of more, as measured on A100s."
    if parallel.expert > 1:
        yield "NCCL's all-to-all takes 0.4 GiB for each peer on the same machine, as measured on H100s."
    if compiles_loss(job):
        yield "The loss is compiled with the model, so that no fp32 logits are written."
    if training.framework == "megatron":
        yield "TransformerEngine computes the linear layers, with a workspace of its own beside cuBLAS'."
    if parallel.pipeline > 1:
        yield "The pipeline runs a 1F1B schedule over blocks dealt out evenly."
    if job.model.task in ("image-text-to-text", "multimodal-lm"):
        yield "Batches hold text alone: images and sounds, and what their encoders save, are not counted."


def _warnings(job: Job, arch: Architecture | None, inventory: Inventory | None) -> Iterator[str]:
    training, parallel = job.training, job.parallel
    if arch:
        yield from _of_the_shape(job, arch, inventory)
    if training.compile:
        yield "torch.compile changes what is saved; the lower bound allows for 40 % less activation memory."
    if training.gradient_accumulation > 1 and training.optimizer_in_backward:
        yield "Stepping in the backward pass does not go together with gradient accumulation."
    if accumulates_whole(job):
        yield "Accumulating under FSDP keeps unsharded gradients between micro-batches (no_sync)."
    if parallel.expert > 1 and parallel.expert > parallel.data_ranks * parallel.context:
        yield "There are more expert-parallel ranks than data-parallel ones to take them from."
    if parallel.strategy in ("none",) and parallel.data_ranks > 1:
        yield "Several data-parallel ranks without a strategy: every rank is taken as a copy that reduces nothing."


def _known_error(arch: Architecture) -> str:
    """What reading a family as Llama's was measured to be off by."""
    if arch.family in FAMILIES:
        return ""
    low, high = UNKNOWN_FAMILY_ERROR
    return (
        f" Known families read like that come out {low:+.0%} to {high:+.0%} off: gated decoders right, others too high."
    )


def _of_the_shape(job: Job, arch: Architecture, inventory: Inventory | None) -> Iterator[str]:
    training, parallel = job.training, job.parallel
    if inventory and job.model.task != arch.task:
        yield f"The formula has no rule for the {job.model.task} head; that of {arch.task} stands in for it."
    if inventory and inventory.count == "approximate":
        yield f"The parameter count is approximate: {inventory.source}.{_known_error(arch)}"
    if arch.max_positions and training.sequence_length > arch.max_positions:
        yield f"The sequence length {training.sequence_length} is beyond the model's {arch.max_positions} positions."
    if uses_eager_attention(job.model.attention, arch) and training.sequence_length >= 4096:
        yield "Eager attention keeps every attention probability: memory grows with the square of the sequence length."
    if job.lora and job.lora.quantization != "none" and arch.moe_layers:
        yield "Experts fused into one tensor are not quantized by bitsandbytes; they are counted unquantized."
    if inventory and arch.moe_layers and any(g.role == "expert" for g in adapter_groups(inventory, job)):
        yield (
            "peft adds adapters of fused experts to whole weights, made anew in every forward pass; the formula does "
            "not count those."
        )
    if parallel.tensor > 1 and arch.kv_heads % parallel.tensor:
        yield f"{arch.kv_heads} key-value heads do not divide evenly over {parallel.tensor} tensor-parallel ranks."
