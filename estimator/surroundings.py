"""What a training process takes around its tensors: communication buffers, workspaces, and what torch never sees."""

from dataclasses import dataclass

from .gpus import Gpu
from .job import Job
from .rank import Held, Stage
from .sizes import MIB
from .states import shards, weight_width
from .widths import Widths, uses_zero

_ZERO_BUCKET = 500_000_000
"""Elements of DeepSpeed's reduce and all-gather buckets, by default."""
_ZERO_LIVE = 1_050_000_000
"""Elements that ZeRO-3 keeps gathered at most: stage3_max_live_parameters and the prefetch bucket, by default."""
_NCCL_BYTES = 600 * MIB
"""One communicator: 544 MiB for two ranks, 688 for more (4 x A100, NVIDIA/nccl#964)."""
_NCCL_FURTHER_BYTES = 300 * MIB
_CONTEXT_BYTES = {7: 380 * MIB, 8: 480 * MIB, 9: 540 * MIB, 10: 640 * MIB, 12: 640 * MIB}
"""CUDA context with lazily loaded kernels, by major compute capability: A100 481 MiB with torch 2.1, RTX 5090 635."""
_KERNELS_BYTES = 120 * MIB
"""Kernels of cuBLAS, flash attention and torch that a training step loads into the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Bytes of communication buffers inside torch's allocator, by phase, and outside of it."""

    forward: int
    loss: int
    """Between forward and backward pass, when only the root's weights are gathered."""
    backward: int
    step: int
    """Kept between steps."""
    outside: int
    """NCCL's own buffers."""
    root: int = 0
    """The flat buffer in which FSDP gathers the root's parameters."""


def communication(job: Job, stage: Stage, widths: Widths) -> Communication:
    """Gathered weights, gradients on their way, and buckets.

    FSDP (torch.distributed.fsdp): the root's parameters stay gathered; two units and one flat buffer are alive; in
    backward a unit's gradients and one reduce-scatter input besides.
    """
    gathered = job.parallel.world_size > 1 and shards(job).weights > 1
    strategy = job.parallel.strategy
    buffers = (0, 0, 0, 0)
    if strategy == "ddp" and job.parallel.data_ranks > 1 and job.training.framework != "megatron":
        # Megatron's buckets are its gradient buffer
        bucket = _trainable_bytes(stage, widths.gradient, widths.adapter)
        buffers = (bucket, bucket, bucket, bucket)
    elif uses_zero(job) and job.parallel.data_ranks * job.parallel.context > 1:
        buffers = _zero_buffers(job, stage)
    elif gathered:
        buffers = _fsdp_buffers(job, stage, widths)
    elif strategy == "megatron-fsdp" and job.parallel.data_ranks > 1:
        unit = _unit_bytes(stage, widths)
        buffers = (0, 0, 2 * unit, 2 * unit if job.parallel.double_buffer else 0)
    forward, loss, backward, step = buffers
    root = _gathered_bytes(stage, widths, layered=False) if gathered else 0
    return Communication(forward=forward, loss=loss, backward=backward, step=step, outside=nccl_bytes(job), root=root)


def context_bytes(gpu: Gpu | None) -> int:
    """CUDA context, driver libraries and loaded kernels of one process on this card."""
    major = gpu.compute_capability[0] if gpu else 9
    return _CONTEXT_BYTES.get(major, 540 * MIB) + _KERNELS_BYTES


def workspace_bytes(gpu: Gpu | None, *, megatron: bool = False, grouped: bool = False) -> int:
    """CuBLAS workspaces of the main and the autograd thread, allocated through torch (32 MiB each from Hopper on).

    Args:
        gpu: the card; a Hopper card when left out.
        megatron: TransformerEngine runs the linear layers and has a workspace of its own: 4 MiB, 32 from Hopper on
            (its pytorch/module/base.py).
        grouped: it runs experts besides, on four streams with a workspace each.
    """
    hopper = (gpu.compute_capability if gpu else (9, 0)) >= (9, 0)
    engine = 32 * MIB if hopper else 4 * MIB
    own = 2 * (32 * MIB if hopper else 8_519_680)
    return own + (engine if megatron else 0) + (4 * engine if megatron and grouped else 0)


def _fsdp_buffers(job: Job, stage: Stage, widths: Widths) -> tuple[int, int, int, int]:
    unit, around = _unit_bytes(stage, widths), _gathered_bytes(stage, widths, layered=False)
    head = around
    if job.training.framework == "transformers" and job.parallel.strategy == "fsdp2":
        # accelerate (utils/fsdp_utils.py, 1.15) makes units of the embedding and of the head, which come and go too
        around, head = 0, _gathered_bytes(stage, widths, layered=False, embedding=not stage.last)
    keeps = not job.parallel.reshard_after_forward or job.parallel.sharding == "grad_op"
    kept = _gathered_bytes(stage, widths, layered=True) if keeps else 0
    gathering = kept + unit if keeps else 3 * unit
    layers = max(1, stage.layers)
    trainable = stage.elements(trainable=True, layered=True) // layers
    reduced = trainable * (widths.compute + widths.reduce)
    double = 4 * unit if job.parallel.strategy == "megatron-fsdp" and job.parallel.double_buffer else 0
    forward = max(around + gathering, head + kept)
    return forward, head + kept + double, around + gathering + reduced, double


def _zero_buffers(job: Job, stage: Stage) -> tuple[int, int, int, int]:
    trainable = stage.elements(trainable=True)
    bucket = 2 * min(_ZERO_BUCKET, trainable)
    if job.parallel.strategy == "zero3":
        live = 2 * min(_ZERO_LIVE, stage.elements())
        return live, live, live + 2 * bucket, bucket
    return 0, bucket, 2 * bucket, bucket


def _gathered_bytes(stage: Stage, widths: Widths, *, layered: bool, embedding: bool = True) -> int:
    """Gathered parameters, whole: in the compute type, quantized ones as they are stored.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        layered: those of the blocks, or those around them.
        embedding: count the embedding in, unless it is all there is: it then is the head too.
    """
    return round(
        sum(
            held.elements * (weight_width(held, widths) if held.quantized else widths.compute)
            for held in _around(stage, layered=layered, embedding=embedding)
        )
    )


def _around(stage: Stage, *, layered: bool, embedding: bool) -> list[Held]:
    there = [held for held in stage.held if held.group.layered == layered]
    others = [held for held in there if held.group.role == "head"]
    return there if embedding or not others else [held for held in there if held.group.role != "embedding"]


def _unit_bytes(stage: Stage, widths: Widths) -> int:
    return _gathered_bytes(stage, widths, layered=True) // max(1, stage.layers)


def _trainable_bytes(stage: Stage, width: int, adapter_width: int) -> int:
    return sum(h.elements * (adapter_width if h.adapter else width) for h in stage.held if h.trainable)


def nccl_bytes(job: Job) -> int:
    """NCCL's own buffers on one rank, one communicator for each dimension of the job's mesh; 0 for a single rank."""
    parallel = job.parallel
    if parallel.world_size == 1:
        return 0
    dimensions = (parallel.data_shard, parallel.data_replicate, parallel.tensor, parallel.pipeline, parallel.context)
    groups = sum(size > 1 for size in (*dimensions, parallel.expert))
    return _NCCL_BYTES + _NCCL_FURTHER_BYTES * (groups - 1)
