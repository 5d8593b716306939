"""Buffers of a job's strategy in torch's allocator: chooses between the rules of DDP, FSDP, ZeRO and Megatron-FSDP."""

from msgspec.structs import replace

from ..job import ResolvedJob
from ..model import Stage
from .buffers import Buffers, root_buffers, unit_buffers, whole_model_buffers
from .fsdp1 import flat_buffers, gathered_share, unit_rule
from .megatron_fsdp import megatron_buffers
from .model_states import largest_gradient
from .zero import zero_buffers


def communication_buffers(job: ResolvedJob, stage: Stage, *, tied: bool) -> Buffers:
    """Return the gathered weights, gradients under reduction, and buckets of one rank.

    Args:
        job: the resolved job.
        stage: what the rank holds.
        tied: head and embedding are one parameter.
    """
    parallel, widths, shards = job.parallel, job.widths, job.shards
    ranks = parallel.data_ranks * parallel.context
    if job.strategy.buckets and parallel.data_ranks > 1 and not job.framework.gradient_buffer:
        bucket = _trainable_bytes(stage, widths.gradient, widths.adapter)
        waits = job.training.gradient_accumulation > 1 and not parallel.sync_every_micro_batch
        if parallel.gradient_as_bucket_view and waits:  # no_sync: gradients are tensors of their own until the last one
            return _constant_buffers(forward=bucket, backward=bucket, step=0)
        if parallel.gradient_as_bucket_view:  # the buckets are the gradients, beside the one that is being computed
            computed = _constant_buffers(forward=0, backward=largest_gradient(stage, widths), step=0)
            return replace(computed, loss_backward=0)
        return _constant_buffers(forward=bucket, backward=bucket, step=bucket)
    if job.deepspeed and ranks > 1:
        return zero_buffers(job, stage)
    if job.strategy.megatron_fsdp and ranks > 1:
        return megatron_buffers(job, stage, tied=tied and stage.last)
    if not job.flattens and (parallel.world_size == 1 or shards.weights == 1):
        return Buffers()
    tied, keeps = tied and stage.last, job.keeps_gathered
    if job.strategy.flat_parameters:
        prefetch = parallel.fsdp_backward_prefetch or "pre"
        return flat_buffers(
            stage,
            widths,
            rule=unit_rule(job),
            share=gathered_share(job),
            shards=shards.weights,
            tied=tied,
            keeps=keeps,
            prefetch=prefetch,
            loss_in_forward=job.framework.loss_in_forward,
        )
    if parallel.fsdp_units == "model":
        return whole_model_buffers(stage, widths)
    if job.units_around_blocks:
        return unit_buffers(
            stage,
            widths,
            tied=tied,
            keeps=keeps,
            loss_in_forward=job.framework.loss_in_forward,
            own_pool=job.versions.reduces_in_own_pool,
        )
    return root_buffers(
        stage,
        widths,
        tied=tied,
        keeps=keeps,
        pools_root=job.strategy.fsdp2,
        last_stays=job.last_block_stays,
        own_pool=job.strategy.fsdp2 and job.versions.reduces_in_own_pool,
    )


def _constant_buffers(*, forward: int, backward: int, step: int) -> Buffers:
    """Return buffers that have one size all through a pass."""
    return Buffers(
        forward=forward,
        head_forward=forward,
        loss_backward=backward,
        head_backward=backward,
        after_head=backward,
        first_block=backward,
        block=backward,
        block_end=backward,
        embedding=backward,
        step=step,
    )


def _trainable_bytes(stage: Stage, width: int, adapter_width: int) -> int:
    return sum(h.elements * (adapter_width if h.adapter else width) for h in stage.parameters if h.trainable)
