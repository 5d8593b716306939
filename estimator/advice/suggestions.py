"""Searches for the smallest changes that make a job fit, ranked by their cost in speed and quality."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Literal

from ..budget import Budget
from ..common.errors import CannotTellError, VramtopError
from ..common.records import replace
from ..job.gpu_catalogue import BF16_CAPABILITY, Gpu
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, quantized_adapters, resolve_job
from ..job.rules.dtype_widths import BITSANDBYTES
from ..job.settings import Inference
from .suggestion_search import (
    FEWER_GPUS,
    HOST_LOADING,
    MORE_GPUS_SLOWDOWN,
    Change,
    ChangeJob,
    ChangeRule,
    Estimate,
    Judge,
    Proposal,
    Suggestion,
    SuggestionSearch,
    cost_of,
    fewer_gpus,
    shifted,
    shorter_sequences,
)

# Changes that place a model by accelerate's device map: on several GPUs, or partly in CPU RAM.


_IDLE_SLOWDOWN = 0.3
"""One GPU computes at a time, and tensor parallelism or FSDP would use all."""
_COPIES_SLOWDOWN = 9.0
"""Weights cross PCIe for every pass: 25 GB/s in place of 1 to 3 TB/s of the GPU's own memory, at the least."""
_SOURCE = "accelerate's guide to big model inference: GPUs run their layers in turn, and offloaded layers are copied"


def placed_on_more_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield a device map over two, four, ... GPUs, for inference, and for adapters where one process trains them."""
    parallel = job.job.parallel
    if not _may_be_placed(job) or (job.trains and job.lora is None):
        return
    count = 2 * parallel.pipeline
    while count <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.device_map": "auto", "parallel.pipeline": count},
            why=f"takes {count} GPUs; only one computes at a time",
            slowdown=MORE_GPUS_SLOWDOWN * (count.bit_length() - 1) + _IDLE_SLOWDOWN,
            quality=0.0,
            source=_SOURCE,
        )
        count *= 2


def partly_in_cpu_ram(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield a device map on one GPU, which leaves in CPU RAM what does not fit; for inference only."""
    whole = job.quantization in BITSANDBYTES  # which refuses to leave weights in CPU RAM
    if _may_be_placed(job) and not job.trains and not whole and job.job.parallel.device_map is None:
        yield Change(
            kind="sharding",
            changes={"parallel.device_map": "auto"},
            why="weights that do not fit stay in CPU RAM: many times slower",
            slowdown=_COPIES_SLOWDOWN,
            quality=0.0,
            source=_SOURCE,
        )


def _may_be_placed(job: ResolvedJob) -> bool:
    """Return True for transformers' models in one process that is not split in another way."""
    parallel = job.job.parallel
    whole = parallel.world_size == parallel.pipeline and (parallel.pipeline == 1 or parallel.device_map is not None)
    return job.framework.trainer and whole and parallel.strategy == "none" and not isinstance(parallel.device_map, dict)


# The tables of changes for inference jobs; ``TRAINING_CHANGES`` below has the scale of their costs.


_UTILIZATIONS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


def _inference(job: ResolvedJob) -> Inference:
    return job.inference or Inference()


def _halved(batch: int) -> Iterator[tuple[int, int]]:
    """Yield half a batch, a quarter, ... down to 1, each behind its number of halvings."""
    halvings = 0
    while batch > 1:
        batch, halvings = batch // 2, halvings + 1
        yield halvings, batch


def _fewer_sequences(slowdown: float) -> Proposal:
    """Return a proposal of half the sequences at once, a quarter, ...

    Args:
        slowdown: cost of each halving.
    """

    def propose(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
        for halvings, batch in _halved(job.training.micro_batch):
            yield Change(
                kind="micro-batch",
                changes={"training.micro_batch": batch},
                why="fewer sequences at once",
                slowdown=slowdown * halvings,
                quality=0.0,
                source="each step reads all weights for fewer sequences",
            )

    return propose


def _other_utilizations(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield other shares of the GPU's memory that vLLM takes."""
    for share in _UTILIZATIONS:
        lower = _inference(job).gpu_memory_utilization - share
        if not lower:
            continue
        yield Change(
            kind="utilization",
            changes={"inference.gpu_memory_utilization": share},
            why="leaves less for other processes" if lower < 0 else "less KV cache: fewer sequences at once",
            slowdown=round(-0.1 * lower if lower < 0 else 0.5 * lower, 3),
            quality=0.0,
            source="vLLM reserves its share at startup and fills the part that is left after the weights with KV cache",
        )


def _more_tensor_ranks(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield tensor parallelism over two, four, ... times as many GPUs, up to those that there are."""
    apart = job.job.parallel.device_map is not None or (job.quantization is not None and not job.is_served)
    factor = 2
    while job.framework.tensor_parallel_plan and not apart and factor * job.parallel.world_size <= gpus:
        yield Change(
            kind="sharding",
            changes={"parallel.tensor": factor * job.parallel.tensor},
            why=f"takes {factor * job.parallel.world_size} GPUs",
            slowdown=MORE_GPUS_SLOWDOWN * (factor.bit_length() - 1),
            quality=0.0,
            source="two reductions per block (arXiv:1909.08053)",
        )
        factor *= 2


INFERENCE_CHANGES: tuple[Proposal, ...] = (
    ChangeRule(
        kind="precision",
        applies=lambda job: not job.precision.half_weights,
        changes={"training.precision": "bf16"},
        why="weights in 16 bits",
        slowdown=-0.5,
        quality=0.05,
        source="most checkpoints are stored in 16 bits",
    ),
    ChangeRule(
        kind="weights",
        applies=lambda job: (
            job.quantization is None and job.job.parallel.device_map is None and job.parallel.tensor == 1
        ),
        changes={"inference.weights": "nf4-double"},
        why="weights in 4 bits",
        slowdown=0.3,
        quality=0.2,
        source="weights are dequantized for every product (arXiv:2305.14314)",
    ),
    _fewer_sequences(slowdown=0.3),
    _more_tensor_ranks,
    placed_on_more_gpus,
    partly_in_cpu_ram,
    shorter_sequences,
)
"""For models that transformers runs."""

VLLM_CHANGES: tuple[Proposal, ...] = (
    _other_utilizations,
    ChangeRule(
        kind="cache",
        applies=lambda job: _inference(job).cache_dtype == "auto",
        changes={"inference.cache_dtype": "fp8"},
        why="keys and values in 8 bits",
        quality=0.05,
        source="vLLM's documentation of quantized caches",
    ),
    ChangeRule(
        kind="weights",
        applies=lambda job: _inference(job).weights == "auto",
        changes={"inference.weights": "fp8"},
        why="weights in 8 bits",
        quality=0.1,
        source="99 % of the benchmarks' scores are kept (arXiv:2411.02355)",
    ),
    _fewer_sequences(slowdown=0.02),
    _more_tensor_ranks,
    shorter_sequences,
)
"""For models that vLLM serves."""


# The table of changes for training jobs, each with its cost in speed and quality and the reason for that figure.
#
# The costs serve ranking and are shown to the user: ``slowdown`` is the share by which a step takes longer, by
# counting what is computed or moved once more; ``quality`` states on the same scale how much slowdown a user would
# accept instead: 0 the same result, 0.05 the same within what its paper could measure, 0.5 and more a different
# training.


_FORWARD_SHARE = 1 / 3
"""Share of a forward pass in a training step: backward takes two matrix products for each one of forward."""
_QUANTIZED_SLOWDOWN = 0.3 + _FORWARD_SHARE
"""4-bit weights are unpacked for every product, and peft's preparation recomputes the forward pass."""
_EXTRA_GATHER_SLOWDOWN = 0.05
"""Half as much communication again (arXiv:1910.02054, section 7.2.2), most of it overlapped with computation."""
_EXTRA_PASS_SLOWDOWN = 0.03
"""One more pass over a smaller batch: kernels are launched and weights are read once more."""
_EVALUATION_SLOWDOWN = 0.005
"""Evaluation is a small part of a run."""
_MIN_BUSY_TOKENS = 512
"""Below about 300 tokens a matrix product waits for its weights: an H100's 989 TFLOP/s over its 3.35 TB/s."""


def _smaller_batches(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield micro-batches of half the size, a quarter, ... with as many more accumulation steps."""
    training = job.training
    factor = 2
    while training.micro_batch % factor == 0:
        smaller = training.micro_batch // factor
        gathering = _EXTRA_GATHER_SLOWDOWN if job.shards.weights > 1 else 0.0
        idle = _IDLE_SLOWDOWN if smaller * training.sequence_length < _MIN_BUSY_TOKENS else 0.0
        yield Change(
            kind="micro-batch",
            changes={
                "training.micro_batch": smaller,
                "training.gradient_accumulation": training.gradient_accumulation * factor,
            },
            why="somewhat slower, same global batch",
            slowdown=(_EXTRA_PASS_SLOWDOWN + gathering) * (factor.bit_length() - 1) + idle,
            quality=0.0,
            source="more and smaller passes for the same tokens; each pass gathers sharded weights",
        )
        factor *= 2


def _smaller_evaluation(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield evaluation batches of half the size, a quarter, ..."""
    for halvings, batch in _halved(job.training.evaluation_batch or 1):
        yield Change(
            kind="evaluation-batch",
            changes={"training.evaluation_batch": batch},
            why="evaluation is somewhat slower",
            slowdown=_EVALUATION_SLOWDOWN * halvings,
            quality=0.0,
            source="more and smaller passes over the validation set; training steps stay as they are",
        )


def _more_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield sharding over two, four, ... times as many GPUs, with the same global batch if possible."""
    parallel, training = job.parallel, job.training
    if (job.strategy.buckets and parallel.data_replicate > 1) or job.job.parallel.device_map is not None:
        return  # the former are sharded first
    strategy = parallel.strategy if job.strategy.zero_stage else "fsdp2"
    factor = 2
    while parallel.world_size * factor <= gpus:
        changes: dict[str, Any] = {"parallel.strategy": strategy, "parallel.data_shard": parallel.data_shard * factor}
        kept = training.gradient_accumulation % factor == 0
        if kept and training.gradient_accumulation > 1:
            changes["training.gradient_accumulation"] = training.gradient_accumulation // factor
        same = "same global batch" if kept else f"{factor} times the global batch"
        yield Change(
            kind="sharding",
            changes=changes,
            why=f"takes {parallel.world_size * factor} GPUs, {same}",
            slowdown=MORE_GPUS_SLOWDOWN * (factor.bit_length() - 1),
            quality=0.0 if kept else 0.05,
            source="takes GPUs from others; communication as in arXiv:1910.02054",
        )
        factor *= 2


def _quantized_adapters(job: ResolvedJob) -> dict[str, Any]:
    return quantized_adapters(job.job)


def _takes_quantized_weights(job: ResolvedJob) -> bool:
    return job.framework.adapters and job.strategy.quantized_weights


_ATTENTION_AND_OPTIMIZER = (
    ChangeRule(
        kind="attention",
        applies=lambda job: job.model.attention == "eager",
        changes={"model.attention": "sdpa"},
        why="faster",
        slowdown=-0.1,
        source="scores are never written to memory (arXiv:2205.14135)",
    ),
    ChangeRule(
        kind="optimizer",
        applies=lambda job: job.optimizer.same_result is not None,
        changes=lambda job: {"training.optimizer": job.optimizer.same_result},
        why="faster",
        slowdown=-0.01,
        source="one kernel, without the temporary copies of foreach (torch.optim's documentation)",
    ),
)
_LOSS = (
    ChangeRule(
        kind="loss",
        applies=lambda job: job.training.loss == "full" and job.framework.available_loss == "fused-linear",
        changes={"training.loss": "fused-linear"},
        why="needs a fused loss such as Liger's",
        slowdown=0.01,
        source="logits are never stored all at once (arXiv:2410.10989)",
    ),
    ChangeRule(
        kind="loss",
        applies=lambda job: job.training.loss == "full" and job.framework.available_loss == "chunked",
        changes={"training.loss": "chunked"},
        why="computes the loss in chunks",
        slowdown=0.01,
        source="the loss is computed chunk by chunk",
    ),
)


def _may_checkpoint_selectively(job: ResolvedJob) -> bool:
    return job.training.activation_checkpointing == "none" and job.framework.selective_checkpointing


_CHECKPOINTING = (
    ChangeRule(
        kind="checkpointing",
        applies=lambda job: _may_checkpoint_selectively(job) and job.framework.selective_slowdown is None,
        changes={"training.activation_checkpointing": "selective"},
        why="about a sixth slower",
        slowdown=_FORWARD_SHARE / 2,
        source="every second matrix product is recomputed",
    ),
    ChangeRule(
        kind="checkpointing",
        applies=lambda job: _may_checkpoint_selectively(job) and job.framework.selective_slowdown is not None,
        changes={"training.activation_checkpointing": "selective"},
        why="a few per cent slower",
        slowdown=lambda job: job.framework.selective_slowdown or 0.0,
        source="attention is recomputed (arXiv:2205.05198)",
    ),
    ChangeRule(
        kind="checkpointing",
        applies=lambda job: job.training.activation_checkpointing != "full",
        changes={"training.activation_checkpointing": "full"},
        why="about a third slower",
        slowdown=_FORWARD_SHARE,
        source="one more forward pass (torch.utils.checkpoint; 30 to 40 % in arXiv:2205.05198)",
    ),
)
_SHARDING = (
    ChangeRule(
        kind="sharding",
        applies=lambda job: job.strategy.buckets and job.parallel.data_replicate > 1,
        changes=lambda job: {
            "parallel.strategy": "fsdp2",
            "parallel.data_shard": job.parallel.data_replicate,
            "parallel.data_replicate": 1,
        },
        why="50 % more communication",
        slowdown=_EXTRA_GATHER_SLOWDOWN,
        source="arXiv:1910.02054, section 7.2.2",
    ),
    ChangeRule(
        kind="resharding",
        applies=lambda job: job.strategy.fsdp and not job.parallel.reshard_after_forward,
        changes={"parallel.reshard_after_forward": True},
        why="weights are gathered twice a step",
        slowdown=_EXTRA_GATHER_SLOWDOWN,
        source="arXiv:1910.02054, section 7.2.2",
    ),
    ChangeRule(
        kind=HOST_LOADING,
        applies=lambda job: (
            job.strategy.fsdp and job.framework.loads_on_rank_zero and not job.parallel.load_on_rank_zero
        ),
        changes={"parallel.load_on_rank_zero": True},
        why="one rank per machine loads the checkpoint for all",
        source="accelerate's cpu_ram_efficient_loading",
    ),
    _more_gpus,
)


_OFFLOADING = (
    ChangeRule(
        kind="activation offload",
        applies=lambda job: not job.training.activation_offload and job.framework.offloads_activations,
        changes={"training.activation_offload": True},
        why="offloads activations to CPU RAM (slower)",
        slowdown=lambda job: 0.1 if job.training.activation_checkpointing == "full" else 0.5,
        source="activations cross PCIe twice; checkpoints are a small part of them (torch's save_on_cpu)",
    ),
    ChangeRule(
        kind="cpu offload",
        applies=lambda job: job.parallel.cpu_offload == "none" and "optimizer" in job.strategy.cpu_offload,
        changes={"parallel.cpu_offload": "optimizer"},
        why="runs the optimizer on the CPU (much slower)",
        slowdown=0.8,
        source="gradients and weights cross PCIe, and the optimizer runs on the CPU (ZeRO-Offload, arXiv:2101.06840)",
    ),
    ChangeRule(
        kind="cpu offload",
        applies=lambda job: job.parallel.cpu_offload != "all" and "all" in job.strategy.cpu_offload,
        changes={"parallel.cpu_offload": "all"},
        why="fetches weights from CPU RAM for every use (much slower)",
        slowdown=1.5,
        source="weights cross PCIe in forward and backward, gradients once (torch's CPUOffloadPolicy)",
    ),
)
_PRECISION = (
    ChangeRule(
        kind="optimizer",
        applies=lambda job: (
            job.optimizer.smaller_states is not None and job.framework.bitsandbytes and not job.strategy.zero_stage
        ),
        changes=lambda job: {"training.optimizer": job.optimizer.smaller_states},
        why="8-bit optimizer states",
        quality=0.05,
        source="no measurable loss of quality (arXiv:2110.02861)",
    ),
    ChangeRule(
        kind="precision",
        applies=lambda job: job.precision.width == 4,
        changes={"training.precision": "bf16-mixed"},
        why="faster; 16-bit activations",
        slowdown=-0.5,
        quality=0.05,
        source="fp32 weights, 16-bit products (arXiv:1710.03740)",
    ),
    ChangeRule(
        kind="precision",
        applies=lambda job: (
            job.lora is not None
            and job.widths.weight == 4
            and not job.precision.half_weights
            and job.quantization is None
        ),
        changes={"training.precision": "bf16"},
        why="frozen weights in 16 bits",
        slowdown=-0.05,
        quality=0.02,
        source="most checkpoints are stored in 16 bits; the adapters stay in fp32 (peft's autocast_adapter_dtype)",
    ),
    ChangeRule(
        kind="precision",
        applies=lambda job: not job.precision.half_weights and job.precision.dtype != "float16" and job.lora is None,
        changes={"training.precision": "bf16"},
        why="16-bit weights and optimizer states: small updates are lost",
        quality=0.4,
        source="updates below 1/256 of a weight round to nothing (arXiv:2010.06192)",
    ),
)
_ADAPTERS = (
    ChangeRule(
        kind="preparation",
        applies=lambda job: job.quantization is not None and job.lora is not None and bool(job.lora.kbit_preparation),
        changes={"lora.kbit_preparation": False},
        why="skips peft's fp32 upcast",
        quality=0.04,
        source="QLoRA (arXiv:2305.14314) trains without the casts of peft's prepare_model_for_kbit_training",
    ),
    ChangeRule(
        kind="adapters",
        applies=lambda job: job.lora is None and job.framework.adapters,
        changes={"lora.rank": 16, "lora.targets": "all-linear"},
        why="trains adapters instead of the weights",
        quality=0.6,
        source="learns less than full fine-tuning (arXiv:2405.09673)",
    ),
    ChangeRule(
        kind="adapters",
        applies=lambda job: job.lora is None and _takes_quantized_weights(job),
        changes=_quantized_adapters,
        why="trains adapters on 4-bit weights, with checkpointing",
        slowdown=_QUANTIZED_SLOWDOWN,
        quality=0.65,
        source="weights are dequantized for every product; close to 16-bit LoRA (arXiv:2305.14314)",
    ),
    ChangeRule(
        kind="adapters",
        applies=lambda job: job.lora is not None and job.lora.quantization == "none" and _takes_quantized_weights(job),
        changes=_quantized_adapters,
        why="4-bit weights, with checkpointing",
        slowdown=_QUANTIZED_SLOWDOWN,
        quality=0.05,
        source="weights are dequantized for every product; close to 16-bit LoRA (arXiv:2305.14314)",
    ),
)

TRAINING_CHANGES: tuple[Proposal, ...] = (
    *_ATTENTION_AND_OPTIMIZER,
    *_LOSS,
    *_CHECKPOINTING,
    _smaller_evaluation,
    _smaller_batches,
    *_SHARDING,
    placed_on_more_gpus,
    *_OFFLOADING,
    *_PRECISION,
    *_ADAPTERS,
    shorter_sequences,
)


# The changes that are searched to make a job fit, by the kind of job.


Workload = Literal["training", "inference", "vllm"]

CHANGES: dict[Workload, tuple[Proposal, ...]] = {
    "training": (fewer_gpus, *TRAINING_CHANGES),
    "inference": (fewer_gpus, *INFERENCE_CHANGES),
    "vllm": (fewer_gpus, *VLLM_CHANGES),
}
"""A new change is one row of its table; changes of equal cost are tried in the order of the rows."""


def candidate_changes(job: Job, *, gpus: int = 1, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return every change that may lower the memory that the job needs, the cheapest first.

    Args:
        job: the job to change.
        gpus: number of GPUs that there are, for sharding the job further.
        gpu: what they are; None: not known, so that they compute in every type.
    """
    resolved = resolve_job(job)
    found: Iterator[Change] = (change for propose in CHANGES[_workload(resolved)] for change in propose(resolved, gpus))
    if gpu is not None and gpu.compute_capability < BF16_CAPABILITY:
        found = _before_ampere(found, resolved)
    if gpu is not None and gpu.unified:  # it would move to where it is already
        found = (change for change in found if "offload" not in change.kind)
    return tuple(sorted(found, key=lambda change: change.cost))


def _before_ampere(changes: Iterator[Change], job: ResolvedJob) -> Iterator[Change]:
    """Yield the changes with fp16 in place of bf16, without those that a GPU before Ampere has no kernels for."""
    for change in changes:
        precision = str(change.changes.get("training.precision", ""))
        if "fp8" in change.changes.values() or (precision == "bf16" and job.trains and job.lora is None):
            continue  # nothing trains in plain fp16: its gradients vanish
        half = {"training.precision": precision.replace("bf16", "fp16")} if precision else {}
        yield replace(change, changes=change.changes | half)


def _workload(job: ResolvedJob) -> Workload:
    if job.is_served:
        return "vllm"
    return "training" if job.trains else "inference"


_MAX_PAIR_COST_SHARE = 0.75
"""Maximum cost of a pair, as a share of the cheapest single change that fits."""
_MIN_COST_FOR_TRIPLES = 1.0
"""Three changes are tried if the cheapest solution costs more: as if a step took twice as long."""
_MAX_EXTENDED_PAIRS = 6
"""Number of pairs to which a third change is added."""
_CONFIRMING_SECONDS = 10.0
"""Time for estimating suggestions again, which may trace each."""
VERDICTS = ("fits", "tight", "unknown", "does_not_fit")
"""The best first."""


def suggest(
    job: Job,
    current: Budget,
    estimate: Estimate,
    judge: Judge,
    *,
    gpus: int = 1,
    gpu: Gpu | None = None,
    most: int = 6,
    change: ChangeJob | None = None,
) -> tuple[Suggestion, ...]:
    """Return changes that make the job fit, the cheapest first, then those that make it tight.

    If nothing does either, the changes that lower its memory most. Of graded changes (micro-batch, length, GPUs) only
    the smallest sufficient one is returned. Pairs combine changes of which neither is sufficient alone, and are tried
    only if no single change is sufficient, or if the pair costs much less. If all solutions are costly, a third change
    is added to the best pairs. The steps of a changed job are replayed only if its verdict depends on it
    (``BoundedSearch``), or its figures are returned.

    Args:
        job: the job to change.
        current: its budget; if that is not the quick estimate's, the difference is added to every figure.
        estimate: returns a quick estimate of a changed job.
        judge: returns the verdict on a budget: none that is better for more bytes.
        gpus: number of GPUs that there are, for sharding the job further.
        gpu: what they are; None: not known.
        most: maximum number of suggestions.
        change: returns the job with new values by key, with what follows from them where it was written; None: they
            change nothing else.
    """
    changes = candidate_changes(job, gpus=gpus, gpu=gpu)
    needs_fewer = any(change.kind == FEWER_GPUS for change in changes)
    scaled = calibrated(job, current, estimate)
    search = SuggestionSearch(job, current, scaled, judge, change=change, lowers=not needs_fewer)
    singles = search.judged(
        ((change,) for change in changes if not needs_fewer or change.kind == FEWER_GPUS), until=most
    )
    if judge(shifted(current, -current.peak.high_bytes)) == "fits":  # host memory is no limit
        changes = tuple(change for change in changes if change.kind != HOST_LOADING)
    return search.best([*singles, *_combined(search, changes, singles, most)], most)


def confirm(
    suggestions: Sequence[Suggestion],
    estimate: Estimate,
    judge: Judge,
    *,
    seconds: float = _CONFIRMING_SECONDS,
    progress: Callable[[str], None] | None = None,
) -> tuple[Suggestion, ...]:
    """Return the suggestions with the figures that their jobs have when they are estimated as the job itself was.

    Those that do not fit after all come last if they are tight, and are dropped if others fit or are tight.

    Args:
        suggestions: the result of ``suggest``.
        estimate: as the job itself was estimated; a job that it cannot estimate stays unconfirmed.
        judge: returns the verdict on a budget.
        seconds: time after which the rest is left out, once anything is confirmed.
        progress: called with the step that is being done.
    """
    kept: list[Suggestion] = []
    begun = time.monotonic()
    for index, suggestion in enumerate(suggestions):
        if kept and time.monotonic() - begun > seconds:
            break
        if progress:
            progress(f"checking {' and '.join(_words(suggestion.changes))}")
        try:
            budget = estimate(suggestion.budget.job)
        except CannotTellError:
            kept.extend(suggestions[index:])
            break
        except VramtopError:  # the model itself rejects it
            continue
        kept.append(replace(suggestion, budget=budget, verdict=judge(budget), confirmed=True))
    possible = [each for each in kept if each.verdict != "does_not_fit"]
    return tuple(sorted(possible or kept, key=lambda each: VERDICTS.index(each.verdict)))


def calibrated(job: Job, current: Budget, estimate: Estimate) -> Estimate:
    """Return the quick estimate, shifted by the difference between it and the job's more accurate budget."""
    try:
        by = current.peak.device_bytes - estimate(job).peak.device_bytes
    except VramtopError:
        by = 0
    return estimate if not by else lambda changed: shifted(estimate(changed), by)


def _combined(
    search: SuggestionSearch, changes: Sequence[Change], singles: Sequence[Suggestion], most: int
) -> list[Suggestion]:
    """Return pairs that cost much less than the sufficient single changes, and triples if all of them are costly."""
    enough = [s for s in singles if s.verdict == "fits"]
    limit = _MAX_PAIR_COST_SHARE * _lowest_cost(enough)
    alone = {part.kind for s in enough for part in s.parts if s.cost <= limit}
    needs_fewer = any(change.kind == FEWER_GPUS for change in changes)
    possible = [pair for pair in combinations(changes, 2) if _compatible(pair)]
    if needs_fewer:
        possible = [pair for pair in possible if FEWER_GPUS in (pair[0].kind, pair[1].kind)]
    pairs = sorted(possible, key=cost_of)
    worth = (pair for pair in pairs if cost_of(pair) <= limit and not any(part.kind in alone for part in pair))
    found = search.judged(worth, until=most)
    cheapest = _lowest_cost([s for s in (*enough, *found) if s.verdict == "fits"])
    if cheapest > _MIN_COST_FOR_TRIPLES:
        found += search.judged(_triples(found, changes, _MAX_PAIR_COST_SHARE * cheapest), until=most)
    return found


def _triples(pairs: Sequence[Suggestion], changes: Sequence[Change], limit: float) -> list[tuple[Change, ...]]:
    """Return the pairs that need the least memory, each with every compatible third change, up to a cost."""
    cheap = (pair for pair in pairs if len(pair.parts) == 2 and pair.verdict != "fits" and pair.cost <= limit)
    triples = [
        (*pair.parts, change)
        for pair in sorted(cheap, key=lambda pair: pair.budget.peak.components.total_bytes)[:_MAX_EXTENDED_PAIRS]
        for change in changes
        if all(_compatible((part, change)) for part in pair.parts)
    ]
    return sorted((parts for parts in triples if cost_of(parts) <= limit), key=cost_of)


def _compatible(pair: tuple[Change, ...]) -> bool:
    first, second = pair
    return first.kind != second.kind and not first.changes.keys() & second.changes.keys()


def _lowest_cost(suggestions: Sequence[Suggestion]) -> float:
    return min((s.cost for s in suggestions), default=float("inf"))


def _words(changes: dict[str, Any]) -> list[str]:
    return [f"{key} = {value}" for key, value in changes.items()]
