"""Buckets of ZeRO, and the weights that its stage 3 gathers, by moment of the step."""

from msgspec.structs import replace

from ...job import ResolvedJob
from ...model import Stage
from ..buffers import Buffers
from .engine_step import own_gradient_bytes
from .sizes import ZeroSizes, zero_sizes


def zero_buffers(job: ResolvedJob, stage: Stage) -> Buffers:
    """Return ZeRO's buffers: buckets, which have their full size however small the model, and weights.

    Stages 1 and 2 (``stage_1_and_2.py``) allocate a bucket when the first gradient exists and free it after the
    backward pass; while it is reduced, there is a second copy of what is in it, as it holds parts of several ranks. In
    stage 1 an accumulated step keeps the bucket of its first backward pass.
    """
    sizes, width = zero_sizes(job), job.widths.weight
    trained = stage.elements(trainable=True)
    bucket = round(sizes.buckets * sizes.bucket * width)
    reduced = round(min(sizes.bucket, trained) * width)
    if job.partitions_weights:
        buffers = _with_gathered(job, stage, sizes, bucket=bucket, reduced=reduced)
    else:
        buffers = _buckets(job, stage, bucket=bucket, reduced=reduced)
    return _with_pending(buffers, stage, sizes, reduced) if trained > sizes.bucket else buffers


def _buckets(job: ResolvedJob, stage: Stage, *, bucket: int, reduced: int) -> Buffers:
    """Return the buffers of stages 1 and 2."""
    own, accumulates = own_gradient_bytes(job, stage), job.training.gradient_accumulation > 1
    copied = _largest(stage) * job.widths.weight if job.offloads_optimizer else 0
    kept = copied + (bucket if accumulates and job.zero_stage == 1 else 0)
    # stage 1 frees each gradient that it copies into the bucket; stage 2 adds this rank's to those of the step so far
    at_end = own if job.zero_stage == 1 else reduced + (own if accumulates else 0)
    backward = bucket + copied
    return Buffers(
        forward=kept,
        head_forward=kept,
        loss_backward=kept,
        head_backward=backward,
        after_head=backward,
        first_block=backward,
        block=backward,
        block_end=backward,
        embedding=backward + at_end,
        step=copied,
    )


def _with_pending(buffers: Buffers, stage: Stage, sizes: ZeroSizes, reduced: int) -> Buffers:
    """Return buffers with the copy that a full bucket's reduction makes, as what the blocks until then add to it."""
    block = stage.elements(trainable=True, layered=True) / max(1, stage.layers)
    blocks = max(1, round(sizes.bucket / max(1.0, block)))
    return replace(buffers, pending_blocks=blocks, pending_bytes=reduced // blocks)


def _with_gathered(job: ResolvedJob, stage: Stage, sizes: ZeroSizes, *, bucket: int, reduced: int) -> Buffers:
    """Return the buffers of stage 3, which keeps its bucket (``stage3.py``).

    Every module fetches ahead, those without weights too (``partitioned_param_coordinator.py``): as much is gathered
    as ``stage3_max_live_parameters`` allows, and the parameter that passes it. What is used again within
    ``stage3_max_reuse_distance`` stays: at the turn from forward to backward, one half of that.
    """
    width, elements, largest = job.widths.weight, stage.elements(), _largest(stage)
    held = max(sizes.live if sizes.prefetch else 0, sizes.reuse // 2)
    blocks = bucket + round(min(elements, held + largest) * width)
    turn = bucket + round(min(elements, max(held, largest)) * width)
    persistent = sum(h.elements for h in stage.parameters if h.largest_tensor <= sizes.persists)
    return Buffers(
        forward=blocks,
        head_forward=turn,
        loss_backward=turn,
        head_backward=turn,
        after_head=turn,
        first_block=turn,
        block=turn,
        block_end=turn,
        embedding=bucket + round(min(elements, largest) * width) + reduced,
        step=bucket + round(persistent * width),
    )


def _largest(stage: Stage) -> int:
    """Return the elements of the largest parameter of a rank."""
    return max((held.largest_tensor for held in stage.parameters), default=0)
