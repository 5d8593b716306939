"""Bytes of weights, gradients and optimizer states that one rank holds, and temporary memory of the optimizer step."""

from functools import lru_cache
from math import prod

from msgspec import Struct

from ..job import ResolvedJob
from ..job.rules import EIGHT_BIT_WIDTH, Optimizer, Widths
from ..model import LocalParameters, Stage

_ZERO_SUB_GROUP_ELEMENTS = 1_000_000_000
"""DeepSpeed's stage 3 steps that many elements at a time, by default (``sub_group_size``)."""
_MIN_EIGHT_BIT_ELEMENTS = 4096
"""bitsandbytes keeps the states of smaller tensors in fp32."""


class ModelStates(Struct, frozen=True, kw_only=True):
    """Bytes on one rank."""

    weights: int
    gradients: int
    """Gradients of all trainable parameters at the end of the backward pass."""
    unsharded_gradients: int
    """Gradients before they are reduced, which accumulation without reduction keeps."""
    optimizer: int
    step: int
    """Temporary memory of the optimizer step."""


def model_states(job: ResolvedJob, stage: Stage) -> ModelStates:
    """Return the bytes of weights, gradients and optimizer states that one rank of a stage holds."""
    framework, shards = job.framework, job.shards
    whole = _unsharded(stage, job.widths, job.optimizer, framework.fp32_embedding_states, job.strategy.flat_parameters)
    if job.training.optimizer_in_backward:
        gradients = 2 * _largest_gradient(stage, job.widths)  # a gradient is applied while the next is computed
    elif job.deepspeed and job.offloads_optimizer and shards.gradients > 1:
        gradients = 0  # moved to the host one by one (stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu)
    else:
        gradients = round(whole.gradients / shards.gradients)
    return ModelStates(
        weights=0 if job.offloads_weights else round(whole.weights / shards.weights) + stage.buffer_bytes,
        gradients=0 if job.offloads_weights else gradients,
        unsharded_gradients=whole.unsharded_gradients,
        optimizer=0 if job.offloads_optimizer else round(whole.optimizer / shards.optimizer),
        step=0 if job.offloads_optimizer else _step_bytes(job, stage, whole.step),
    )


@lru_cache(maxsize=256)  # searches ask for the same stage with other activations
def _unsharded(
    stage: Stage, widths: Widths, optimizer: Optimizer, fp32_embeddings: bool, flat_parameters: bool
) -> ModelStates:
    """Return the stage's states before sharding; ``step`` is one copy of all that is stepped."""
    trained = [held for held in stage.parameters if held.trainable]
    if flat_parameters:
        # a unit is flattened into one parameter, whose gradient covers what is frozen in it too
        units = [held for held in stage.parameters if held.group.layered or held.trainable]
        unsharded = sum(h.elements * widths.compute for h in units)
    else:
        unsharded = sum(h.elements * widths.reduce for h in trained)
    return ModelStates(
        weights=round(sum(_stored_bytes(h, widths) for h in stage.parameters)),
        gradients=sum(h.elements * _gradient_width(h, widths) for h in trained),
        unsharded_gradients=unsharded,
        optimizer=round(sum(state_bytes(optimizer, h, widths, fp32_embeddings=fp32_embeddings) for h in trained)),
        step=sum(h.elements * (widths.adapter if h.adapter else widths.state) for h in trained),
    )


def _stored_bytes(held: LocalParameters, widths: Widths) -> float:
    if held.quantized_bytes is not None:
        return held.quantized_bytes
    return held.elements * weight_width(held, widths)


def weight_width(held: LocalParameters, widths: Widths) -> float:
    """Return the bytes per stored element of a parameter group."""
    if held.quantized and widths.quantized is not None:
        return widths.quantized
    return widths.adapter if held.adapter else widths.weight


def _gradient_width(held: LocalParameters, widths: Widths) -> int:
    return widths.adapter if held.adapter else widths.gradient


def _largest_gradient(stage: Stage, widths: Widths) -> int:
    trained = (held for held in stage.parameters if held.trainable)
    return max((held.largest_tensor * _gradient_width(held, widths) for held in trained), default=0)


def state_bytes(optimizer: Optimizer, held: LocalParameters, widths: Widths, *, fp32_embeddings: bool) -> float:
    """Return the optimizer state of one parameter group on the GPU, before sharding.

    torch's optimizers keep states in the parameter's dtype; bitsandbytes' 8-bit ones keep one byte and a block
    constant, and fp32 for small tensors and, in the Trainer, for embeddings; Adafactor keeps a row and a column per
    matrix. Paged states are managed memory: NVML counts it to no process, and the driver moves it away.
    """
    if not optimizer.steps or optimizer.paged:
        return 0.0
    width = widths.adapter if held.adapter else widths.state
    master = 0 if held.adapter else widths.master
    return held.elements * master + held.elements * _state_width(optimizer, held, width, fp32_embeddings)


def _state_width(optimizer: Optimizer, held: LocalParameters, width: int, fp32_embeddings: bool) -> float:
    """Return the bytes of all states per element."""
    states, shape = optimizer.states_of(block_matrix=held.group.is_block_matrix), held.group.shape
    if optimizer.factored:
        rows_and_columns = prod(shape[:-1]) + prod(shape[:-2]) * shape[-1] if len(shape) > 1 else prod(shape)
        return 4 * rows_and_columns / prod(shape)
    if not optimizer.eight_bit:
        return states * width
    fp32 = prod(shape) < _MIN_EIGHT_BIT_ELEMENTS or (fp32_embeddings and held.group.role == "embedding")
    return states * (4 if fp32 else EIGHT_BIT_WIDTH)


def _step_bytes(job: ResolvedJob, stage: Stage, stepped_bytes: int) -> int:
    """Return the temporary memory of the optimizer step.

    DeepSpeed flattens the partition's gradients and casts them to fp32 (stage_1_and_2.py, ``step``); its stage 3 takes
    parts of them in turn. torch's foreach AdamW copies all that it steps; fused and bitsandbytes' kernels copy nothing.
    """
    optimizer, shards = job.optimizer, job.shards.optimizer
    if job.deepspeed:
        elements = stage.elements(trainable=True) // shards
        return 4 * min(elements, _ZERO_SUB_GROUP_ELEMENTS) if job.partitions_weights else 6 * elements
    if optimizer.foreach_copies and not job.training.optimizer_in_backward:
        return round(stepped_bytes / shards)
    largest = max((held.largest_tensor for held in stage.parameters if held.trainable), default=0)
    if job.training.optimizer_in_backward:
        return largest * 4
    tensors = optimizer.step_tensors + (optimizer.step_casts if job.widths.weight != 4 else 0)
    return largest * 4 * tensors // (1 if optimizer.steps_whole_matrices else shards)
