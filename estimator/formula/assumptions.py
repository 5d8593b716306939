"""Assumptions of an estimate and warnings about it, in sentences."""

from collections.abc import Iterator

from ..job.gpu_catalogue import BF16_CAPABILITY, Gpu
from ..job.job import Job
from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import BITSANDBYTES, is_four_bit
from ..job.trainable import describe_trained
from ..model.adapters import adapter_groups, unmatched_targets
from ..model.architecture import Architecture
from ..model.count_parameters import UNKNOWN_FAMILY_ERROR
from ..model.families.registry import GENERIC, family_of
from ..model.inventory import Inventory
from ..model.trained_parameters import TrainedParameters, near_names
from .activations.layer_context import uses_eager_attention
from .doubts import kept_cache_bytes

_LONG_SEQUENCE = 4096
"""Eager attention deserves a warning from that length on."""


def assumptions(job: ResolvedJob, arch: Architecture | None, gpu: Gpu | None) -> tuple[str, ...]:
    """Return the assumptions of an estimate, one sentence each.

    Args:
        job: the job.
        arch: the model's shape; None: unknown, so that only what holds for all models is stated.
        gpu: the GPU; None: a Hopper GPU.
    """
    return tuple(_assumptions(job, arch, gpu))


def warnings(
    job: ResolvedJob, arch: Architecture | None, inventory: Inventory | None, *, fused_recurrence: bool = False
) -> tuple[str, ...]:
    """Return what may make the figure wrong, or the run fail for another reason, one sentence each.

    Args:
        job: the job.
        arch: the model's shape; None: unknown.
        inventory: the parameters that the figure rests on; None: the step itself was run.
        fused_recurrence: it was run with the fused kernels of recurrent blocks.
    """
    return tuple(_warnings(job, arch, inventory, fused_recurrence))


def card_warnings(job: Job, gpu: Gpu) -> Iterator[str]:
    """Yield what a GPU cannot do of what the job asks of it."""
    if gpu.compute_capability >= BF16_CAPABILITY:
        return
    if job.training.precision.startswith("bf16"):
        yield (
            f"{gpu.label} has no bf16 arithmetic, and torch's emulation is many times slower; "
            + (
                "fp32 weights with fp16 autocast are usual (training.precision = fp16-mixed)."
                if job.training.mode == "train"
                else "fp16 weights are usual (training.precision = fp16)."
            )
        )
    if job.model.attention.startswith("flash_attention"):
        yield f"FlashAttention needs Ampere or newer and does not run on {gpu.label}; use model.attention = sdpa."


def trained_assumptions(job: ResolvedJob, trained: TrainedParameters | None) -> Iterator[str]:
    """Yield what is trained where some of the model's own parameters are frozen, and what follows from that."""
    if trained is None:
        return
    if trained.outside:
        yield f"{trained.outside:,} trained parameters are outside the model, after its blocks."
    patterns = trained.inferred or (job.trainable.patterns if job.trainable else None)
    if job.trainable and job.trainable.optional:
        patterns = tuple(sorted(name.removesuffix(".weight") for name in trained.names if name.endswith(".weight")))
    if patterns and trained.scale == 1 and (trained.count or not trained.outside):
        found = " (the only usual choice with that count)" if trained.inferred else ""
        yield f"{trained.count:,} of the model's own parameters are trained: {describe_trained(patterns)}{found}."
    if job.lora and trained.count:
        yield "Besides the adapters, copies of frozen modules are trained, as peft makes them for modules_to_save."
    first = 0 if trained.before_blocks or job.lora else trained.first_block
    outside = any(".*." not in name for name in trained.names)
    if first and job.flattens and outside and not job.parallel.fsdp_wrap_classes:
        yield (
            "FSDP1's root unit holds the embedding and trained parameters, so gradients pass through frozen blocks too."
        )
    elif first and job.checkpoints_with_gradient:
        yield "With gradient checkpointing, transformers 5 passes gradients through frozen blocks too."
    elif first:
        where = "the head" if first == trained.blocks else f"block {first + 1} of {trained.blocks}"
        yield f"No parameter before {where} is trained, so the blocks before it save no activations."


def trained_warnings(job: ResolvedJob, trained: TrainedParameters | None, inventory: Inventory | None) -> Iterator[str]:
    """Yield what is not known about which parameters train."""
    if trained is None:
        return
    if trained.scale != 1:
        yield (
            f"{job.training.trainable_parameters:,} parameters are trained, but which ones is not known: the range "
            "allows for activations of all blocks and of none."
        )
    if trained.outside:
        yield (
            f"The place of the {trained.outside:,} trained parameters outside the model is not known: the range "
            "allows for gradients through all blocks, as prompts and layers inside blocks need them."
        )
    if trained.unmatched:
        near = near_names(inventory, trained.unmatched[0]) if inventory and len(trained.unmatched) == 1 else ()
        also = f"; similar: {', '.join(near)}" if near else ""
        patterns = ", ".join(map(repr, trained.unmatched))
        yield (
            f"training.trainable: no parameter of this model matches {patterns}{also}. The range allows for both cases."
        )
    if trained.guessed:
        yield "The patterns depend on numbers in parameter names that only the built model has; use --method exact."
    if not trained.count and not trained.outside and not job.lora:
        yield "No parameter of the model is trained. If the program adds its own layers, they are not counted."


def _assumptions(job: ResolvedJob, arch: Architecture | None, gpu: Gpu | None) -> Iterator[str]:
    name = gpu.label if gpu else "a Hopper GPU"
    lazy = "" if job.versions.loads_kernels_eagerly else ", with lazily loaded kernels (torch 1.13 or newer)"
    yield f"CUDA context and cuBLAS workspaces are those of {name}{lazy}."
    yield from _version_assumptions(job)
    if job.trains:
        yield "Every sequence has full length, and attention gets no padding mask."
        freed = "zeroed" if job.versions.zeroes_gradients else "set to None"
        yield f"Gradients are {freed} between steps, and optimizer states exist (from the second step on)."
    yield from _optimizer_assumptions(job)
    yield from _allocator_assumptions(job)
    if is_four_bit(job.lora) and not job.versions.keeps_quantized_inputs:
        yield "bitsandbytes is 0.43.2 or newer: 4-bit linear layers do not keep their inputs."
    if job.trains and arch is not None and arch.has_vocab_head:
        yield from _loss_assumptions(job)
    yield from _adapter_assumptions(job)
    yield from _rollout_assumptions(job, gpu)
    yield from _framework_assumptions(job)
    if arch and arch.moe_layers:
        yield "Tokens are distributed evenly over the experts."


def _adapter_assumptions(job: ResolvedJob) -> Iterator[str]:
    """Yield the dtypes of adapters, and of what is not quantized beside them."""
    rules, widths = job.adapters, job.widths
    if job.quantization and (widths.weight == 2 or rules.prepared != "none"):
        why = " (the job does not state this; the range allows for both)" if rules.assumed else ""
        if rules.prepared == "none":
            yield f"Embeddings, norms and head of the quantized model stay in 16 bits (not upcast to fp32){why}."
        else:
            cast = "Norms" if rules.prepared == "norms" else "Embeddings, norms and head"
            by = "TRL before 0.26" if rules.prepared == "norms" else "peft's prepare_model_for_kbit_training"
            yield f"{cast} of the quantized model are fp32 (cast by {by}), and so is the residual stream{why}."
    if job.lora and job.framework.fp32_adapters and widths.adapter == 4 and not rules.dtype:
        yield "Adapter weights are fp32, peft's default."
    elif rules.dtype and job.lora and not job.lora.adapter_dtype:
        why = (
            "the base weights are quantized" if job.quantization else "peft before 0.12 takes that of the base weights"
        )
        yield f"Adapter weights are {rules.dtype}, because {why}."


def _allocator_assumptions(job: ResolvedJob) -> Iterator[str]:
    if job.trains and job.allocator_conf and not job.job.software.allocator_conf:
        yield (
            f"The allocator uses {job.allocator_conf}, set by {job.framework.name}'s launch script, unless the "
            "environment overrides it."
        )


def _version_assumptions(job: ResolvedJob) -> Iterator[str]:
    """Yield what the stated versions change, one sentence each."""
    software, rules = job.software, job.versions
    if rules.keeps_quantized_inputs:
        yield f"bitsandbytes {software.bitsandbytes}: every 4-bit linear layer keeps its input for the backward pass."
    if rules.zeroes_gradients and job.trains:
        yield f"torch {software.torch}: gradients are zeroed between steps, not freed."
    if rules.saves_softmax_inputs and job.trains:
        yield f"torch {software.torch}: softmax also saves its input."
    if rules.loads_kernels_eagerly:
        yield "All kernels are loaded into the CUDA context at once (CUDA_MODULE_LOADING, or torch before 1.13)."
    if software.cublas_workspace:
        yield f"cuBLAS workspaces have the sizes of CUBLAS_WORKSPACE_CONFIG={software.cublas_workspace}."
    if rules.copies_shifted_logits and job.framework.transformers_models and job.training.loss == "full":
        yield f"transformers {software.transformers}: the causal loss copies the shifted fp32 logits."
    if rules.runs_longest_first:
        yield f"LitGPT {software.litgpt}: the longest sample runs first, so no earlier sample has left memory behind."
    if rules.leaves_loss_to_eager and job.training.compile:
        yield f"{_torchtitan(job)}: the loss is not compiled."
    if rules.gathers_with_root and job.strategy.fsdp2:
        yield f"{_torchtitan(job)}: embedding, head and last block stay gathered."


def _torchtitan(job: ResolvedJob) -> str:
    stated = job.software.torchtitan
    return f"torchtitan {stated}" if stated else f"torchtitan from the time of torch {job.software.torch}"


def _optimizer_assumptions(job: ResolvedJob) -> Iterator[str]:
    if job.optimizer.copies and job.optimizer.same_result and job.trains:
        yield (
            f"The optimizer is {job.optimizer.description}; the fused version ({job.optimizer.same_result}) makes none."
        )
    if job.optimizer.on_host and job.trains:
        yield "The optimizer states are in host memory."
    if job.optimizer.paged:
        yield (
            "Paged optimizer states are not counted: they are managed memory, which the driver evicts when the GPU "
            "is full."
        )


def _loss_assumptions(job: ResolvedJob) -> Iterator[str]:
    if job.framework.keeps_fp32_logits and job.training.loss != "fused-linear":
        yield (
            "LitGPT: Fabric casts the logits to fp32 and keeps them beyond the loss; with adapters, the head runs in "
            "chunks."
        )
    elif job.training.loss == "unsloth":
        yield (
            "Unsloth's loss makes as many logits at a time as 4 GiB hold in fp32 (half of the free memory, if that is "
            "less; until June 2026, half of the free memory, whatever it is)."
        )
    elif job.training.loss == "chunked" and job.framework.chunked_loss == "without-logits":
        how = "in tiles (TRL 1.15 or newer)" if job.versions.tiles_head else "256 tokens at a time (TRL before 1.15)"
        yield f"The head runs {how}, so the full logits never exist at once."
    elif job.training.loss == "full" and not job.versions.copies_shifted_logits:
        yield "The loss is that of transformers 4.49 or newer: fp32 logits and log-probabilities, no shifted copy."


def _rollout_assumptions(job: ResolvedJob, gpu: Gpu | None) -> Iterator[str]:
    """Yield assumptions about text that is generated during training."""
    if job.rollout is not None and job.rollout.engine == "vllm":
        share = job.rollout.gpu_memory_utilization
        total = f"the {gpu.label}" if gpu is not None else "an assumed GPU of 80 GiB"
        asleep = ". It sleeps during training and frees this memory" if job.rollout.sleep else ""
        yield (
            f"vLLM runs in the training process and takes {share:g} of {total} for its weights (counted as weights) "
            f"and its cache (counted as activations){asleep}."
        )
    elif job.generated_sequences:
        yield (
            f"The job generates {job.generated_sequences} sequences at once, each {job.local_length} tokens long; "
            "their KV cache is counted as activations."
        )


def _framework_assumptions(job: ResolvedJob) -> Iterator[str]:
    """Yield assumptions about frameworks, and about libraries that spread the job over ranks."""
    parallel = job.parallel
    if job.deepspeed and job.zero.reduce_bucket is None:
        yield "DeepSpeed's buckets have their default size of 5e8 elements; 'auto' in the Trainer makes them smaller."
    if parallel.world_size > 1:
        yield "NCCL takes 0.5 GiB per communicator of two ranks and 0.7 GiB per larger one, as measured on A100s."
    if parallel.expert > 1:
        yield "NCCL's all-to-all takes 0.4 GiB per peer on the same machine, as measured on H100s."
    if job.compiles_loss:
        yield "The loss is compiled with the model, so no fp32 logits are stored."
    if job.assumes_fused_kernels and job.trains and not job.training.compile:
        whose = "AutoModel replaces" if job.framework.fused_kernels else "Liger-Kernel (its loss is in use) replaces"
        yield (
            f"{whose} norms, MLP and rotary embeddings with fused kernels by default. The range allows for blocks "
            "without them (training.fused_kernels = [])."
        )
    if job.keeps_outputs and not job.framework.keeps_fp32_logits and job.trains:
        yield "A variable in the training loop holds the logits during the backward pass."
    if job.framework.transformer_engine:
        yield "TransformerEngine runs the linear layers and has its own workspace besides that of cuBLAS."
    if job.framework.masks_in_batch and job.trains:
        yield (
            "Each batch copies a full attention mask to the GPU, as in Megatron-LM without "
            "--no-create-attention-mask-in-dataloader."
        )
    if parallel.pipeline > 1:
        yield "The pipeline runs a 1F1B schedule over evenly distributed blocks."
    if job.model.task in ("image-text-to-text", "multimodal-lm"):
        yield "Batches are text only: images, audio and the activations of their encoders are not counted."


def _warnings(
    job: ResolvedJob, arch: Architecture | None, inventory: Inventory | None, fused_recurrence: bool
) -> Iterator[str]:
    training, parallel = job.training, job.parallel
    if arch:
        yield from _shape_warnings(job, arch, inventory, fused_recurrence)
    if inventory is not None and (unmatched := unmatched_targets(inventory, job)):
        names = ", ".join(unmatched)
        yield f"lora.targets: this model has no layer named {names}; peft ignores the name and adapts the others."
    if training.compile:
        yield (
            "torch.compile: blocks are assumed to be partitioned like those of Llama and Qwen; the range allows for "
            "graph breaks and other partitions."
        )
    if job.optimizer.high is not None and job.trains and inventory is not None:
        name = job.training.optimizer_class or "The optimizer"
        yield (
            f"{name} is not known: the figure has two fp32 states per trained parameter, and the range allows for 0 "
            "to 4."
        )
    if training.gradient_accumulation > 1 and job.steps_in_backward:
        yield "An optimizer step in the backward pass does not work with gradient accumulation."
    yield from _fsdp_warnings(job)
    if arch and kept_cache_bytes(job, arch):
        yield "The outputs that the loop keeps hold keys and values unless use_cache is off; the range allows for it."
    if parallel.expert > 1:
        yield (
            "Expert parallelism: a rank whose experts get more tokens than average needs more memory than this figure."
        )
    if parallel.expert > 1 and parallel.expert > parallel.data_ranks * parallel.context:
        yield "parallel.expert is larger than the number of data-parallel ranks (times context-parallel ranks)."
    if job.quantization in BITSANDBYTES and parallel.tensor > 1 and job.framework.tensor_parallel_plan:
        yield (
            "bitsandbytes weights do not work with a tensor-parallel plan: splitting loses their quantization state, "
            "and the first forward pass fails (transformers 5.23 with bitsandbytes 0.50). The figures assume split "
            "weights."
        )
    if not job.strategy.replicates and parallel.data_ranks > 1:
        yield (
            "The job has several data-parallel ranks but no strategy: each rank is estimated as a copy that reduces "
            "no gradients."
        )


def _fsdp_warnings(job: ResolvedJob) -> Iterator[str]:
    if job.loads_whole:
        yield (
            "Each rank has the whole quantized model on its GPU before FSDP shards it, as transformers 5 loads it; "
            'that memory stays reserved. device_map={"": "cpu"} loads it on the host.'
        )
    if job.strategy.fsdp2 and job.shards.weights > 1 and is_four_bit(job.lora) and job.framework.trainer:
        yield (  # fsdp2_prepare_model of accelerate 1.15, "incompatible_params4bit"
            "4-bit weights are assumed to be stored in a floating type (bnb_4bit_quant_storage), which FSDP 2 shards; "
            "in bitsandbytes' default, uint8, accelerate keeps them whole on each GPU."
        )
    if job.accumulates_unsharded:
        yield "Gradient accumulation under FSDP keeps unsharded gradients between micro-batches (no_sync)."


def _shape_warnings(
    job: ResolvedJob, arch: Architecture, inventory: Inventory | None, fused_recurrence: bool
) -> Iterator[str]:
    length, tensor = job.training.sequence_length, job.parallel.tensor
    approximate, parts = inventory and inventory.count == "approximate", ", ".join(arch.uncounted_parts)
    if inventory and job.model.task != arch.task and not parts:
        yield f"The formula has no rule for the {job.model.task} head and uses that of {arch.task}."
    if inventory and approximate:
        what = "counts of parameters and adapters are" if job.lora else "parameter count is"
        yield f"The {what} approximate: {inventory.source}.{_known_error(arch)}"
        yield from _own_attention(job, arch)
    if approximate and parts:
        size = f"about {arch.uncounted_parameters / 1e6:,.0f} million" if arch.uncounted_parameters else "unknown"
        yield f"Only the language model is counted, not {parts} (parameters: {size})."
    elif inventory and parts and job.model.task != arch.task:
        yield f"The formula has no rule for {parts}: activations of images are not counted."
    if arch.recurrent and inventory:
        yield (
            "Some or all blocks are recurrent (state spaces, linear attention, convolutions), and the formula has no "
            "rule for them. Without fused kernels they take several times this figure. Trace the job."
        )
    elif arch.recurrent and not fused_recurrence:
        yield (
            "Recurrent blocks were traced without fused kernels (mamba-ssm, causal-conv1d, flash-linear-attention); "
            "with them, a step takes less memory."
        )
    if arch.max_positions and length > arch.max_positions:
        yield f"The sequence length {length} exceeds the model's {arch.max_positions} positions."
    if uses_eager_attention(job, arch) and length >= _LONG_SEQUENCE:
        yield "Eager attention stores all attention probabilities: memory grows with the square of the sequence length."
    if job.quantization in BITSANDBYTES and arch.moe_layers and not job.quantizes_experts:
        yield from _expert_warning(job, arch)
    if inventory and arch.moe_layers and any(g.role == "expert" for g in adapter_groups(inventory, job)):
        yield (
            "For fused experts, peft creates full-size adapter weights in each forward pass; the formula does not "
            "count them."
        )
    if tensor > 1 and arch.family == "gpt_oss" and job.framework.tensor_parallel_plan and inventory:
        yield (
            "transformers' own plan for gpt_oss splits only the head (5.23; for the blocks it has only an expert "
            "plan). The figure assumes split blocks, as your own plan may split them. Trace the job."
        )
    if tensor > 1 and arch.kv_heads % tensor:
        yield f"{arch.kv_heads} key-value heads do not divide evenly over {tensor} tensor-parallel ranks."


def _expert_warning(job: ResolvedJob, arch: Architecture) -> Iterator[str]:
    """Yield whether bitsandbytes quantizes the experts."""
    linear = family_of(arch.family).separate_expert_names is not None
    if job.versions.separates_experts and linear:
        yield (
            f"transformers {job.software.transformers} holds experts as linear layers, which are quantized. The "
            "figure assumes an equal share of the tokens for each."
        )
        return
    older = " transformers 4 held them as linear layers, which were quantized." if linear else ""
    yield f"bitsandbytes does not quantize experts that are fused into one tensor; they are counted unquantized.{older}"


def _own_attention(job: ResolvedJob, arch: Architecture) -> Iterator[str]:
    if arch.own_code and job.model.attention == "sdpa":
        yield (
            "The model comes with its own code, and whether its attention runs in a fused kernel is not known: the "
            "range allows for scores that are kept (--attention flash_attention_2 or eager says which)."
        )


def _known_error(arch: Architecture) -> str:
    """Return a sentence on the measured error of reading a family like Llama's."""
    if family_of(arch.family) is not GENERIC:
        return ""
    low, high = UNKNOWN_FAMILY_ERROR
    return (
        f" For known families this reading is off by {low:+.0%} to {high:+.0%}: right for gated decoders, too high "
        "for others."
    )
