"""The settings that scripts, defaults and launchers get wrong, one cause each, with the reason for its plausibility."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from ..job.job import Job, OptimizerName
from .cause import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause
from .sharding_causes import sharding_causes

_ASSUMED_FACTOR = 4.0
"""So many times likelier is a cause that contradicts what nobody wrote down."""
_TRAINER_BATCH = 8
"""transformers' ``per_device_train_batch_size`` where it is not given."""


def setting_causes(job: Job, assumed: Collection[str] = ()) -> Iterator[Cause]:
    """Every way in which the settings of a job may be other than they were read.

    Args:
        job: as it was read.
        assumed: dotted keys whose values were inferred, or are defaults.
    """
    for cause in _causes(job):
        guessed = any(key in assumed for key in cause.changes)
        yield replace(cause, plausibility=cause.plausibility * _ASSUMED_FACTOR) if guessed else cause


def _causes(job: Job) -> Iterator[Cause]:
    if job.training.mode == "train":
        yield from _of_checkpointing(job)
        yield from _of_the_step(job)
        yield from _of_optimizer(job)
        yield from _of_adapters(job)
    yield from _of_attention(job)
    yield from _of_loss(job)
    yield from _of_batch(job)
    yield from _of_precision(job)
    yield from sharding_causes(job)
    if job.software.module_loading is None:
        yield Cause(
            name="kernels loaded at once",
            words="all CUDA kernels are loaded at once (CUDA_MODULE_LOADING=EAGER)",
            plausibility=RARE,
            changes={"software.module_loading": "eager"},
        )


def _of_checkpointing(job: Job) -> Iterator[Cause]:
    key, now = "training.activation_checkpointing", job.training.activation_checkpointing
    quantized = job.lora is not None and job.lora.quantization != "none"
    if now != "none":
        # a flag that the script's own loop never reads, or a model that was wrapped before it was set
        yield Cause(
            name="checkpointing off",
            words="activation checkpointing is off",
            plausibility=COMMON if now == "full" else USUAL,
            changes={key: "none"},
            fix="see that the script calls model.gradient_checkpointing_enable(), or passes the setting on",
        )
    if now != "full":
        # trl and unsloth switch it on by default, and so does peft's prepare_model_for_kbit_training
        yield Cause(
            name="checkpointing on",
            words="activation checkpointing is on",
            plausibility=COMMON if quantized else USUAL,
            changes={key: "full"},
        )
    if now != "selective":
        yield Cause(
            name="checkpointing selective",
            words="activation checkpointing is selective",
            plausibility=SOME
            if job.training.framework in ("torchtitan", "megatron")
            else UNLIKELY,  # their own default
            changes={key: "selective"},
        )


def _of_the_step(job: Job) -> Iterator[Cause]:
    training = job.training
    if training.activation_offload:
        yield Cause(
            name="activation offload off",
            words="activations stay on the GPU (no offload)",
            plausibility=USUAL,
            changes={"training.activation_offload": False},
        )
    else:
        yield Cause(
            name="activation offload on",
            words="activations are offloaded to the host",
            plausibility=UNLIKELY,  # nobody does so by default
            changes={"training.activation_offload": True},
        )
    if training.optimizer_in_backward:
        yield Cause(
            name="step after backward",
            words="gradients are kept until the optimizer step",
            plausibility=USUAL,
            changes={"training.optimizer_in_backward": False},
        )
    accumulates = training.gradient_accumulation > 1
    yield Cause(
        name="accumulation off" if accumulates else "accumulation on",
        words="gradients are not accumulated" if accumulates else "gradients accumulate over several micro-batches",
        plausibility=RARE,
        changes={"training.gradient_accumulation": 1 if accumulates else 8},
    )
    if training.compile:
        yield Cause(
            name="compile off",
            words="the model is not compiled",
            plausibility=RARE,
            changes={"training.compile": False},
        )
    yield Cause(
        name="inference alone",
        words="nothing is trained: inference or evaluation alone",
        plausibility=UNLIKELY,
        changes={"training.mode": "inference"},
    )


def _of_attention(job: Job) -> Iterator[Cause]:
    if job.model.attention == "eager":
        yield Cause(
            name="attention fused",
            words="attention is fused (sdpa)",
            plausibility=USUAL,  # transformers' default
            changes={"model.attention": "sdpa"},
        )
    else:
        # asking for attention weights, or a model that has no other, falls back to it
        yield Cause(
            name="attention eager",
            words="attention is eager and keeps its probabilities",
            plausibility=SOME if job.model.attention == "sdpa" else RARE,
            changes={"model.attention": "eager"},
            fix='load the model with attn_implementation="sdpa", and ask for no attention weights',
        )


def _of_loss(job: Job) -> Iterator[Cause]:
    loss, liger = job.training.loss, "see that Liger or cut cross-entropy patches this model's class before it is made"
    if loss != "full":
        yield Cause(
            name="loss full",
            words="the loss is computed on all logits in fp32",
            plausibility=USUAL,  # a patch that does not know the model changes nothing, and says so in the log at best
            changes={"training.loss": "full"},
            fix=liger,
        )
    if loss != "fused-linear":
        yield Cause(
            name="loss fused",
            words="the loss is fused with the head (Liger, cut cross-entropy)",
            plausibility=SOME,
            changes={"training.loss": "fused-linear"},
        )
    if loss != "chunked":
        yield Cause(
            name="loss chunked",
            words="the loss is computed in chunks",
            plausibility=UNLIKELY if job.training.framework == "transformers" else SOME,
            changes={"training.loss": "chunked"},
        )
    if job.training.framework == "transformers" and job.software.transformers is None and loss == "full":
        yield Cause(
            name="older transformers",
            words="transformers is older than 4.49, whose loss copies the fp32 logits",
            plausibility=RARE,
            changes={"software.transformers": "4.48"},
        )


def _of_batch(job: Job) -> Iterator[Cause]:
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
    if job.training.framework == "transformers":
        found.setdefault(_TRAINER_BATCH, UNLIKELY)
    found.pop(batch, None)
    for size, plausibility in sorted(found.items()):
        yield Cause(
            name="batch larger" if size > batch else "batch smaller",
            words=f"the micro-batch is {size}, not {batch}",
            plausibility=plausibility,
            changes={"training.micro_batch": size},
        )
    for factor, plausibility in ((2, RARE), (4, UNLIKELY)):  # shorter ones are searched for (``explain``)
        length = job.training.sequence_length * factor
        yield Cause(
            name="longer sequences",
            words=f"sequences have {length} tokens: nothing truncates them to {length // factor}",
            plausibility=plausibility,
            changes={"training.sequence_length": length},
            fix="truncate in the tokenizer or the collator (truncation, max_length)",
        )


_OPTIMIZERS: dict[OptimizerName, tuple[str, float]] = {
    "adamw": ("AdamW with foreach, which copies what it steps", USUAL),  # torch's own choice on GPUs
    "adamw-fused": ("AdamW without foreach's copies (fused)", USUAL),  # transformers' default since 4.46
    "adamw-8bit": ("AdamW with states in 8 bits", SOME),
    "paged-adamw-8bit": ("a paged AdamW", SOME),
    "adafactor": ("Adafactor", RARE),
    "muon": ("Muon", UNLIKELY),
    "lion": ("Lion, or SGD with momentum", UNLIKELY),
    "sgd": ("SGD without momentum", UNLIKELY),
}


def _of_optimizer(job: Job) -> Iterator[Cause]:
    now = job.training.optimizer
    unpaged = {"paged-adamw-8bit": "adamw-8bit", "paged-adamw": "adamw-fused"}.get(now)
    for optimizer, (words, plausibility) in _OPTIMIZERS.items():
        alike = optimizer.startswith("paged") and now.startswith("paged")
        if optimizer == now or alike or (optimizer == "lion" and now == "sgd-momentum"):
            continue
        resident = optimizer == unpaged
        yield Cause(
            name=f"optimizer {optimizer}",
            words="the optimizer's states are on the GPU, not paged" if resident else f"the optimizer is {words}",
            plausibility=SOME if resident else plausibility,
            changes={"training.optimizer": optimizer},
        )


def _of_precision(job: Job) -> Iterator[Cause]:
    now = job.training.precision
    half = "fp16" if now.startswith("fp16") else "bf16"
    wide = "load the model with dtype=torch.bfloat16, or let the framework cast it"
    weights = "weights" if job.lora else "weights, gradients and states"
    kinds = {
        # scripts that set bf16=True train fp32 weights before transformers 5, which loads the checkpoint's own type
        f"{half}-mixed": (f"weights are fp32 under {half} autocast", COMMON if now == half else SOME, wide),
        half: (f"{weights} are {half} throughout", COMMON if now.endswith("-mixed") else SOME, ""),
        "fp32": ("weights and arithmetic are fp32", SOME, "see that bf16 or fp16 reaches the trainer"),
    }
    for precision, (words, plausibility, fix) in kinds.items():
        if precision != now:
            yield Cause(
                name=f"precision {precision.replace(half, '16')}",
                words=words,
                plausibility=plausibility,
                changes={"training.precision": precision},
                fix=fix,
            )


def _of_adapters(job: Job) -> Iterator[Cause]:
    lora = job.lora
    if lora is None:
        yield Cause(
            name="adapters alone",
            words="only adapters are trained (LoRA)",
            plausibility=USUAL if job.training.framework == "transformers" else RARE,
            changes={"lora.rank": 16, "lora.targets": "all-linear"},
        )
        return
    yield Cause(
        name="all weights trained",
        words="all weights are trained, not adapters alone",
        plausibility=SOME,
        changes={"lora": None},
        fix="see that the trainer is given the model that get_peft_model() returned, or peft_config",
    )
    if lora.quantization != "none":
        yield Cause(
            name="quantization off",
            words="the frozen weights are not quantized",
            plausibility=COMMON,  # a quantization_config that never reaches from_pretrained
            changes={"lora.quantization": "none"},
            fix="pass quantization_config (BitsAndBytesConfig) to from_pretrained",
        )
    for kind, words in (("nf4", "to 4 bits"), ("int8", "to 8 bits")):
        if not lora.quantization.startswith(kind):
            yield Cause(
                name=f"quantization {kind}",
                words=f"the frozen weights are quantized {words}",
                plausibility=SOME if kind == "nf4" and lora.quantization == "none" else RARE,
                changes={"lora.quantization": kind},
            )
    every = lora.targets == "all-linear"
    yield Cause(
        name="fewer adapters" if every else "more adapters",
        words="adapters are on the query and value projections alone" if every else "adapters are on all linear layers",
        plausibility=RARE if every else SOME,
        changes={"lora.targets": ["q_proj", "v_proj"] if every else "all-linear"},
    )
    for factor in (4, 16):
        yield Cause(
            name="larger rank",
            words=f"the adapters' rank is {lora.rank * factor}, not {lora.rank}",
            plausibility=UNLIKELY,
            changes={"lora.rank": lora.rank * factor},
        )
