"""The table of wrong settings of the computation: attention, loss, batch, sequence length, precision and kernels.

Scripts, defaults and launchers get these wrong; the comments give the reasons for each plausibility.
"""

from collections.abc import Iterator

from ..job.resolved_job import ResolvedJob
from .cause_search import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause, CauseRule, CauseSource

_TRAINER_BATCH = 8
"""transformers' default of ``per_device_train_batch_size``."""


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
    CauseRule(
        name="loss full",
        description="the loss is computed on all logits in fp32",
        applies=lambda job: job.training.loss != "full",
        plausibility=USUAL,  # a patch that does not know the model changes nothing, and at best logs that
        changes={"training.loss": "full"},
        fix="make sure that Liger or cut cross-entropy patches this model's class before it is made",
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
    _other_batches,
    _longer_sequences,
    _other_precisions,
)
"""Causes of jobs that train or run inference."""
SOFTWARE_CAUSES: tuple[CauseSource, ...] = (
    CauseRule(
        name="kernels loaded at once",
        description="all CUDA kernels are loaded at once (CUDA_MODULE_LOADING=EAGER)",
        applies=lambda job: job.software.module_loading is None,
        plausibility=RARE,
        changes={"software.module_loading": "eager"},
    ),
)
"""Causes in the settings of libraries."""
