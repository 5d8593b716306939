"""Megatron-FSDP in the closed form: its units' sizes, and its buffers moment by moment."""

from msgspec.structs import replace

from ..job.resolved_job import ResolvedJob
from ..job.rules.buffer_sizes import MEGATRON_CAPACITY
from ..model.rank_share import Stage
from .buffers import NO_UNIT, Buffers, elements_of, largest_block, unit_of, whole_unit


def megatron_capacity(job: ResolvedJob, elements: float) -> int:
    """Return the elements that Megatron-FSDP has in flight (``suggested_communication_unit_size``).

    Args:
        job: the job.
        elements: of a unit.
    """
    units = round(2 * elements) if job.zero_stage == 3 else 0
    return job.parallel.communication_unit or max(MEGATRON_CAPACITY, units)


def megatron_buffers(job: ResolvedJob, stage: Stage, *, tied: bool) -> Buffers:
    """Return the buffers of Megatron-FSDP, whose units are the blocks (megatron-fsdp 0.6.1, param_and_grad_buffer.py).

    While a block runs, those behind it are gathered until they have half of ``megatron_capacity`` elements. Gradients
    are copied into a whole buffer of their unit, in the dtype they are reduced in, which is freed once those that were
    reduced after it have more elements than that. What is around the blocks is one unit, whose weights stay gathered
    and whose gradients are reduced last; so is the whole model where no unit is named (``fsdp_unit_modules``). Doubled,
    there are two units of each, which are kept. Megatron-LM's kernels write gradients into these buffers; autograd
    makes a tensor of each first, and keeps that of a tied head until the end. ``VersionRules`` has what older versions
    do.

    Args:
        job: the job.
        stage: what the rank holds.
        tied: the stage's head is its embedding.
    """
    widths, layers, versions = job.widths, stage.layers, job.versions
    if job.zero_stage < 2 and widths.reduce == widths.gradient:
        return Buffers()  # gradients are added to those of all parameters, which exist anyhow
    parts, tokens = largest_block(stage), stage.token_embedding
    around = [held for held in stage.parameters if not held.group.layered]
    block, outside = unit_of(parts, widths), whole_unit(around, widths)
    capacity = megatron_capacity(job, elements_of(parts))
    # padding makes a bucket larger than its parameters
    ahead = -int(-(capacity // 2) // (1 + elements_of(parts)))
    trained = 1 + elements_of([part for part in parts if part[0].trainable])
    pending, doubled = min(layers, 1 + int(capacity // trained)), 0
    if job.zero_stage < 3:
        block, ahead = replace(block, whole=0), 0
    if job.parallel.fsdp_units == "model":
        outside, block, ahead, pending = whole_unit(stage.parameters, widths), NO_UNIT, 0, 0
    elif job.parallel.double_buffer:
        doubled, block, ahead, pending = 2 * (block.whole + block.reduced), NO_UNIT, 0, 0
    # before 0.5 the first blocks are gathered while the loss runs
    at_loss = min(layers, ahead) * block.whole if versions.frees_outside_units else 0
    ahead = min(layers - 1, ahead)
    own = job.framework.gradient_buffer
    # gradients as autograd makes them: the block's largest, the head's, the embedding's
    at_head = [held for held in around if (tied if held is tokens else held.group.linear)]
    made = ([held for held, _ in parts], at_head, [tokens] if tokens else [])
    largest, head, embedding = (
        0 if own else round(max((h.largest_tensor for h in each if h.trainable), default=0) * widths.compute)
        for each in made
    )
    # before 0.3 a block's gradients are copied when all of them exist
    unreduced = block.gradients if versions.reduces_whole_modules and not own else 0
    under_way = 0 if unreduced else block.reduced + largest
    kept = (outside.whole if job.zero_stage == 3 else 0) + doubled
    before = kept + outside.reduced + (head if tied else 0)
    running = before + block.whole * (1 + ahead) + under_way
    return Buffers(
        forward=kept + block.whole,
        head_forward=kept + at_loss,
        loss_backward=kept + at_loss,
        head_backward=kept + at_loss + outside.reduced + head,
        after_head=before + at_loss,
        first_block=running,
        block=running,
        block_end=before + block.whole * ahead + block.reduced + unreduced,
        unreduced=unreduced,
        embedding=kept + outside.reduced + pending * block.reduced + embedding,
        pending_blocks=pending,
        pending_bytes=block.reduced,
        ahead_blocks=ahead,
        ahead_bytes=block.whole,
        step=doubled if versions.frees_outside_units else kept,
    )
