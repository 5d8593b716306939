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
_NCCL_PAIR_BYTES = 544 * MIB
_NCCL_BYTES = 688 * MIB
"""A communicator of two ranks, and of more, after its first all-reduce (4 x A100, NVIDIA/nccl#964)."""
_NCCL_PEER_BYTES = 32 * 12 * MIB
"""What the first all-to-all takes per peer of the same machine: 32 channels, with 10 MiB to receive and 2 to send
(8 x H100, NVIDIA/nccl#1685)."""
_GPUS_PER_MACHINE = 8
_CONTEXT_BYTES = {7: 380 * MIB, 8: 480 * MIB, 9: 540 * MIB, 10: 640 * MIB, 12: 640 * MIB}
"""CUDA context with lazily loaded kernels, by major compute capability: A100 481 MiB with torch 2.1, RTX 5090 635."""
_KERNELS_BYTES = 120 * MIB
"""Kernels of cuBLAS, flash attention and torch that a training step loads into the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Bytes of communication buffers by moment: inside torch's allocator but for ``outside``."""

    forward: int = 0
    """While the blocks run forward."""
    head: int = 0
    """While logits and loss are computed."""
    loss: int = 0
    """While the loss runs backward."""
    reduce: int = 0
    """When the head's gradients are reduced, before the blocks run backward; 0: not then."""
    backward: int = 0
    """While the blocks run backward."""
    end: int = 0
    """When the embedding's, or the root's, gradients are reduced."""
    step: int = 0
    """Kept between steps."""
    outside: int = 0
    """NCCL's own buffers."""
    pool: int = 0
    """What the gathering stream's pool of blocks comes to, which serves no other stream."""
    block: int = 0
    """The largest input of a reduce-scatter: one block."""


def communication(job: Job, stage: Stage, widths: Widths) -> Communication:
    """Gathered weights, gradients on their way, and buckets."""
    strategy = job.parallel.strategy
    outside = nccl_bytes(job)
    if strategy == "ddp" and job.parallel.data_ranks > 1 and job.training.framework != "megatron":
        # Megatron's buckets are its gradient buffer
        bucket = _trainable_bytes(stage, widths.gradient, widths.adapter)
        return _everywhere(bucket, outside=outside)
    if uses_zero(job) and job.parallel.data_ranks * job.parallel.context > 1:
        return _zero_buffers(job, stage, outside=outside)
    if job.parallel.world_size > 1 and shards(job).weights > 1:
        return _fsdp_buffers(job, stage, widths, outside=outside)
    if strategy == "megatron-fsdp" and job.parallel.data_ranks > 1:
        unit = _unit_bytes(stage, widths)
        kept = 2 * unit if job.parallel.double_buffer else 0
        return Communication(backward=2 * unit, end=2 * unit, step=kept, outside=outside)
    return Communication(outside=outside)


def _everywhere(size: int, *, outside: int) -> Communication:
    return Communication(
        forward=size, head=size, loss=size, backward=size, end=size, step=size, outside=outside
    )


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


def _fsdp_buffers(job: Job, stage: Stage, widths: Widths, *, outside: int) -> Communication:
    """What FSDP gathers and reduces (torch.distributed.fsdp, ``_fully_shard/_fsdp_param_group.py``).

    Two units are alive: the one in use and the flat buffer from which it, or the next, is copied. In backward a
    unit's gradients besides, and the input of one reduce-scatter, which is kept until the next one's.
    """
    unit, keeps = _unit_bytes(stage, widths), _keeps_gathered(job)
    kept = _gathered_bytes(stage, widths, layered=True) if keeps else 0
    gathering = kept + unit if keeps else 2 * unit
    layer = stage.elements(trainable=True, layered=True) // max(1, stage.layers)
    reduced = layer * (widths.compute + widths.reduce)
    if job.parallel.data_replicate > 1:  # a reduced unit on its way to the other replicas
        reduced += layer * widths.reduce // job.parallel.data_shard
    double = 4 * unit if job.parallel.strategy == "megatron-fsdp" and job.parallel.double_buffer else 0
    around = _gathered_bytes(stage, widths, layered=False)
    embedding = stage.elements(trainable=True, layered=False, role="embedding")
    others = stage.elements(trainable=True, layered=False) - embedding
    if not _has_own_units(job, stage):
        # embedding and head are the root's: gathered throughout, reduced at the very end
        waiting = others * widths.compute
        root = (embedding + others) * widths.compute
        return Communication(
            forward=around + gathering + double,
            head=around + kept + double,
            loss=around + kept + double,
            backward=around + gathering + reduced + waiting + double,
            end=max(around + root + layer * widths.reduce, root + (embedding + others) * widths.reduce) + double,
            step=double,
            outside=outside,
            pool=around + unit if job.parallel.strategy == "fsdp2" else unit,
        )
    head = _gathered_bytes(stage, widths, layered=False, embedding=not stage.last)
    flat = 0
    if job.training.framework == "transformers":  # its loss lies within the root's forward pass, which keeps the last
        flat = unit if stage.first and stage.last and _is_tied(stage) else head
    both = widths.compute + widths.reduce
    return Communication(
        forward=gathering,
        head=head + kept + flat,
        loss=head + kept,
        reduce=kept + unit + others * both,
        backward=gathering + reduced,
        end=max(around - head + embedding * widths.compute + layer * widths.reduce, embedding * both),
        outside=outside,
        pool=max(head, around - head) + unit,
        block=max(embedding, others) * widths.reduce,
    )


def _keeps_gathered(job: Job) -> bool:
    """Blocks stay gathered from the forward to the backward pass.

    Asked for, or torchtitan's default where there are pipeline stages (its distributed/fsdp.py).
    """
    pipelined = job.training.framework == "torchtitan" and job.parallel.pipeline > 1
    return not job.parallel.reshard_after_forward or job.parallel.sharding == "grad_op" or pipelined


def _has_own_units(job: Job, stage: Stage) -> bool:
    """Embedding and head are FSDP units of their own, which come and go as the blocks do.

    So accelerate (utils/fsdp_utils.py, 1.15) and torchtitan since 0.2, where they are no one parameter.
    """
    if job.parallel.strategy != "fsdp2":
        return False
    return job.training.framework == "transformers" or (job.training.framework == "torchtitan" and not _is_tied(stage))


def _is_tied(stage: Stage) -> bool:
    """The head is the embedding."""
    return not any(held.group.role == "head" for held in stage.held)


def _zero_buffers(job: Job, stage: Stage, *, outside: int) -> Communication:
    """DeepSpeed's buckets, of their full size however small the model (runtime/zero/stage_1_and_2.py, stage3.py).

    Stages 1 and 2 make theirs for the backward pass; stage 3 keeps it, and gathered parameters with it.
    """
    bucket = 2 * _ZERO_BUCKET
    if job.parallel.strategy != "zero3":
        return Communication(backward=bucket, loss=bucket, end=bucket, outside=outside)
    live = 2 * min(_ZERO_LIVE, stage.elements())
    return Communication(
        forward=live + bucket,
        head=live + bucket,
        loss=live + bucket,
        backward=live + bucket,
        end=live + bucket,
        step=bucket,
        outside=outside,
    )


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
    """NCCL's own buffers on one rank; 0 for a single rank.

    One communicator for each dimension of the job's mesh and, where that is not the same, one for all ranks. More
    communicators take more (NVIDIA/nccl#986), more machines than two hardly do.
    """
    parallel = job.parallel
    if parallel.world_size == 1:
        return 0
    dimensions = (
        parallel.data_shard * parallel.context if parallel.data_shard > 1 else 1,
        parallel.data_replicate,
        parallel.tensor,
        parallel.pipeline,
        parallel.context,
    )
    groups = {size for size in dimensions if size == parallel.world_size}  # all ranks: one and the same
    sizes = [*groups, *(size for size in dimensions if 1 < size < parallel.world_size)]
    sizes += [] if groups else [parallel.world_size]
    collectives = sum(_NCCL_PAIR_BYTES if size == 2 else _NCCL_BYTES for size in sizes)
    return collectives + (min(parallel.expert, _GPUS_PER_MACHINE) - 1) * _NCCL_PEER_BYTES
