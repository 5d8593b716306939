"""The table of changes for training jobs, each with its cost in speed and quality and the reason for that figure.

The costs serve ranking and are shown to the user: ``slowdown`` is the share by which a step takes longer, by
counting what is computed or moved once more; ``quality`` states on the same scale how much slowdown a user would
accept instead: 0 the same result, 0.05 the same within what its paper could measure, 0.5 and more a different
training.
"""

from collections.abc import Iterator
from typing import Any

from ..job.resolved_job import ResolvedJob
from ..job.settled import quantized_adapters
from .changes import (
    HOST_LOADING,
    IDLE_SLOWDOWN,
    MORE_GPUS_SLOWDOWN,
    Change,
    ChangeRule,
    Proposal,
    halved,
    placed_on_more_gpus,
    shorter_sequences,
)

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
        idle = IDLE_SLOWDOWN if smaller * training.sequence_length < _MIN_BUSY_TOKENS else 0.0
        yield Change(
            kind="micro-batch",
            changes={
                "training.micro_batch": smaller,
                "training.gradient_accumulation": training.gradient_accumulation * factor,
            },
            why="somewhat slower, same global batch",
            slowdown=(_EXTRA_PASS_SLOWDOWN + gathering) * (factor.bit_length() - 1) + idle,
            source="more and smaller passes for the same tokens; each pass gathers sharded weights",
        )
        factor *= 2


def _smaller_evaluation(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield evaluation batches of half the size, a quarter, ..."""
    for halvings, batch in halved(job.training.evaluation_batch or 1):
        yield Change(
            kind="evaluation-batch",
            changes={"training.evaluation_batch": batch},
            why="evaluation is somewhat slower",
            slowdown=_EVALUATION_SLOWDOWN * halvings,
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


def _takes_quantized_weights(job: ResolvedJob) -> bool:
    return job.framework.adapters and job.strategy.quantized_weights


def _has_fused_loss(job: ResolvedJob) -> bool:
    takes = job.framework.name != "transformers" or job.versions.trainer_fuses_loss
    return takes and job.framework.available_loss == "fused-linear"


def _may_checkpoint_selectively(job: ResolvedJob) -> bool:
    return job.training.activation_checkpointing == "none" and job.framework.selective_checkpointing


TRAINING_CHANGES: tuple[Proposal, ...] = (
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
    ChangeRule(
        kind="loss",
        applies=lambda job: job.training.loss == "full" and _has_fused_loss(job),
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
    _smaller_evaluation,
    _smaller_batches,
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
    placed_on_more_gpus,
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
        changes=lambda job: quantized_adapters(job.job),
        why="trains adapters on 4-bit weights, with checkpointing",
        slowdown=_QUANTIZED_SLOWDOWN,
        quality=0.65,
        source="weights are dequantized for every product; close to 16-bit LoRA (arXiv:2305.14314)",
    ),
    ChangeRule(
        kind="adapters",
        applies=lambda job: job.lora is not None and job.lora.quantization == "none" and _takes_quantized_weights(job),
        changes=lambda job: quantized_adapters(job.job),
        why="4-bit weights, with checkpointing",
        slowdown=_QUANTIZED_SLOWDOWN,
        quality=0.05,
        source="weights are dequantized for every product; close to 16-bit LoRA (arXiv:2305.14314)",
    ),
    shorter_sequences,
)
