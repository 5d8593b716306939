"""Explains why a job holds more or less memory than predicted, by settings one or two changes away from its own.

Each cause (``cause_table``, ``extra_memory``) is weighed by its plausibility and by how close its prediction comes,
against the possibility that the estimate itself is off. Causes that predict the same bytes are reported together.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import msgspec

from ..budget import Budget
from ..common.errors import VramtopError
from ..common.records import replace
from ..common.reserved_memory import only_figures
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.optimizers.table import OPTIMIZERS
from ..job.rules.strategies import STRATEGIES
from ..job.setting_values import OptimizerName, StrategyName
from .cause_search import (
    COMMON,
    FALLBACK_MAX_Z_SCORE,
    MAX_Z_SCORE,
    RARE,
    SAME_BYTES_SHARE,
    SOME,
    UNLIKELY,
    USUAL,
    Cause,
    CauseRule,
    CauseSearch,
    CauseSource,
    Estimate,
    Measure,
    WeighedCauses,
    extra_memory_causes,
    whole_gpu_causes,
)

# The table of wrong settings of the computation: attention, loss, batch, sequence length, precision and kernels.
#
# Scripts, defaults and launchers get these wrong; the comments give the reasons for each plausibility.


_TRAINER_BATCH = 8
"""transformers' default of ``per_device_train_batch_size``."""
_PATCH_FIX = "make sure that Liger or cut cross-entropy patches this model's class before it is made"
_ATTENTION = (
    CauseRule(
        name="attention fused",
        description="attention is fused (sdpa)",
        applies=lambda job: job.model.attention == "eager",
        plausibility=USUAL,  # transformers' default
        changes={"model.attention": "sdpa"},
    ),
    # a request for attention weights, or a model that has no other, falls back to it
    CauseRule(
        name="attention eager",
        description="attention is eager and keeps its probabilities",
        applies=lambda job: job.model.attention != "eager",
        plausibility=lambda job: SOME if job.model.attention == "sdpa" else RARE,
        changes={"model.attention": "eager"},
        fix='load the model with attn_implementation="sdpa" and without output_attentions',
    ),
)
_LOSS = (
    CauseRule(
        name="loss full",
        description="the loss is computed on all logits in fp32",
        applies=lambda job: job.training.loss != "full",
        plausibility=USUAL,  # a patch that does not know the model changes nothing, and at best logs that
        changes={"training.loss": "full"},
        fix=_PATCH_FIX,
    ),
    CauseRule(
        name="loss fused",
        description="the loss is fused with the head (Liger, cut cross-entropy)",
        applies=lambda job: job.training.loss != "fused-linear",
        plausibility=SOME,
        changes={"training.loss": "fused-linear"},
    ),
    CauseRule(
        name="loss chunked",
        description="the loss is computed in chunks",
        applies=lambda job: job.training.loss != "chunked",
        plausibility=lambda job: UNLIKELY if job.framework.available_loss == "fused-linear" else SOME,
        changes={"training.loss": "chunked"},
    ),
    CauseRule(
        name="older transformers",
        description="transformers is older than 4.49: its loss copies the fp32 logits",
        applies=lambda job: job.framework.trainer and job.software.transformers is None and job.training.loss == "full",
        plausibility=RARE,
        changes={"software.transformers": "4.48"},
    ),
)
_KERNELS = CauseRule(
    name="kernels loaded at once",
    description="all CUDA kernels are loaded at once (CUDA_MODULE_LOADING=EAGER)",
    applies=lambda job: job.software.module_loading is None,
    plausibility=RARE,
    changes={"software.module_loading": "eager"},
)


def _other_batches(job: ResolvedJob) -> Iterator[Cause]:
    batch, ranks = job.training.micro_batch, job.parallel.data_ranks
    found: dict[int, float] = {}
    for factor, plausibility in ((2, SOME), (4, RARE), (8, UNLIKELY)):
        found[batch * factor] = plausibility  # chosen and rejected answers in one batch; a copied setting
        if batch % factor == 0:
            found[batch // factor] = plausibility  # auto_find_batch_size halves it until it fits
    if ranks > 1:
        # accelerate's split_batches, DataParallel: one batch for all ranks
        found.setdefault(batch * ranks, RARE)
        if batch % ranks == 0:
            found[batch // ranks] = max(SOME, found.get(batch // ranks, 0.0))
    if job.framework.trainer:
        found.setdefault(_TRAINER_BATCH, UNLIKELY)
    found.pop(batch, None)
    for size, plausibility in sorted(found.items()):
        yield Cause(
            name="batch larger" if size > batch else "batch smaller",
            description=f"the micro-batch is {size}, not {batch}",
            plausibility=plausibility,
            changes={"training.micro_batch": size},
        )


def _longer_sequences(job: ResolvedJob) -> Iterator[Cause]:
    """Yield longer sequences; ``cause_search`` looks for shorter ones."""
    limit = job.training.sequence_length
    for factor, plausibility in ((2, RARE), (4, UNLIKELY)):
        yield Cause(
            name="longer sequences",
            description=f"inputs are not truncated to {limit} tokens (they have {limit * factor})",
            plausibility=plausibility,
            changes={"training.sequence_length": limit * factor},
            fix="truncate in the tokenizer or the collator (truncation, max_length)",
        )


def _other_precisions(job: ResolvedJob) -> Iterator[Cause]:
    now = job.precision
    half = "fp16" if now.dtype == "float16" else "bf16"
    wide = "load the model with dtype=torch.bfloat16, or let the framework cast it"
    weights = "weights" if job.lora else "weights, gradients and states"
    kinds = {
        # scripts that set bf16=True train fp32 weights before transformers 5, which loads the checkpoint's own dtype
        f"{half}-mixed": (f"weights are fp32 under {half} autocast", COMMON if now.half_weights else SOME, wide),
        half: (f"{weights} are {half} throughout", COMMON if now.mixed else SOME, ""),
        "fp32": ("weights and arithmetic are fp32", SOME, "make sure that bf16 or fp16 reaches the trainer"),
    }
    for precision, (description, plausibility, fix) in kinds.items():
        if precision != now.name:
            yield Cause(
                name=f"precision {precision.replace(half, '16')}",
                description=description,
                plausibility=plausibility,
                changes={"training.precision": precision},
                fix=fix,
            )


COMPUTATION_CAUSES: tuple[CauseSource, ...] = (
    *_ATTENTION,
    *_LOSS,
    _other_batches,
    _longer_sequences,
    _other_precisions,
)
"""Causes of jobs that train or run inference."""
SOFTWARE_CAUSES: tuple[CauseSource, ...] = (_KERNELS,)
"""Causes in the settings of libraries."""


# The table of other ways to shard the same GPUs: sharding that is not applied, or another one than was read.


_RANKS_PER_NODE = 8
"""GPUs of a usual machine."""


def _shards(job: ResolvedJob) -> bool:
    """Return True if the strategy is a sharding one and has ranks to shard over."""
    return job.strategy.zero_stage > 0 and job.parallel.data_shard > 1


def _could_shard(job: ResolvedJob) -> bool:
    """Return True if nothing is sharded and there are ranks to shard over."""
    return job.strategy.zero_stage == 0 and job.parallel.data_ranks > 1


def _shard_all(job: ResolvedJob, strategy: StrategyName) -> dict[str, Any]:
    return {
        "parallel.strategy": strategy,
        "parallel.data_shard": job.parallel.data_ranks,
        "parallel.data_replicate": 1,
    }


def _may_offload(job: ResolvedJob) -> bool:
    return bool(job.strategy.cpu_offload) and not job.offloads_optimizer and job.trains


_NOT_SHARDED = (
    CauseRule(
        name="no process group",
        description="each rank trains on its own: no process group, no buckets",
        applies=lambda job: _could_shard(job) and job.strategy.buckets,
        plausibility=RARE,
        changes={"parallel.strategy": "none", "parallel.data_replicate": 1},
        fix="start the script with torchrun or accelerate launch",
    ),
    CauseRule(
        name="sharded",
        description="the states are sharded over the ranks (FSDP or ZeRO-3)",
        applies=_could_shard,
        plausibility=SOME,  # by a configuration that was not found
        changes=lambda job: _shard_all(job, "fsdp2"),
    ),
    CauseRule(
        name="sharded",
        description="the states are sharded over the ranks (ZeRO-2)",
        applies=_could_shard,
        plausibility=SOME,
        changes=lambda job: _shard_all(job, "zero2"),
    ),
)
_NOT_APPLIED = CauseRule(
    name="sharding off",
    description="sharding is not applied: every rank holds everything (DDP)",
    applies=_shards,
    plausibility=COMMON,  # a plain torchrun in place of accelerate launch makes DDP of the same script
    changes=lambda job: {
        "parallel.strategy": "ddp",
        "parallel.data_shard": 1,
        "parallel.data_replicate": job.parallel.data_ranks,
        "parallel.cpu_offload": "none",
    },
    fix="start the script with accelerate launch and the FSDP or DeepSpeed configuration",
)
_FSDP = (
    CauseRule(
        name="other FSDP",
        description="the job uses FSDP2, not FSDP1",
        applies=lambda job: _shards(job) and job.strategy.fsdp and not job.strategy.fsdp2,
        plausibility=RARE,
        changes={"parallel.strategy": "fsdp2"},
    ),
    CauseRule(
        name="other FSDP",
        description="the job uses FSDP1, not FSDP2",
        applies=lambda job: _shards(job) and job.strategy.fsdp2,
        plausibility=RARE,  # accelerate's default was FSDP1, and its files state the version
        changes={"parallel.strategy": "fsdp1"},
    ),
    CauseRule(
        name="kept gathered",
        description="weights stay gathered after the forward pass",
        applies=lambda job: _shards(job) and job.strategy.fsdp and job.parallel.reshard_after_forward,
        plausibility=SOME,
        changes={"parallel.reshard_after_forward": False},
    ),
    CauseRule(
        name="resharded",
        description="weights are freed after the forward pass",
        applies=lambda job: _shards(job) and job.strategy.fsdp and not job.parallel.reshard_after_forward,
        plausibility=SOME,
        changes={"parallel.reshard_after_forward": True},
    ),
)
_GROUPS = (
    CauseRule(
        name="sharded by node",
        description="each node shards on its own (hybrid sharding)",
        applies=lambda job: (
            _shards(job)
            and job.parallel.data_shard > _RANKS_PER_NODE
            and job.parallel.data_shard % _RANKS_PER_NODE == 0
        ),
        plausibility=SOME,
        changes=lambda job: {
            "parallel.data_shard": _RANKS_PER_NODE,
            "parallel.data_replicate": job.parallel.data_ranks // _RANKS_PER_NODE,
        },
    ),
    CauseRule(
        name="sharded over all",
        description="sharding spans all ranks, not each group separately",
        applies=lambda job: _shards(job) and job.parallel.data_replicate > 1,
        plausibility=SOME,
        changes=lambda job: {"parallel.data_shard": job.parallel.data_ranks, "parallel.data_replicate": 1},
    ),
)
_OFFLOAD = (
    CauseRule(
        name="offload off",
        description="nothing is offloaded to host memory",
        applies=lambda job: job.offloads_optimizer,
        plausibility=USUAL,  # the file that asks for it was not the one that was loaded
        changes={"parallel.cpu_offload": "none"},
    ),
    CauseRule(
        name="offload optimizer",
        description="the optimizer states are in host memory",
        applies=_may_offload,
        plausibility=RARE,
        changes={"parallel.cpu_offload": "optimizer"},
    ),
    CauseRule(
        name="offload all",
        description="weights and optimizer states are in host memory",
        applies=_may_offload,
        plausibility=RARE,
        changes={"parallel.cpu_offload": "all"},
    ),
)


def _other_zero_stages(job: ResolvedJob) -> Iterator[Cause]:
    """Yield the other stages of ZeRO."""
    if not _shards(job) or not job.strategy.deepspeed:
        return
    for other in STRATEGIES.values():
        away = abs(other.zero_stage - job.strategy.zero_stage)
        if other.deepspeed and away:
            yield Cause(
                name=f"stage {other.zero_stage}",
                description=f"the job uses ZeRO stage {other.zero_stage}, not {job.strategy.zero_stage}",
                plausibility=SOME if away == 1 else RARE,
                changes={"parallel.strategy": other.name},
            )


def _other_shardings(job: ResolvedJob) -> Iterator[Cause]:
    """Yield the other values of ``parallel.sharding`` by which FSDP1 or Megatron-FSDP shards other states."""
    strategy = job.strategy
    if not _shards(job) or not strategy.stages_by_sharding:
        return
    now = job.parallel.sharding if job.parallel.sharding != "full" else strategy.full_sharding
    for sharding in (*strategy.stages_by_sharding, strategy.full_sharding):
        if sharding != now:
            yield Cause(
                name=f"shards {sharding}",
                description=f"the sharding strategy is {sharding}",
                plausibility=SOME,
                changes={"parallel.sharding": sharding},
            )


def _other_group_sizes(job: ResolvedJob) -> Iterator[Cause]:
    """Yield sharding over half and over twice as many ranks."""
    if not _shards(job):
        return
    shard = job.parallel.data_shard
    sizes = {"fewer ranks": shard // 2 if shard % 2 == 0 and shard > 2 else None, "more ranks": shard * 2}
    for name, size in sizes.items():
        if size is not None:
            yield Cause(
                name=name,
                description=f"the job is sharded over {size} ranks, not {shard}",
                plausibility=UNLIKELY,
                changes={"parallel.data_shard": size},
            )


def _dimensions_off(job: ResolvedJob) -> Iterator[Cause]:
    """Yield tensor, pipeline and context parallelism that is not applied."""
    parallel = job.parallel
    sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context}
    for dimension, size in sizes.items():
        if size > 1:
            yield Cause(
                name=f"{dimension} off",
                description=f"{dimension} parallelism is not applied",
                plausibility=RARE,
                changes={f"parallel.{dimension}": 1, "parallel.data_replicate": parallel.data_replicate * size},
            )


SHARDING_CAUSES: tuple[CauseSource, ...] = (
    *_NOT_SHARDED,
    _NOT_APPLIED,
    _other_zero_stages,
    *_FSDP,
    _other_shardings,
    *_GROUPS,
    _other_group_sizes,
    *_OFFLOAD,
    _dimensions_off,
)


# The table of wrong settings of a training step: checkpointing, offload, accumulation, optimizer and adapters.
#
# Scripts, defaults and launchers get these wrong; the comments give the reasons for each plausibility.


_OPTIMIZERS: dict[OptimizerName, float] = {
    "adamw": USUAL,  # torch's own choice on GPUs
    "adamw-fused": USUAL,  # transformers' default since 4.46
    "adamw-8bit": SOME,
    "paged-adamw-8bit": SOME,
    "adafactor": RARE,
    "muon": UNLIKELY,
    "lion": UNLIKELY,
    "sgd": UNLIKELY,
}
"""Plausibility of each optimizer; of those that need the same memory only one is listed."""
_SAME_MEMORY = {"sgd-momentum": "lion"}
"""Optimizers that are not listed, and the listed one that needs the same memory."""


def _trains_quantized(job: ResolvedJob) -> bool:
    return job.quantization is not None


_CHECKPOINTING = (
    # a flag that the script's own loop never reads, or a model that was wrapped before it was set
    CauseRule(
        name="checkpointing off",
        description="activation checkpointing is off",
        applies=lambda job: job.recomputes,
        plausibility=lambda job: USUAL if job.recomputes_selectively else COMMON,
        changes={"training.activation_checkpointing": "none"},
        fix="make sure that the script calls model.gradient_checkpointing_enable() or passes the setting to the "
        "trainer",
    ),
    # trl and unsloth switch it on by default, and so does peft's prepare_model_for_kbit_training
    CauseRule(
        name="checkpointing on",
        description="activation checkpointing is on",
        applies=lambda job: job.training.activation_checkpointing != "full",
        plausibility=lambda job: COMMON if _trains_quantized(job) else USUAL,
        changes={"training.activation_checkpointing": "full"},
    ),
    CauseRule(
        name="checkpointing selective",
        description="activation checkpointing is selective",
        applies=lambda job: not job.recomputes_selectively,
        plausibility=lambda job: SOME if job.framework.selective_checkpointing else UNLIKELY,  # their own default
        changes={"training.activation_checkpointing": "selective"},
    ),
)


_STEP = (
    CauseRule(
        name="activation offload off",
        description="activations stay on the GPU (no offload)",
        applies=lambda job: job.training.activation_offload,
        plausibility=USUAL,
        changes={"training.activation_offload": False},
    ),
    CauseRule(
        name="activation offload on",
        description="activations are offloaded to the host",
        applies=lambda job: not job.training.activation_offload,
        plausibility=UNLIKELY,  # no framework does so by default
        changes={"training.activation_offload": True},
    ),
    CauseRule(
        name="step after backward",
        description="gradients are kept until the optimizer step",
        applies=lambda job: job.training.optimizer_in_backward,
        plausibility=USUAL,
        changes={"training.optimizer_in_backward": False},
    ),
    CauseRule(
        name="accumulation off",
        description="gradients are not accumulated",
        applies=lambda job: job.training.gradient_accumulation > 1,
        plausibility=RARE,
        changes={"training.gradient_accumulation": 1},
    ),
    CauseRule(
        name="accumulation on",
        description="gradients accumulate over several micro-batches",
        applies=lambda job: job.training.gradient_accumulation == 1,
        plausibility=RARE,
        changes={"training.gradient_accumulation": 8},
    ),
    CauseRule(
        name="compile off",
        description="the model is not compiled",
        applies=lambda job: job.training.compile,
        plausibility=RARE,
        changes={"training.compile": False},
    ),
    CauseRule(
        name="inference alone",
        description="nothing is trained: inference or evaluation only",
        plausibility=UNLIKELY,
        changes={"training.mode": "inference"},
    ),
)


_ADAPTERS = (
    CauseRule(
        name="adapters alone",
        description="only adapters are trained (LoRA)",
        applies=lambda job: job.lora is None,
        plausibility=lambda job: USUAL if job.framework.trainer else RARE,
        changes={"lora.rank": 16, "lora.targets": "all-linear"},
    ),
    CauseRule(
        name="all weights trained",
        description="all weights are trained, not only adapters",
        applies=lambda job: job.lora is not None,
        plausibility=SOME,
        changes={"lora": None},
        fix="pass the trainer the model that get_peft_model() returned, or peft_config",
    ),
    CauseRule(
        name="quantization off",
        description="the frozen weights are not quantized",
        applies=_trains_quantized,
        plausibility=COMMON,  # a quantization_config that never reaches from_pretrained
        changes={"lora.quantization": "none"},
        fix="pass quantization_config (BitsAndBytesConfig) to from_pretrained",
    ),
    CauseRule(
        name="quantization nf4",
        description="the frozen weights are quantized to 4 bits",
        applies=lambda job: job.lora is not None and not job.lora.quantization.startswith("nf4"),
        plausibility=lambda job: RARE if _trains_quantized(job) else SOME,
        changes={"lora.quantization": "nf4"},
    ),
    CauseRule(
        name="quantization int8",
        description="the frozen weights are quantized to 8 bits",
        applies=lambda job: job.lora is not None and job.lora.quantization != "int8",
        plausibility=RARE,
        changes={"lora.quantization": "int8"},
    ),
    CauseRule(
        name="fewer adapters",
        description="adapters are on the query and value projections only",
        applies=lambda job: job.lora is not None and job.lora.targets == "all-linear",
        plausibility=RARE,
        changes={"lora.targets": ["q_proj", "v_proj"]},
    ),
    CauseRule(
        name="more adapters",
        description="adapters are on all linear layers",
        applies=lambda job: job.lora is not None and job.lora.targets != "all-linear",
        plausibility=SOME,
        changes={"lora.targets": "all-linear"},
    ),
)


def _other_optimizers(job: ResolvedJob) -> Iterator[Cause]:
    for name, plausibility in _OPTIMIZERS.items():
        other = OPTIMIZERS[name]
        now = job.optimizer.name
        if name in (now, _SAME_MEMORY.get(now)) or (other.paged and job.optimizer.paged):
            continue
        resident = name == job.optimizer.unpaged
        description = f"the optimizer is {other.description}"
        yield Cause(
            name=f"optimizer {name}",
            description="the optimizer states are on the GPU, not paged" if resident else description,
            plausibility=SOME if resident else plausibility,
            changes={"training.optimizer": name},
        )


def _larger_ranks(job: ResolvedJob) -> Iterator[Cause]:
    if job.lora is None:
        return
    rank = job.lora.rank
    for factor in (4, 16):
        yield Cause(
            name="larger rank",
            description=f"the adapters' rank is {rank * factor}, not {rank}",
            plausibility=UNLIKELY,
            changes={"lora.rank": rank * factor},
        )


TRAINING_CAUSES: tuple[CauseSource, ...] = (
    *_CHECKPOINTING,
    *_STEP,
    _other_optimizers,
    *_ADAPTERS,
    _larger_ranks,
)
"""Causes of jobs that train."""


# The registry of causes that other settings of a job may have, and their plausibility for one job.


_ASSUMED_FACTOR = 4.0
"""Factor on the plausibility of a cause that contradicts a default or an inference, not a written setting."""

CAUSES: dict[Literal["training", "any mode"], tuple[CauseSource, ...]] = {
    "training": TRAINING_CAUSES,
    "any mode": (*COMPUTATION_CAUSES, *SHARDING_CAUSES, *SOFTWARE_CAUSES),
}
"""A new cause is one row of its table."""


def setting_causes(job: Job, assumed: Collection[str] = ()) -> Iterator[Cause]:
    """Yield every way in which the settings of a job may differ from those that were read.

    Args:
        job: the job as it was read.
        assumed: dotted keys whose values were inferred, or are defaults.
    """
    resolved = resolve_job(job)
    sources = (*CAUSES["training"], *CAUSES["any mode"]) if resolved.trains else CAUSES["any mode"]
    for source in sources:
        for cause in source(resolved):
            guessed = any(key in assumed for key in cause.changes)
            yield replace(cause, plausibility=cause.plausibility * _ASSUMED_FACTOR) if guessed else cause


_MAX_EXPLANATIONS = 6
"""Maximum number of explanations that are reported."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One or two causes that predict the observation."""

    changes: dict[str, Any]
    """Dotted job keys and the values that explain it; empty if no setting describes the cause."""
    description: str
    """Clause that continues "if": ``activation checkpointing is off``."""
    device_bytes: int
    """Memory that the job needs with these changes, as NVML counts it."""
    predicted_bytes: int
    """Prediction of the observed quantity: ``device_bytes``, unless allocated bytes or loading were observed."""
    name: str = ""
    """Label in tables."""
    fix: str = ""
    """Advice; empty if the description suffices."""
    group: int = 0
    """Explanations of one group predict the same bytes, so that memory cannot distinguish them."""


@only_figures()
def explain(
    job: Job,
    budget: Budget,
    observed_bytes: int,
    estimate: Estimate,
    *,
    measure: Measure = "device",
    loaded_bytes: int | None = None,
    assumed: Collection[str] = (),
    whole_gpu: bool = False,
    other_processes_bytes: int | None = None,
    at_least: bool = False,
) -> tuple[Explanation, ...]:
    """Return the causes that predict the observation, the likeliest first.

    Empty if none does, or if the observation is as predicted. Pairs of causes are tried only if no single one explains
    it. The effect of a cause is taken from the quick estimate and added to the budget, so that a traced budget keeps
    its own figure.

    Args:
        job: the job as it was read.
        budget: its prediction.
        observed_bytes: memory of a rank in the steady phase, or another quantity by ``measure``.
        estimate: returns a quick estimate of a changed job; may raise VramtopError.
        measure: the quantity that ``observed_bytes`` states.
        loaded_bytes: bytes that the process held between loading and the first step, if known.
        assumed: dotted keys of the job that are defaults or inferences.
        whole_gpu: ``observed_bytes`` are those of the whole GPU, not of one process.
        other_processes_bytes: memory that other processes are known to hold on it.
        at_least: the job ran out of memory, and needed more than observed.
    """
    if measure == "device" and not whole_gpu and _as_predicted(budget, observed_bytes, at_least=at_least):
        return ()
    try:
        quick = estimate(job)
    except VramtopError:
        return ()
    search = CauseSearch(
        job=job,
        budget=budget,
        quick=quick,
        estimate=estimate,
        measure=measure,
        observed=observed_bytes,
        loaded=loaded_bytes,
        at_least=at_least,
    )
    singles = [*setting_causes(job, assumed), *extra_memory_causes(job, quick, estimate)]
    if whole_gpu:
        singles += whole_gpu_causes(quick, other_processes_bytes)
    found = search.weigh([(cause,) for cause in singles])
    found += search.shorter_sequences()
    near = search.accepted(found, MAX_Z_SCORE) or search.accepted([*found, *search.pairs(found)], FALLBACK_MAX_Z_SCORE)
    return tuple(_explanations(near, measure))


def _as_predicted(budget: Budget, observed: int, *, at_least: bool) -> bool:
    return observed <= budget.peak.shown_high_bytes and (at_least or observed >= budget.peak.low_bytes)


def _explanations(near: Sequence[WeighedCauses], measure: Measure) -> Iterator[Explanation]:
    for number, group in enumerate(_groups(near, measure)):
        for each in group:
            yield Explanation(
                changes={key: value for cause in each.causes for key, value in cause.changes.items()},
                description=" and ".join(cause.description for cause in each.causes),
                device_bytes=each.figures.device,
                predicted_bytes=each.figures.of(measure),
                name=" + ".join(cause.name for cause in each.causes),
                fix="; ".join(cause.fix for cause in each.causes if cause.fix),
                group=number,
            )


def _groups(near: Sequence[WeighedCauses], measure: Measure) -> list[list[WeighedCauses]]:
    """Group explanations with the same prediction, the likeliest group first."""
    groups: list[list[WeighedCauses]] = []
    for each in near[:_MAX_EXPLANATIONS]:
        size = each.figures.of(measure)
        group = next((g for g in groups if abs(g[0].figures.of(measure) - size) <= SAME_BYTES_SHARE * size), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return sorted(groups, key=lambda group: -group[0].weight)
