"""The table of settings that scripts, defaults and launchers get wrong, each with the reason for its plausibility."""

from collections.abc import Iterator

from ..job.job import OptimizerName
from ..job.optimizers import OPTIMIZERS
from ..job.resolved_job import ResolvedJob
from .cause import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause, CauseRule, CauseSource

_TRAINER_BATCH = 8
"""transformers' default of ``per_device_train_batch_size``."""
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
_PATCH_FIX = "see that Liger or cut cross-entropy patches this model's class before it is made"


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
        fix="see that the script calls model.gradient_checkpointing_enable(), or passes the setting on",
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
        description="nothing is trained: inference or evaluation alone",
        plausibility=UNLIKELY,
        changes={"training.mode": "inference"},
    ),
)
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
        fix='load the model with attn_implementation="sdpa", and ask for no attention weights',
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
        description="transformers is older than 4.49, whose loss copies the fp32 logits",
        applies=lambda job: job.framework.trainer and job.software.transformers is None and job.training.loss == "full",
        plausibility=RARE,
        changes={"software.transformers": "4.48"},
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
        description="all weights are trained, not adapters alone",
        applies=lambda job: job.lora is not None,
        plausibility=SOME,
        changes={"lora": None},
        fix="see that the trainer is given the model that get_peft_model() returned, or peft_config",
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
        description="adapters are on the query and value projections alone",
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
_KERNELS = CauseRule(
    name="kernels loaded at once",
    description="all CUDA kernels are loaded at once (CUDA_MODULE_LOADING=EAGER)",
    applies=lambda job: job.software.module_loading is None,
    plausibility=RARE,
    changes={"software.module_loading": "eager"},
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
            description="the optimizer's states are on the GPU, not paged" if resident else description,
            plausibility=SOME if resident else plausibility,
            changes={"training.optimizer": name},
        )


def _larger_ranks(job: ResolvedJob) -> Iterator[Cause]:
    for factor in (4, 16) if job.lora else ():
        rank = job.lora.rank if job.lora else 0
        yield Cause(
            name="larger rank",
            description=f"the adapters' rank is {rank * factor}, not {rank}",
            plausibility=UNLIKELY,
            changes={"lora.rank": rank * factor},
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
            description=f"sequences have {limit * factor} tokens: nothing truncates them to {limit}",
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
        "fp32": ("weights and arithmetic are fp32", SOME, "see that bf16 or fp16 reaches the trainer"),
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


TRAINING_CAUSES: tuple[CauseSource, ...] = (
    *_CHECKPOINTING,
    *_STEP,
    _other_optimizers,
    *_ADAPTERS,
    _larger_ranks,
)
"""Causes of jobs that train."""
ANY_MODE_CAUSES: tuple[CauseSource, ...] = (
    *_ATTENTION,
    *_LOSS,
    _other_batches,
    _longer_sequences,
    _other_precisions,
)
"""Causes of jobs that train or run inference."""
SOFTWARE_CAUSES: tuple[CauseSource, ...] = (_KERNELS,)
"""Causes in the libraries' own settings."""
