"""A job resolved once: the rules of its framework, strategy, optimizer and versions, and the quantities they imply.

Formulas take the resolved job, or parts of it, and never compare the job's strings again.
"""

from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .job import Job
from .rules.dtype_widths import (
    BITSANDBYTES,
    BYTES_PER_ELEMENT,
    AdapterRules,
    Widths,
    adapter_rules,
    dtype_widths,
    quantization,
    uses_deepspeed,
    uses_megatron_precision,
)
from .rules.frameworks import FRAMEWORKS, LIGER_KERNELS, Framework
from .rules.optimizers.optimizer import Optimizer
from .rules.optimizers.table import LISTED_LIBRARIES, OPTIMIZERS, UNKNOWN
from .rules.strategies import PRECISIONS, STRATEGIES, Precision, Shards, Strategy, ZeroStage
from .rules.version_rules import VersionRules, version_rules
from .settings import Inference, Lora, ModelSpec, Parallel, Rollout, Software, Training, Zero
from .settled import settled
from .trainable import TrainableRules, trainable_rules, trained_heads


def rank_sizes(job: Job) -> dict[str, int]:
    """Return the fields of a resolved job that depend on its micro-batch and sequence length."""
    training, rollout = job.training, job.rollout
    length = -(-training.sequence_length // job.parallel.context)
    sequences = training.micro_batch * training.sequences_per_example
    generates = rollout is not None and rollout.engine == "transformers" and training.mode == "train"
    asks = training.mode == "inference" and job.model.task == "causal-lm"
    # of a prompt the last token: ``generate`` sets ``logits_to_keep`` to 1 (transformers' generation/utils.py)
    scores_last = asks and not version_rules(job).scores_prompts
    # what the scored completion leaves of a sequence
    prompt = (rollout and rollout.prompt_length) or max(1, length - (training.loss_length or 0))
    scored = training.loss_length or length
    if job.model.task != "seq2seq-lm":
        scored = min(length, scored)
    return {
        "sequences": sequences,
        "local_length": length,
        "local_tokens": sequences * length,
        "generated_sequences": sequences * rollout.micro_batches if rollout and generates else 0,
        "prompt_length": min(length, prompt),
        "scored_tokens": sequences * (1 if scores_last else scored),
    }


_NO_ZERO = Zero()


class ResolvedJob(Struct, frozen=True, kw_only=True, eq=False):
    """All of a job that an estimate depends on, except the model's shape."""

    job: Job
    model: ModelSpec
    training: Training
    lora: Lora | None
    inference: Inference | None
    rollout: Rollout | None
    parallel: Parallel
    """Without its tables, which ``job`` has."""
    zero: Zero
    """DeepSpeed's settings; those that are None have its defaults."""
    software: Software
    framework: Framework
    strategy: Strategy
    optimizer: Optimizer
    precision: Precision
    versions: VersionRules
    widths: Widths
    adapters: AdapterRules
    """Dtypes of LoRA adapters and of the weights beside them."""
    zero_stage: ZeroStage
    """States that are sharded."""
    shards: Shards
    """Ranks over which they are sharded."""

    trainable: TrainableRules | None
    """The model's own parameters that train; None: without adapters all, else none."""
    trains: bool
    """It trains; otherwise it runs inference."""
    is_served: bool
    """An engine serves it, with as much cache as the GPU has room for."""
    quantization: str | None
    """Storage format of frozen linear weights; None: not quantized."""
    loads_whole: bool
    """Each rank has the whole model on its GPU before FSDP shards it."""
    deepspeed: bool
    """DeepSpeed's engine runs the job."""
    megatron_precision: bool
    """Mixed precision is Megatron's."""
    partitions_weights: bool
    """DeepSpeed's ZeRO 3 is asked for: each rank creates its partition of the weights only."""
    offloads_optimizer: bool
    """Optimizer states live in host memory."""
    offloads_weights: bool
    """Weights and gradients live in host memory too."""
    gradient_buffer: bool
    """Gradients have a buffer, allocated once and zeroed after each step (Megatron-LM, Megatron-FSDP)."""
    casts_gradients: bool
    """Megatron-FSDP gives the optimizer fp32 copies of 16-bit gradients (``update_main_grads``)."""
    flattens: bool
    """FSDP1 makes flat parameters of units, sharded or not."""
    steps_in_backward: bool
    """Each gradient is applied and freed as it appears."""
    steps_flat_buffers: bool
    """The optimizer is given flat buffers, which hide the shapes of the parameters."""
    recomputes: bool
    """Activation checkpointing is full or selective."""
    recomputes_selectively: bool
    checkpoints_units: bool
    """Full checkpointing calls FSDP1's units; by default it is inside of them."""
    quantizes_experts: bool
    """Experts that are fused into one tensor are quantized too."""
    adapter_units: bool
    """FSDP1 makes a unit of each adapter's matrix, as peft's policy does under the Trainer (``fsdp_auto_wrap_policy``).

    LitGPT's blocks are units with their adapters (``FSDPStrategy(auto_wrap_policy={Block})``).
    """
    keeps_block_inputs: bool
    """Each block's input and the gradient of it stay until the backward pass is over.

    In a reentrant checkpoint the inputs of a unit are leaves, which FSDP1's hooks on the gradients of a frozen unit's
    inputs keep alive (``_register_post_backward_reshard_only_hook``; torch 2.4 to 2.13, seen on two CPU ranks).
    """
    checkpoints_with_gradient: bool
    """The first checkpointed block's input needs a gradient, whether anything before it trains or not."""
    sequences: int
    """Sequences of one forward pass on one rank."""
    local_length: int
    """Tokens of one sequence on one rank: context parallelism splits the sequence."""
    local_tokens: int
    """Tokens of one micro-batch on one rank."""
    loss_on_tokens: bool
    """The loss is made of log-probabilities or of parts of the logits: its rule counts a frozen model's logits too."""
    tiles_head: bool
    """The head runs in tiles of tokens and vocabulary (TRL since 1.15), and casts one of them at a time."""
    frozen_models_beside: bool
    """Frozen models may run while what the trained model's forward pass saved exists, not only before it."""
    generated_sequences: int
    """Sequences that a rank generates at once with transformers; 0: it generates no text, or vLLM does."""
    prompt_length: int
    """Tokens of a prompt on one rank."""
    scored_tokens: int
    """Tokens of one micro-batch on one rank whose logits are computed."""

    fused_kernels: frozenset[str]
    """Parts of the model that fused kernels compute, if there are such kernels for it."""
    assumes_fused_kernels: bool
    """The job does not say so."""
    units_around_blocks: bool
    """FSDP2 gathers embedding and head as units of their own, as it gathers blocks."""
    keeps_gathered: bool
    """FSDP keeps blocks gathered from the forward to the backward pass."""
    accumulates_unsharded: bool
    """Gradients are accumulated before they are reduced, and so unsharded."""
    keeps_outputs: bool
    """A variable of the loop holds logits through the backward pass."""
    clones_outputs: bool
    """DistributedDataParallel clones the model's outputs, since the Trainer sets ``find_unused_parameters``."""
    keeps_between_steps: bool
    """The variable that holds the logits is only overwritten by the next forward pass's outputs."""
    last_block_stays: bool
    """FSDP2 keeps the last block gathered."""
    checkpoints_parts: bool
    """Norms, attention and MLP of a block are checkpointed one by one."""
    allocator_conf: str | None
    """Settings of torch's allocator unless the environment has some: FSDP1 is older than those of launch scripts."""
    compiles_loss: bool
    """Cast, softmax and loss are one compiled kernel, which writes no fp32 copy of the logits.

    ``compile`` covers blocks and loss in torchtitan (since 0.1: components/loss.py, pull request 1033) and torchtune
    (training/_compile.py); the logits themselves are saved then, and backward writes their gradient.
    """
    masks_blocks_apart: bool
    """Compiled blocks make masks of their own: FSDP's hooks, which are not compiled, end a graph before each."""


def resolve_job(job: Job) -> ResolvedJob:
    """Resolve a job: look up its rows in the tables, and derive the quantities that depend on the job alone.

    What it leaves to its framework is settled before, with the model's config (``model.job_of_model``); without one,
    its weights are taken to be stored in bf16.
    """
    job = settled(job)
    training, parallel = job.training, job.parallel.without_tables
    framework, strategy = FRAMEWORKS[training.framework], STRATEGIES[parallel.strategy]
    precision, versions = PRECISIONS[training.precision], version_rules(job)
    row = OPTIMIZERS[UNKNOWN if training.optimizer_class else training.optimizer]
    optimizer = row.with_options(training.optimizer_options)
    stage = strategy.stage(parallel.sharding)
    # context-parallel ranks share the shards, as accelerate and torchtitan build their meshes
    shards = _shards(stage, strategy, parallel)
    without_logits = training.loss == "chunked" and framework.chunked_loss == "without-logits"
    on_tokens = without_logits or training.loss in ("log-probs", "fused-log-probs", "divergence")
    asked = job.inference if training.mode == "inference" and not job.is_served else None
    served_in = None if asked is None or asked.weights == "auto" else asked.weights  # by transformers' ``generate``
    kind = quantization(job.lora) or served_in
    full = training.activation_checkpointing == "full"
    units = full and framework.transformers_models and strategy.flat_parameters and versions.checkpoints_units
    adapters = adapter_rules(job.lora, job.software, framework, strategy, precision)
    quantized = BYTES_PER_ELEMENT[kind] if kind else None
    widths = dtype_widths(precision, framework, strategy, parallel, quantized=quantized, adapters=adapters)
    return ResolvedJob(
        job=job,
        model=job.model,
        training=training,
        lora=job.lora,
        inference=job.inference,
        rollout=job.rollout if training.mode == "train" else None,
        parallel=parallel,
        zero=job.zero or _NO_ZERO,
        software=job.software,
        framework=framework,
        strategy=strategy,
        optimizer=optimizer,
        precision=precision,
        versions=versions,
        widths=widths,
        adapters=adapters,
        zero_stage=stage,
        shards=shards,
        trainable=_trainable(job, framework),
        trains=training.mode == "train",
        is_served=job.is_served,
        quantization=kind,
        loads_whole=kind in BITSANDBYTES
        and strategy.fsdp
        and framework.trainer
        and training.mode == "train"
        and versions.keeps_quantized_on_gpu,
        deepspeed=uses_deepspeed(framework, strategy),
        megatron_precision=uses_megatron_precision(framework, strategy),
        partitions_weights=strategy.deepspeed and strategy.zero_stage == 3,
        offloads_optimizer=parallel.cpu_offload != "none",
        offloads_weights=parallel.cpu_offload == "all",
        gradient_buffer=training.mode == "train" and (framework.gradient_buffer or strategy.megatron_fsdp),
        casts_gradients=strategy.megatron_fsdp and widths.master > widths.gradient,
        flattens=strategy.flat_parameters and (parallel.data_ranks > 1 or parallel.cpu_offload == "all"),
        steps_in_backward=training.optimizer_in_backward or optimizer.in_backward,
        steps_flat_buffers=strategy.flat_parameters or uses_deepspeed(framework, strategy),
        recomputes=training.activation_checkpointing != "none",
        recomputes_selectively=training.activation_checkpointing == "selective",
        checkpoints_units=units,
        quantizes_experts=job.lora is not None and job.lora.quantize_experts,
        adapter_units=job.lora is not None and strategy.flat_parameters and not framework.own_adapters,
        keeps_block_inputs=units and job.lora is not None and shards.weights > 1,
        checkpoints_with_gradient=training.activation_checkpointing != "none"
        and framework.transformers_models
        and (versions.checkpoints_with_gradient or job.lora is not None),
        loss_on_tokens=on_tokens,
        tiles_head=without_logits and versions.tiles_head,
        frozen_models_beside=training.reference_pass or not on_tokens,
        fused_kernels=_fused_kernels(training, framework),
        assumes_fused_kernels=training.fused_kernels is None and bool(_fused_kernels(training, framework)),
        units_around_blocks=strategy.fsdp2
        and parallel.fsdp_units is None
        and framework.units_around_blocks
        and not versions.gathers_with_root,
        keeps_gathered=_keeps_gathered(framework, parallel),
        accumulates_unsharded=_accumulates_unsharded(job, framework, strategy, shards),
        keeps_outputs=framework.keeps_outputs or versions.holds_predictions
        if training.keep_outputs is None
        else training.keep_outputs,
        clones_outputs=framework.trainer
        and strategy.buckets
        and parallel.data_ranks > 1
        and (job.lora is not None or training.activation_checkpointing == "none"),
        keeps_between_steps=not framework.frees_outputs_after_backward,
        last_block_stays=strategy.fsdp2
        and parallel.reshard_after_forward
        and (framework.last_block_stays or versions.gathers_with_root),
        checkpoints_parts=framework.checkpoints_parts
        and training.activation_checkpointing == "full"
        and parallel.world_size > 1,
        allocator_conf=job.software.allocator_conf or (None if strategy.flat_parameters else framework.allocator_conf),
        compiles_loss=training.compile
        and framework.compiles_loss
        and not (framework.casts_logits and training.loss == "full")
        and not versions.leaves_loss_to_eager,
        masks_blocks_apart=training.compile and framework.trainer and strategy.fsdp and parallel.fsdp_units != "model",
        **rank_sizes(job),
    )


def with_sizes_of(resolved: ResolvedJob, job: Job) -> ResolvedJob:
    """Return a resolved job with the micro-batch and the sequence length of a job that differs in nothing else."""
    return replace(resolved, job=job, training=job.training, **rank_sizes(job))


def _trainable(job: Job, framework: Framework) -> TrainableRules | None:
    """Return the rules for which of the model's own parameters train; None: all, or none beside adapters."""
    patterns = job.training.trainable
    if patterns is not None:
        return trainable_rules(patterns, adapters=job.lora is not None)
    return trained_heads(job.model.task) if job.lora is not None and not framework.own_adapters else None


def _fused_kernels(training: Training, framework: Framework) -> frozenset[str]:
    """Return the parts that fused kernels compute: as the job says, or as the framework patches by default.

    A fused linear loss in transformers is Liger-Kernel's, whose ``use_liger_kernel`` patches the blocks too.
    """
    if training.fused_kernels is not None:
        return frozenset(training.fused_kernels)
    if framework.trainer and training.loss in ("fused-linear", "unsloth", "fused-log-probs"):
        return LIGER_KERNELS
    return framework.fused_kernels


def _keeps_gathered(framework: Framework, parallel: Parallel) -> bool:
    """Return True if blocks stay gathered between the passes.

    The job asks for it, or there are pipeline stages, where that is torchtitan's default (its distributed/fsdp.py).
    """
    pipelined = framework.pipeline_keeps_gathered and parallel.pipeline > 1
    return not parallel.reshard_after_forward or parallel.sharding in ("grad_op", "hybrid_grad_op") or pipelined


def _shards(stage: ZeroStage, strategy: Strategy, parallel: Parallel) -> Shards:
    """Return the ranks that share each kind of state; Megatron-FSDP may share optimizer states with its replicas too.

    That needs full sharding among the inner ranks (``outer_dp_sharding_strategy`` in megatron_fsdp/fully_shard.py).
    """
    shards = Shards.of_stage(stage, ranks=parallel.data_shard * parallel.context)
    if strategy.megatron_fsdp and parallel.outer_sharding == "optim" and stage == 3:
        return replace(shards, optimizer=shards.optimizer * parallel.data_replicate)
    return shards


def _accumulates_unsharded(job: Job, framework: Framework, strategy: Strategy, shards: Shards) -> bool:
    """Return True if gradients are accumulated before they are reduced.

    ``no_sync`` does so under FSDP, and so do torchtitan's pipeline stages, which reduce in a stage's last backward
    pass only (torch.distributed.pipelining.stage, ``backward_maybe_with_nosync``).
    """
    pipelined = framework.pipeline_keeps_gathered and job.parallel.pipeline > 1
    stated = job.parallel.sync_every_micro_batch
    unsynced = framework.accumulates_unsharded if stated is None else not stated
    accumulates = job.training.gradient_accumulation > 1 and (unsynced or pipelined)
    return accumulates and strategy.fsdp and shards.weights > 1


def own_optimizer_code(job: Job) -> dict[str, Any] | None:
    """Return the folder of the user's code for an optimizer class of the user's own; None for a listed library's."""
    path = job.training.optimizer_class
    if path is None or path.partition(":")[0].partition(".")[0] in LISTED_LIBRARIES:
        return None
    return {"folder": str(Path(job.model.code_folder or "").resolve())}
