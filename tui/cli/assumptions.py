"""The assumptions on which a figure depends most, with the flag or the key that changes each."""

from collections.abc import Iterator

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.resolved_job import resolve_job

from ..draw.text_output import TextOutput
from ..job.flags.job_flags import flags_by_key
from ..job.loaded_job import LoadedJob
from ..reports.budget_text import precision_word

_MOST = 5
_USUAL_FLAGS = {
    "training.micro_batch": "--batch-size",
    "training.sequence_length": "--seq-len",
    "training.activation_checkpointing": "--gradient-checkpointing",
    "lora": "--lora, --inference",
}
"""Flags that are more usual than those of the keys' own names."""
_SERVER_FLAGS = {"training.micro_batch": "--max-num-seqs", "training.sequence_length": "--max-model-len"}
"""Where an engine serves the model."""
_BATCH = ("training.micro_batch", "training.sequence_length")


def assumed_lines(budget: Budget, loaded: LoadedJob, output: TextOutput) -> Iterator[str]:
    """Yield the assumptions: ``assuming bf16 weights (--precision), 1 x 2,048 tokens (--batch-size, --seq-len)``.

    Args:
        budget: of the job.
        loaded: the job as it was given: what it states is not assumed, and a job file's keys are named, not flags.
        output: what the output can show.
    """
    found = list[str]()
    # a launch line says whether it trains adapters, where that was understood
    read = {"lora"} if loaded.reading is not None and budget.job.unsure.optimizer == "no" else set[str]()
    names = {**flags_by_key(), **_USUAL_FLAGS, **(_SERVER_FLAGS if budget.job.is_served else {})}
    for words, *keys in _assumptions(budget):
        open_keys = [key for key in keys if key not in loaded.stated | read]
        if open_keys:
            found.append(f"{words} ({', '.join(key if loaded.file else names[key] for key in open_keys)})")
    assumptions = [*found[:_MOST], *loaded.assumed_versions]
    if assumptions:
        yield from output.wrapped(f"assuming {', '.join(assumptions)}", further="  ")


def _assumptions(budget: Budget) -> Iterator[tuple[str, ...]]:
    """Yield what may be assumed, the weightiest first: words, and the keys that decide it."""
    job, training = budget.job, budget.job.training
    if job.program is not None:
        return
    if training.mode == "train" and job.lora is None and training.trainable is None:
        yield "full fine-tuning", "lora"
    if job.model.task not in ("causal-lm", "seq2seq-lm"):
        yield f"a {job.model.task} head", "model.task"
    stored = job.inference.weights if job.inference is not None and training.mode == "inference" else "auto"
    if training.mode == "train" and job.lora is not None and job.lora.quantization != "none":
        yield f"{job.lora.quantization} weights", "lora.quantization"
        yield f"{training.precision} computation", "training.precision"
    elif stored == "auto":
        yield _precision(budget), "training.precision"
    else:
        yield f"{stored} weights", "inference.weights"
    most = "up to " if job.is_served else ""
    yield f"{most}{training.micro_batch:,} x {training.sequence_length:,} tokens", *_BATCH
    if training.mode != "train":
        return
    if job.lora is not None:
        targets = "all linear layers" if job.lora.targets == "all-linear" else ", ".join(job.lora.targets)
        yield f"LoRA rank {job.lora.rank} on {targets}", "lora.rank", "lora.targets"
    else:
        yield training.optimizer, "training.optimizer"
    checkpointing = {"none": "no checkpointing", "full": "checkpointing"}.get(training.activation_checkpointing, "")
    yield checkpointing or "selective checkpointing", "training.activation_checkpointing"


_PRECISIONS = {
    "fp32": "fp32 weights and computation",
    "bf16": "bf16 weights",
    "fp16": "fp16 weights",
    "bf16-mixed": "fp32 weights, bf16 autocast",
    "fp16-mixed": "fp32 weights, fp16 autocast",
}


def _precision(budget: Budget) -> str:
    """Return the types of weights and computation in words; DeepSpeed and Megatron keep 16-bit weights and a copy."""
    name = budget.job.training.precision
    if name.endswith("-mixed") and resolve_job(budget.job).widths.master:
        return f"{name.removesuffix('-mixed')} weights, fp32 copy"
    pure = " without autocast" if precision_word(budget.job).startswith("pure") else ""
    return f"{_PRECISIONS[name]}{pure}"
