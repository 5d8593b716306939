"""Small changes that make a job smaller, cheapest in speed and quality first, each with what the job then takes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .budget import Budget
from .errors import VramtopError
from .job import Job
from .jobfile import with_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change and the budget it leads to."""

    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    why: str
    """What it costs, in a few words."""
    budget: Budget


def suggest(job: Job, current: Budget, estimate: Callable[[Job], Budget]) -> tuple[Suggestion, ...]:
    """Every single change that makes the job take less, in the order of what it costs.

    Args:
        job: as it is.
        current: its budget.
        estimate: a quick estimate of a changed job.
    """
    found = []
    for changes, why in _changes(job):
        try:
            budget = estimate(with_changes(job, changes))
        except VramtopError:
            continue
        if budget.peak.device_bytes < current.peak.device_bytes:
            found.append(Suggestion(changes=changes, why=why, budget=budget))
    return tuple(found)


def _changes(job: Job) -> Iterator[tuple[dict[str, Any], str]]:
    training, parallel = job.training, job.parallel
    train = training.mode == "train"
    if job.model.attention == "eager":
        yield {"model.attention": "sdpa"}, "faster, and the same result"
    if train and training.optimizer == "adamw":
        yield {"training.optimizer": "adamw-fused"}, "faster, and the same result"
    if training.loss == "full":
        yield {"training.loss": "fused-linear"}, "same result; needs a fused loss such as Liger's"
    if train and training.activation_checkpointing != "full":
        yield {"training.activation_checkpointing": "full"}, "about a third slower, same result"
    if train and training.micro_batch > 1:
        half = training.micro_batch // 2
        factor = -(-training.micro_batch // half)
        yield (
            {
                "training.micro_batch": half,
                "training.gradient_accumulation": training.gradient_accumulation * factor,
            },
            "somewhat slower, same global batch",
        )
    if parallel.strategy == "ddp" and parallel.data_replicate > 1:
        sharded = {"parallel.strategy": "fsdp2", "parallel.data_shard": parallel.data_replicate}
        yield {**sharded, "parallel.data_replicate": 1}, "more communication, same result"
    if train and training.optimizer.startswith("adamw") and training.optimizer != "adamw-8bit":
        yield {"training.optimizer": "adamw-8bit"}, "optimizer states in 8 bits"
    if train and training.precision in ("bf16-mixed", "fp32") and job.lora is None:
        yield {"training.precision": "bf16"}, "16-bit weights and states: less exact updates"
    if train and parallel.cpu_offload == "none" and parallel.strategy in ("fsdp1", "fsdp2", "zero2", "zero3"):
        yield {"parallel.cpu_offload": "all" if "fsdp" in parallel.strategy else "optimizer"}, "much slower steps"
    if train and job.lora is None:
        yield {"lora.rank": 16, "lora.targets": "all-linear"}, "trains adapters instead of the weights"
    if train and (job.lora is None or job.lora.quantization == "none"):
        quantized = {"lora.rank": job.lora.rank if job.lora else 16, "lora.quantization": "nf4-double"}
        yield {**quantized, "lora.targets": job.lora.targets if job.lora else "all-linear"}, "4-bit frozen weights"
    if training.sequence_length >= 1024:
        yield {"training.sequence_length": training.sequence_length // 2}, "cuts long examples"
