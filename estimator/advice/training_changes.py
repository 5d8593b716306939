"""Changes that make a job smaller, each with what it costs in speed and in quality, and why that much.

The costs are for ranking, and meant to be read: ``slowdown`` is the share by which a step takes longer, by counting
what is computed or moved once more; ``quality`` says on the same scale what somebody would rather wait than give up:
0 the same result, 0.05 the same within what its paper could measure, 0.5 and more another training.
"""

from collections.abc import Iterator
from typing import Any

from ..formula.model_states import shards
from ..job.job import Job
from .change import HOST_LOADING, Change, shorter_sequences
from .inference_changes import for_inference, for_vllm

_FORWARD_SHARE = 1 / 3
"""A forward pass of a training step: backward takes two matrix products for each one of forward."""
_EXTRA_GATHER_SLOWDOWN = 0.05
"""Half as much communication again (arXiv:1910.02054, section 7.2.2), most of it behind computation."""
_EXTRA_PASS_SLOWDOWN = 0.03
"""One more pass over a smaller batch: kernels are launched and weights are read once more."""
_MIN_BUSY_TOKENS = 512
"""Below about 300 tokens a matrix product waits for its weights: an H100's 989 TFLOP/s over its 3.35 TB/s."""


def candidate_changes(job: Job, *, gpus: int = 1) -> tuple[Change, ...]:
    """Every change that may make the job smaller, the cheapest first.

    Args:
        job: as it is.
        gpus: how many there are, for spreading it further.
    """
    if job.served_by_vllm:
        found = for_vllm(job, gpus)
    else:
        found = _for_training(job, gpus) if job.training.mode == "train" else for_inference(job, gpus)
    return tuple(sorted(found, key=lambda change: change.cost))


def _for_training(job: Job, gpus: int) -> Iterator[Change]:
    yield from _same_result(job)
    yield from _recomputation(job)
    yield from _smaller_batches(job)
    yield from _sharding(job, gpus)
    yield from _offloading(job)
    yield from _precision(job)
    yield from _adapters(job)
    yield from shorter_sequences(job)


def _same_result(job: Job) -> Iterator[Change]:
    training = job.training
    if job.model.attention == "eager":
        yield Change(
            kind="attention",
            changes={"model.attention": "sdpa"},
            why="faster, same result",
            slowdown=-0.1,
            quality=0.0,
            source="scores are never written to memory (arXiv:2205.14135)",
        )
    if training.optimizer == "adamw":
        yield Change(
            kind="optimizer",
            changes={"training.optimizer": "adamw-fused"},
            why="faster, same result",
            slowdown=-0.01,
            quality=0.0,
            source="one kernel in place of foreach's copies (torch.optim's documentation)",
        )
    if training.loss == "full" and training.framework == "transformers":
        yield Change(
            kind="loss",
            changes={"training.loss": "fused-linear"},
            why="same result; needs a fused loss such as Liger's",
            slowdown=0.01,
            quality=0.0,
            source="logits exist chunk by chunk only (arXiv:2410.10989)",
        )
    if training.loss == "full" and training.framework in ("torchtune", "torchtitan"):
        yield Change(
            kind="loss",
            changes={"training.loss": "chunked"},
            why="same result",
            slowdown=0.01,
            quality=0.0,
            source="the loss takes one chunk of the tokens after the other",
        )


def _recomputation(job: Job) -> Iterator[Change]:
    training = job.training
    if training.activation_checkpointing == "none" and training.framework in ("torchtitan", "megatron"):
        megatron = training.framework == "megatron"
        yield Change(
            kind="checkpointing",
            changes={"training.activation_checkpointing": "selective"},
            why="a few per cent slower, same result" if megatron else "about a sixth slower, same result",
            slowdown=0.04 if megatron else _FORWARD_SHARE / 2,
            quality=0.0,
            source="attention is recomputed (arXiv:2205.05198)" if megatron else "every second product is recomputed",
        )
    if training.activation_checkpointing != "full":
        yield Change(
            kind="checkpointing",
            changes={"training.activation_checkpointing": "full"},
            why="about a third slower, same result",
            slowdown=_FORWARD_SHARE,
            quality=0.0,
            source="one more forward pass (torch.utils.checkpoint; 30 to 40 % in arXiv:2205.05198)",
        )


def _smaller_batches(job: Job) -> Iterator[Change]:
    training = job.training
    batch, factor = training.micro_batch, 2
    while batch % factor == 0:
        smaller = batch // factor
        gathers = shards(job).weights > 1
        idle = 0.3 if smaller * training.sequence_length < _MIN_BUSY_TOKENS else 0.0
        yield Change(
            kind="micro-batch",
            changes={
                "training.micro_batch": smaller,
                "training.gradient_accumulation": training.gradient_accumulation * factor,
            },
            why="somewhat slower, same global batch",
            slowdown=(_EXTRA_PASS_SLOWDOWN + (_EXTRA_GATHER_SLOWDOWN if gathers else 0.0)) * (factor.bit_length() - 1)
            + idle,
            quality=0.0,
            source="more and smaller passes for the same tokens; sharded weights are gathered in each",
        )
        factor *= 2


def _sharding(job: Job, gpus: int) -> Iterator[Change]:
    parallel = job.parallel
    if parallel.strategy == "ddp" and parallel.data_replicate > 1:
        yield Change(
            kind="sharding",
            changes={
                "parallel.strategy": "fsdp2",
                "parallel.data_shard": parallel.data_replicate,
                "parallel.data_replicate": 1,
            },
            why="half as much communication again, same result",
            slowdown=_EXTRA_GATHER_SLOWDOWN,
            quality=0.0,
            source="arXiv:1910.02054, section 7.2.2",
        )
    if parallel.strategy in ("fsdp1", "fsdp2") and not parallel.reshard_after_forward:
        yield Change(
            kind="resharding",
            changes={"parallel.reshard_after_forward": True},
            why="weights are gathered twice a step, same result",
            slowdown=_EXTRA_GATHER_SLOWDOWN,
            quality=0.0,
            source="arXiv:1910.02054, section 7.2.2",
        )
    loads_each = job.training.framework == "transformers" and not parallel.load_on_rank_zero
    if parallel.strategy in ("fsdp1", "fsdp2") and loads_each:
        yield Change(
            kind=HOST_LOADING,
            changes={"parallel.load_on_rank_zero": True},
            why="one rank of a machine loads the checkpoint for all",
            slowdown=0.0,
            quality=0.0,
            source="accelerate's cpu_ram_efficient_loading",
        )
    yield from _more_gpus(job, gpus)


def _more_gpus(job: Job, gpus: int) -> Iterator[Change]:
    """Spread over two, four, ... times as many, as far as there are so many; the global batch is kept where it can."""
    parallel, training = job.parallel, job.training
    strategy = parallel.strategy if parallel.strategy not in ("none", "ddp") else "fsdp2"
    ranks, factor = parallel.data_shard, 2
    if parallel.strategy == "ddp" and parallel.data_replicate > 1:
        return
    while parallel.world_size * factor <= gpus:
        changes: dict[str, Any] = {"parallel.strategy": strategy, "parallel.data_shard": ranks * factor}
        kept = training.gradient_accumulation % factor == 0
        if kept and training.gradient_accumulation > 1:
            changes["training.gradient_accumulation"] = training.gradient_accumulation // factor
        same = "same global batch" if kept else f"{factor} times the global batch"
        yield Change(
            kind="sharding",
            changes=changes,
            why=f"takes {parallel.world_size * factor} GPUs, {same}",
            slowdown=0.2 * (factor.bit_length() - 1),
            quality=0.0 if kept else 0.05,
            source="the GPUs are missing elsewhere; communication as in arXiv:1910.02054",
        )
        factor *= 2


def _offloading(job: Job) -> Iterator[Change]:
    training, parallel = job.training, job.parallel
    if not training.activation_offload and training.framework in ("transformers", "torchtune"):
        checkpoints = training.activation_checkpointing == "full"
        yield Change(
            kind="activation offload",
            changes={"training.activation_offload": True},
            why="saved activations wait in host memory: slower",
            slowdown=0.1 if checkpoints else 0.5,
            quality=0.0,
            source="they pass PCIe twice; checkpoints are a small part of all (torch's save_on_cpu)",
        )
    if parallel.cpu_offload == "none" and parallel.strategy in ("zero1", "zero2", "zero3"):
        yield Change(
            kind="cpu offload",
            changes={"parallel.cpu_offload": "optimizer"},
            why="the optimizer steps on the CPU: much slower steps",
            slowdown=0.8,
            quality=0.0,
            source="gradients and weights pass PCIe, and a CPU steps (ZeRO-Offload, arXiv:2101.06840)",
        )
    if parallel.cpu_offload != "all" and parallel.strategy in ("fsdp1", "fsdp2", "zero3"):
        yield Change(
            kind="cpu offload",
            changes={"parallel.cpu_offload": "all"},
            why="weights come from host memory for every use: much slower steps",
            slowdown=1.5,
            quality=0.0,
            source="weights pass PCIe in forward and in backward, gradients once (torch's CPUOffloadPolicy)",
        )


def _precision(job: Job) -> Iterator[Change]:
    training = job.training
    own_optimizers = training.framework in ("torchtitan", "megatron") or job.parallel.strategy not in ("none", "ddp")
    if training.optimizer in ("adamw", "adamw-fused") and not own_optimizers:
        yield Change(
            kind="optimizer",
            changes={"training.optimizer": "adamw-8bit"},
            why="optimizer states in 8 bits",
            slowdown=0.0,
            quality=0.05,
            source="no loss could be measured (arXiv:2110.02861)",
        )
    if training.precision == "fp32":
        yield Change(
            kind="precision",
            changes={"training.precision": "bf16-mixed"},
            why="faster; activations in 16 bits",
            slowdown=-0.5,
            quality=0.05,
            source="fp32 weights, 16-bit products (arXiv:1710.03740)",
        )
    if training.precision in ("bf16-mixed", "fp32") and job.lora is None:
        yield Change(
            kind="precision",
            changes={"training.precision": "bf16"},
            why="16-bit weights and states: small updates are lost",
            slowdown=0.0,
            quality=0.4,
            source="updates below 1/256 of a weight round to nothing (arXiv:2010.06192)",
        )


def _adapters(job: Job) -> Iterator[Change]:
    if job.training.framework in ("torchtitan", "megatron"):  # they have none
        return
    if job.lora is None:
        yield Change(
            kind="adapters",
            changes={"lora.rank": 16, "lora.targets": "all-linear"},
            why="trains adapters instead of the weights",
            slowdown=0.0,
            quality=0.6,
            source="learns less than full fine-tuning (arXiv:2405.09673)",
        )
    if (job.lora is None or job.lora.quantization == "none") and job.parallel.strategy in ("none", "ddp", "fsdp2"):
        rank, targets = (job.lora.rank, job.lora.targets) if job.lora else (16, "all-linear")
        yield Change(
            kind="adapters",
            changes={"lora.rank": rank, "lora.targets": targets, "lora.quantization": "nf4-double"},
            why="4-bit frozen weights" if job.lora else "trains adapters on 4-bit frozen weights",
            slowdown=0.3,
            quality=0.05 if job.lora else 0.65,
            source="weights are unpacked for every product; close to 16-bit LoRA (arXiv:2305.14314)",
        )
