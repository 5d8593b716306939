"""DeepSpeed's ZeRO in the closed form: buckets, gathered weights, and what its optimizer step takes."""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from ..job.resolved_job import ResolvedJob
from ..job.rules.buffer_sizes import ZERO_ELEMENTS
from ..job.settings import Zero
from ..model.rank_share import Stage
from .buffers import Buffers


class ZeroSizes(Struct, frozen=True, kw_only=True):
    """DeepSpeed's settings of one job, in elements; the job's, or the defaults (``runtime/zero/config.py``)."""

    bucket: int
    """Gradients that are reduced at a time."""
    buckets: int
    """Allocated buckets: two where communication overlaps in stages 1 and 2, none without contiguous gradients."""
    prefetch: int
    live: int
    """Weights gathered at once, at most."""
    reuse: int
    """Weights that are used again within that many stay gathered."""
    persists: int
    """Elements of the largest parameter that stays gathered."""
    sub_group: int


def zero_sizes(job: ResolvedJob) -> ZeroSizes:
    """Return the sizes of a job's buckets and of what it gathers."""
    return _sizes(job.zero, job.partitions_weights, job.offloads_optimizer)


@lru_cache(maxsize=64)
def _sizes(zero: Zero, gathers: bool, offloads: bool) -> ZeroSizes:
    contiguous = zero.contiguous_gradients or (offloads and not gathers)
    overlaps = bool(zero.overlap_comm) and not gathers
    given = {name: size for name in ZERO_ELEMENTS if (size := getattr(zero, name)) is not None}
    sizes = {**ZERO_ELEMENTS, **given}
    return ZeroSizes(
        bucket=sizes["reduce_bucket"],
        buckets=(2 if overlaps else 1) if contiguous else 0,
        prefetch=sizes["prefetch_bucket"],
        live=sizes["max_live_parameters"],
        reuse=sizes["max_reuse_distance"],
        persists=sizes["persistence_threshold"],
        sub_group=max(1, sizes["sub_group"]),
    )


_NORM_BYTES = 8
"""A gradient's norm is taken in fp64 (``get_grad_norm_direct``)."""


def own_gradient_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes of the gradients that a rank has when it steps: those of its part of the optimizer states.

    Stage 1 too has freed the others by then (``independent_gradient_partition_epilogue``). A gradient of which only a
    part is the rank's is kept whole (``copy_grads_in_partition``), such as a large embedding's.
    """
    if job.offloads_optimizer:
        return 0
    width = 4 if _wide(job) else job.widths.weight
    elements = stage.elements(trainable=True) // job.shards.optimizer
    return width * (elements if job.partitions_weights else max(elements, _largest(stage)))


def zero_step_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the temporary memory of the step, beside the gradients of the rank's part.

    These are flattened and cast to fp32 (``stage_1_and_2.py``, ``step``); they and the flat ones are freed before the
    optimizer runs, on one large tensor. Where they share a buffer (``copy_grads_in_partition``), that is not before the
    last group of parameters is taken: the Trainer has a second one, of what does not decay. Stage 3 keeps them in a
    buffer, and takes one group after the other (``sub_group_size``).
    """
    if job.offloads_optimizer:
        return 0
    elements, width = stage.elements(trainable=True) // job.shards.optimizer, job.widths.weight
    largest = _largest(stage)
    if job.partitions_weights:
        largest //= job.shards.optimizer
        elements = min(elements, zero_sizes(job).sub_group + largest)
    optimizer = job.optimizer
    copies = 0.0 if optimizer.fused else optimizer.copies
    inside = 4 * (optimizer.step_tensors if copies is None else copies)
    flat = 4 if _wide(job) else width
    cast = 0 if flat == 4 else 4
    is_shared = job.framework.trainer and job.lora is None and zero_sizes(job).buckets > 0
    freed = 0 if job.partitions_weights or is_shared else own_gradient_bytes(job, stage)
    return round(max((flat + cast) * elements, (4 + inside) * elements - freed, _NORM_BYTES * min(largest, elements)))


def _largest(stage: Stage) -> int:
    return max((held.largest_tensor for held in stage.parameters if held.trainable), default=0)


def _wide(job: ResolvedJob) -> bool:
    """Return True if gradients are accumulated in fp32, beside 16-bit weights.

    Stage 2 accumulates in the dtype of the weights whatever the setting (``use_grad_accum_attribute``).
    """
    return job.parallel.gradient_dtype == "fp32" and job.zero_stage != 2


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
    if trained <= sizes.bucket:
        return buffers
    # the copy that a full bucket's reduction makes, as what the blocks until then add to it
    block = stage.elements(trainable=True, layered=True) / max(1, stage.layers)
    blocks = max(1, round(sizes.bucket / max(1.0, block)))
    return replace(buffers, pending_blocks=blocks, pending_bytes=reduced // blocks)


def _buckets(job: ResolvedJob, stage: Stage, *, bucket: int, reduced: int) -> Buffers:
    """Return the buffers of stages 1 and 2."""
    own, accumulates = own_gradient_bytes(job, stage), job.training.gradient_accumulation > 1
    copied = _largest_buffers(stage) * job.widths.weight if job.offloads_optimizer else 0
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


def _with_gathered(job: ResolvedJob, stage: Stage, sizes: ZeroSizes, *, bucket: int, reduced: int) -> Buffers:
    """Return the buffers of stage 3, which keeps its bucket (``stage3.py``).

    Every module fetches ahead, those without weights too (``partitioned_param_coordinator.py``): as much is gathered
    as ``stage3_max_live_parameters`` allows, and the parameter that passes it. What is used again within
    ``stage3_max_reuse_distance`` stays: at the turn from forward to backward, one half of that.
    """
    width, elements, largest = job.widths.weight, stage.elements(), _largest_buffers(stage)
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


def _largest_buffers(stage: Stage) -> int:
    """Return the elements of the largest parameter of a rank."""
    return max((held.largest_tensor for held in stage.parameters), default=0)
