"""Memory of DeepSpeed's optimizer step: gradients of the rank's part, and copies of them."""

from ...job import ResolvedJob
from ...model import Stage
from .sizes import zero_sizes

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

    These are flattened and cast to fp32 (``stage_1_and_2.py``, ``step``); the flat ones are freed before the optimizer
    runs, on one large tensor. Stage 3 takes one group after the other (``sub_group_size``).
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
    return round(max((flat + cast) * elements, (4 + inside) * elements, _NORM_BYTES * min(largest, elements)))


def _largest(stage: Stage) -> int:
    return max((held.largest_tensor for held in stage.parameters if held.trainable), default=0)


def _wide(job: ResolvedJob) -> bool:
    """Return True if gradients are accumulated in fp32, beside 16-bit weights.

    Stage 2 accumulates in the dtype of the weights whatever the setting (``use_grad_accum_attribute``).
    """
    return job.parallel.gradient_dtype == "fp32" and job.zero_stage != 2
