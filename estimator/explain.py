"""Why a job holds more or less than predicted: settings one or two changes away that would predict what is observed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .budget import Budget
from .errors import VramtopError
from .job import Job
from .jobfile import with_changes

_CLOSE = 0.06
"""An explanation comes so near to what is observed, as a share of it."""
_PAIR_COST = 0.02
_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Settings that would predict what is observed."""

    changes: dict[str, Any]
    """Dotted job keys and the values that would explain it."""
    words: str
    """For people: ``activation checkpointing is off``."""
    device_bytes: int
    """What the job would take with them."""
    off_bytes: int
    """That less what is observed."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One way in which a job may be other than it was read."""

    changes: dict[str, Any]
    words: str
    unlikely: float
    """A share of the observed bytes by which it counts as farther away than it is: rarer mistakes rank behind."""


def explain(
    job: Job, budget: Budget, observed_bytes: int, estimate: Callable[[Job], Budget]
) -> tuple[Explanation, ...]:
    """The changes that come near to what is observed, the likeliest and nearest first; empty where nothing does.

    Single changes first; two together only where no single one explains it. What a change makes of the job is taken
    from the quick estimate and added to the budget, so that a traced budget keeps its own figure.

    Args:
        job: as it was read.
        budget: its prediction.
        observed_bytes: what a rank holds, as NVML counts it.
        estimate: a quick estimate of a changed job; may raise VramtopError.
    """
    try:
        base = estimate(job).peak.device_bytes
    except VramtopError:
        return ()
    singles = list(_changes(job))
    predicted = _Predictions(job, budget.peak.device_bytes - base, estimate)
    found = [e for change in singles if (e := predicted.explain((change,), observed_bytes))]
    if not found:
        pairs = (pair for pair in combinations(singles, 2) if not pair[0].changes.keys() & pair[1].changes.keys())
        found = [e for pair in pairs if (e := predicted.explain(pair, observed_bytes))]
    nearest_now = abs(budget.peak.device_bytes - observed_bytes)
    better = [(rank, e) for rank, e in found if abs(e.off_bytes) < nearest_now]
    return tuple(explanation for _, explanation in sorted(better, key=lambda ranked: ranked[0])[:_MOST])


class _Predictions:
    """What changed jobs would take."""

    def __init__(self, job: Job, correction: int, estimate: Callable[[Job], Budget]) -> None:
        self._job, self._correction, self._estimate = job, correction, estimate

    def explain(self, together: tuple[_Change, ...], observed: int) -> tuple[float, Explanation] | None:
        """The changes with their rank; None where they do not come near."""
        changes: dict[str, Any] = {}
        for change in together:
            changes |= change.changes
        try:
            device = self._estimate(with_changes(self._job, changes)).peak.device_bytes + self._correction
        except VramtopError:
            return None
        off = abs(device - observed) / max(1, observed)
        if off > _CLOSE:
            return None
        cost = sum(change.unlikely for change in together) + _PAIR_COST * (len(together) - 1)
        words = " and ".join(change.words for change in together)
        found = Explanation(changes=changes, words=words, device_bytes=device, off_bytes=device - observed)
        return off + cost, found


def _changes(job: Job) -> Iterator[_Change]:
    yield from _of_activations(job)
    yield from _of_sizes(job)
    yield from _of_states(job)
    yield from _of_sharding(job)
    yield from _of_adapters(job)


def _of_activations(job: Job) -> Iterator[_Change]:
    training = job.training
    if training.activation_checkpointing != "none":
        yield _Change({"training.activation_checkpointing": "none"}, "activation checkpointing is off", 0.0)
    if training.activation_checkpointing != "full":
        yield _Change({"training.activation_checkpointing": "full"}, "activation checkpointing is on", 0.01)
    if training.activation_offload:
        yield _Change({"training.activation_offload": False}, "activations are not offloaded", 0.01)
    if job.model.attention != "eager":
        yield _Change({"model.attention": "eager"}, "attention is eager, with all its probabilities kept", 0.01)
    else:
        yield _Change({"model.attention": "sdpa"}, "attention is fused (sdpa)", 0.01)
    if training.loss == "full":
        yield _Change({"training.loss": "fused-linear"}, "the loss is fused with the head", 0.02)
    else:
        yield _Change({"training.loss": "full"}, "the loss is computed on all logits at once", 0.0)


def _of_sizes(job: Job) -> Iterator[_Change]:
    training = job.training
    batch, length = training.micro_batch, training.sequence_length
    for factor, unlikely in ((2, 0.01), (4, 0.03), (8, 0.04)):
        if batch % factor == 0:
            yield _Change({"training.micro_batch": batch // factor}, f"micro-batch {batch // factor}", unlikely)
        if (shorter := length // factor) >= 64:
            yield _Change({"training.sequence_length": shorter}, f"sequences of {shorter} tokens or fewer", unlikely)
        if factor < 8:
            longer = length * factor
            yield _Change({"training.micro_batch": batch * factor}, f"micro-batch {batch * factor}", unlikely)
            yield _Change({"training.sequence_length": longer}, f"sequences of {longer} tokens", unlikely)


def _of_states(job: Job) -> Iterator[_Change]:
    training = job.training
    names = {
        "adamw": "AdamW with foreach",
        "adamw-fused": "fused AdamW",
        "adamw-8bit": "AdamW with states in 8 bits",
        "paged-adamw-8bit": "paged AdamW",
        "adafactor": "Adafactor",
        "sgd": "SGD without momentum",
    }
    for optimizer, words in names.items():
        if optimizer != training.optimizer and training.mode == "train":
            yield _Change({"training.optimizer": optimizer}, f"the optimizer is {words}", 0.01)
    kinds = {
        "fp32": "weights and arithmetic in fp32",
        "bf16-mixed": "weights in fp32 under bf16 autocast",
        "bf16": "weights, gradients and states in bf16",
    }
    for precision, words in kinds.items():
        if precision != training.precision.replace("fp16", "bf16"):
            yield _Change({"training.precision": precision}, words, 0.005)


def _of_sharding(job: Job) -> Iterator[_Change]:
    parallel = job.parallel
    if parallel.strategy not in ("none", "ddp") and parallel.data_shard > 1:
        whole = {"parallel.strategy": "ddp", "parallel.data_shard": 1, "parallel.cpu_offload": "none"}
        copies = {"parallel.data_replicate": parallel.data_shard * parallel.data_replicate}
        yield _Change({**whole, **copies}, "sharding is not applied: every rank holds all of it", 0.0)
        if parallel.strategy in ("fsdp1", "fsdp2"):
            other = not parallel.reshard_after_forward
            words = "weights are freed after the forward pass" if other else "weights stay gathered"
            yield _Change({"parallel.reshard_after_forward": other}, words, 0.01)
    if parallel.cpu_offload != "none":
        yield _Change({"parallel.cpu_offload": "none"}, "nothing is offloaded to the host", 0.0)


def _of_adapters(job: Job) -> Iterator[_Change]:
    if job.lora is None:
        yield _Change({"lora.rank": 16, "lora.targets": "all-linear"}, "only adapters are trained (LoRA)", 0.01)
        return
    yield _Change({"lora": None}, "all weights are trained, not adapters alone", 0.01)
    if job.lora.quantization != "none":
        yield _Change({"lora.quantization": "none"}, "the frozen weights are not quantized", 0.0)
    else:
        yield _Change({"lora.quantization": "nf4"}, "the frozen weights are quantized to 4 bits", 0.01)
