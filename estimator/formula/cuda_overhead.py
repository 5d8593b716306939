"""What a training process takes around its tensors: communication buffers, workspaces, and what torch never sees."""

import re
from dataclasses import dataclass, fields

from ..common.sizes import MIB
from ..job.dtype_widths import Widths, uses_zero
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.version_rules import loads_kernels_eagerly, loads_whole_libraries
from ..model.rank_share import Stage
from .fsdp_buffers import Buffers, has_own_units, keeps_gathered, megatron_buffers, root_buffers, unit_buffers
from .model_states import shards

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
"""CUDA context before any kernel is loaded, by major compute capability: A100 481 MiB with torch 2.1, RTX 5090 635."""
_KERNELS_BYTES = 120 * MIB
"""Kernels of cuBLAS, flash attention and torch that a training step loads into the context."""
_ALL_KERNELS_BYTES = 450 * MIB
"""All of them at once, beside the context: A100, torch 1.13 and 2.1 with CUDA_MODULE_LOADING=EAGER, 922 and 942 MiB."""
_OLD_CONTEXT_BYTES = {7: 1343 * MIB, 8: 1822 * MIB}
"""Context with all kernels before lazy loading: V100 under CUDA 11.2 (transformers' documentation), A100 torch 1.10."""


_MOMENTS = tuple(moment.name for moment in fields(Buffers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication(Buffers):
    """Communication buffers inside torch's allocator, by moment, and outside of it."""

    outside: int
    """NCCL's own buffers."""


def communication(job: Job, stage: Stage, widths: Widths, *, tied: bool) -> Communication:
    """Gathered weights, gradients on their way, and buckets."""
    buffers = _buffers(job, stage, widths, tied=tied and stage.last)
    moments = {name: getattr(buffers, name) for name in _MOMENTS}
    return Communication(**moments, outside=nccl_bytes(job))


def _buffers(job: Job, stage: Stage, widths: Widths, *, tied: bool) -> Buffers:
    strategy, ranks = job.parallel.strategy, job.parallel.data_ranks * job.parallel.context
    if strategy == "ddp" and job.parallel.data_ranks > 1 and job.training.framework != "megatron":
        # Megatron's buckets are its gradient buffer
        bucket = _trainable_bytes(stage, widths.gradient, widths.adapter)
        return _same(forward=bucket, loss=bucket, backward=bucket, step=bucket)
    if uses_zero(job) and ranks > 1:
        return _zero_buffers(job, stage)
    if strategy == "megatron-fsdp" and ranks > 1:
        return megatron_buffers(job, stage, widths)
    if job.parallel.world_size == 1 or shards(job).weights == 1:
        return Buffers()
    if has_own_units(job):
        within = job.training.framework == "transformers"
        return unit_buffers(stage, widths, tied=tied, keeps=keeps_gathered(job), within=within)
    return root_buffers(job, stage, widths)


def _same(*, forward: int, loss: int, backward: int, step: int) -> Buffers:
    """Buffers that are the same all through a pass."""
    return Buffers(
        forward=forward,
        output=forward,
        loss=loss,
        head=loss,
        turn=loss,
        first=backward,
        backward=backward,
        reduced=backward,
        embedding=backward,
        step=step,
    )


def context_bytes(job: Job, gpu: Gpu | None, *, training: bool = True) -> int:
    """CUDA context, driver libraries and loaded kernels of one process on this card.

    Args:
        job: its software decides when kernels are loaded.
        gpu: the card; a Hopper card when left out.
        training: a step has run, and its kernels are loaded; else nothing but the weights is there.
    """
    major = gpu.compute_capability[0] if gpu else 9
    if loads_whole_libraries(job):
        return _OLD_CONTEXT_BYTES[min(max(major, 7), 8)]
    bare = _CONTEXT_BYTES.get(major, 540 * MIB)
    if loads_kernels_eagerly(job):
        return bare + _ALL_KERNELS_BYTES
    return bare + (_KERNELS_BYTES if training else 0)


_WORKSPACES = re.compile(r":(\d+):(\d+)")


def workspace_bytes(
    gpu: Gpu | None, *, setting: str | None = None, megatron: bool = False, grouped: bool = False
) -> int:
    """CuBLAS workspaces of the main and the autograd thread, allocated through torch (32 MiB each from Hopper on).

    Args:
        gpu: the card; a Hopper card when left out.
        setting: ``CUBLAS_WORKSPACE_CONFIG``: pairs of a size in KiB and a number (torch's CublasHandlePool.cpp).
        megatron: TransformerEngine runs the linear layers and has a workspace of its own: 4 MiB, 32 from Hopper on
            (its pytorch/module/base.py).
        grouped: it runs experts besides, on four streams with a workspace each.
    """
    hopper = (gpu.compute_capability if gpu else (9, 0)) >= (9, 0)
    engine = 32 * MIB if hopper else 4 * MIB
    pairs = _WORKSPACES.findall(setting or "")
    chosen = sum(int(size) * 1024 * int(count) for size, count in pairs)
    own = 2 * (chosen if pairs else 32 * MIB if hopper else 8_519_680)
    return own + (engine if megatron else 0) + (4 * engine if megatron and grouped else 0)


def _zero_buffers(job: Job, stage: Stage) -> Buffers:
    """DeepSpeed's buckets, of their full size however small the model (runtime/zero/stage_1_and_2.py, stage3.py).

    Stages 1 and 2 make theirs for the backward pass; stage 3 keeps it, and gathered parameters with it.
    """
    bucket = 2 * _ZERO_BUCKET
    if job.parallel.strategy != "zero3":
        return _same(forward=0, loss=bucket, backward=bucket, step=0)
    live = 2 * min(_ZERO_LIVE, stage.elements()) + bucket
    return _same(forward=live, loss=live, backward=live, step=bucket)


def _trainable_bytes(stage: Stage, width: int, adapter_width: int) -> int:
    return sum(h.elements * (adapter_width if h.adapter else width) for h in stage.parameters if h.trainable)


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
