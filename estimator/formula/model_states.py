"""Bytes of weights, gradients and optimizer state that a rank holds, and over how many ranks each is sharded."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ..job.dtype_widths import Widths, uses_zero
from ..job.frameworks import FRAMEWORKS
from ..job.job import Job
from ..job.optimizers import EIGHT_BIT_WIDTH, OPTIMIZERS, Optimizer
from ..job.strategies import STRATEGIES
from ..model.rank_share import LocalParameters, Stage

_ZERO_SUB_GROUP = 1_000_000_000
"""Elements that DeepSpeed's stage 3 steps at a time, by default (``sub_group_size``)."""
_SMALL_TENSOR = 4096
"""bitsandbytes keeps the states of smaller tensors in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Over how many ranks each kind of state is split; 1: every rank has it whole."""

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes on one rank."""

    weights: int
    gradients: int
    """Of all trainable parameters, as they stand at the end of the backward pass."""
    unsharded_gradients: int
    """The same before they are reduced, whole: what accumulation without reduction keeps."""
    optimizer: int
    step: int
    """What the optimizer step needs while it runs."""


def shards(job: Job) -> Shards:
    """How the job's strategy splits its states.

    ZeRO 1, 2, 3: optimizer; and gradients; and weights (arXiv:1910.02054). Context-parallel ranks share the shards,
    as accelerate and torchtitan build their meshes.
    """
    ranks = job.parallel.data_shard * job.parallel.context
    strategy = STRATEGIES[job.parallel.strategy]
    stage = strategy.stages_by_sharding.get(job.parallel.sharding, strategy.zero_stage)
    return Shards(
        weights=ranks if stage >= 3 else 1,
        gradients=ranks if stage >= 2 else 1,
        optimizer=ranks if stage >= 1 else 1,
    )


def states(job: Job, stage: Stage, widths: Widths) -> States:
    """What one rank holds of weights, gradients and optimizer state."""
    offload, optimizer = job.parallel.cpu_offload, OPTIMIZERS[job.training.optimizer]
    fp32_embeddings = FRAMEWORKS[job.training.framework].fp32_embedding_states
    whole = _unsplit(stage, widths, optimizer, fp32_embeddings, STRATEGIES[job.parallel.strategy].flat_parameters)
    split, gradients = shards(job), whole.gradients
    optimizer_step = _step_bytes(job, stage, widths, whole, split.optimizer)
    if job.training.optimizer_in_backward:
        trained = (held for held in stage.parameters if held.trainable)
        gradients = max((h.largest_tensor * _gradient_width(h, widths) for h in trained), default=0) * 2
        split = replace(split, gradients=1)
    if uses_zero(job) and offload != "none" and split.gradients > 1:
        gradients = 0  # moved to the host one by one (stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu)
    return States(
        weights=0 if offload == "all" else round(whole.weights / split.weights) + stage.buffer_bytes,
        gradients=0 if offload == "all" else round(gradients / split.gradients),
        unsharded_gradients=whole.unsharded_gradients,
        optimizer=0 if offload != "none" else round(whole.optimizer / split.optimizer),
        step=0 if offload != "none" else optimizer_step,
    )


@lru_cache(maxsize=256)
def _unsplit(stage: Stage, widths: Widths, optimizer: Optimizer, fp32_embeddings: bool, flat: bool) -> States:
    trained = [held for held in stage.parameters if held.trainable]
    if flat:
        # a unit is flattened into one parameter, whose gradient covers what is frozen in it too
        units = [held for held in stage.parameters if held.group.layered or held.trainable]
        unsharded = sum(h.elements * widths.compute for h in units)
    else:
        unsharded = sum(h.elements * widths.reduce for h in trained)
    return States(
        weights=round(sum(_stored(h, widths) for h in stage.parameters)),
        gradients=sum(h.elements * _gradient_width(h, widths) for h in trained),
        unsharded_gradients=unsharded,
        optimizer=round(sum(state_bytes(optimizer, h, widths, fp32_embeddings=fp32_embeddings) for h in trained)),
        step=sum(h.elements * (widths.adapter if h.adapter else widths.state) for h in trained),
    )


def accumulates_whole(job: Job) -> bool:
    """Gradients are accumulated before they are reduced, and so whole.

    ``no_sync`` under FSDP; and under torchtitan's pipeline stages, which reduce in a stage's last backward pass only
    (torch.distributed.pipelining.stage, ``backward_maybe_with_nosync``).
    """
    framework = FRAMEWORKS[job.training.framework]
    pipelined = framework.pipeline_keeps_gathered and job.parallel.pipeline > 1
    return (
        job.training.gradient_accumulation > 1
        and (framework.accumulates_unsharded or pipelined)
        and STRATEGIES[job.parallel.strategy].fsdp
        and shards(job).weights > 1
    )


def _stored(held: LocalParameters, widths: Widths) -> float:
    """Bytes of the weights as they are stored."""
    if held.quantized_bytes is not None:
        return held.quantized_bytes
    return held.elements * weight_width(held, widths)


def weight_width(held: LocalParameters, widths: Widths) -> float:
    """Bytes per stored element."""
    if held.quantized and widths.quantized is not None:
        return widths.quantized
    return widths.adapter if held.adapter else widths.weight


def _gradient_width(held: LocalParameters, widths: Widths) -> int:
    return widths.adapter if held.adapter else widths.gradient


def state_bytes(optimizer: Optimizer, held: LocalParameters, widths: Widths, *, fp32_embeddings: bool) -> float:
    """Optimizer state of one parameter group, unsharded.

    torch's optimizers keep states in the parameter's type; bitsandbytes' 8-bit ones one byte and a block constant,
    but the Trainer keeps embeddings' states in 32 bits; Adafactor keeps a row and a column per matrix.
    """
    if not optimizer.steps or optimizer.paged:
        return 0.0  # paged states are managed memory: NVML counts it to no process, and the driver moves it away
    width = widths.adapter if held.adapter else widths.state
    master = 0 if held.adapter else widths.master
    return held.elements * master + _states(optimizer, held, width, fp32_embeddings)


def _states(optimizer: Optimizer, held: LocalParameters, width: int, fp32_embeddings: bool) -> float:
    n, shape = held.elements, held.group.shape
    count = optimizer.states_of(block_matrix=held.group.is_block_matrix)
    if optimizer.factored:
        rows_and_columns = (prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]) / prod(shape) if len(shape) > 1 else 1
        return n * 4 * rows_and_columns
    if not optimizer.eight_bit:
        return n * count * width
    full = prod(shape) < _SMALL_TENSOR or (fp32_embeddings and held.group.role == "embedding")
    return n * 4 * count if full else n * count * EIGHT_BIT_WIDTH


def _step_bytes(job: Job, stage: Stage, widths: Widths, whole: States, split: int) -> int:
    """Torch's foreach AdamW makes one more copy of what it steps; fused and bitsandbytes' kernels make none."""
    if uses_zero(job):
        # the partition's gradients, flattened and in fp32 (stage_1_and_2.py, step); stage 3 takes parts of it in turn
        elements = stage.elements(trainable=True) // split
        return 4 * min(elements, _ZERO_SUB_GROUP) if job.parallel.strategy == "zero3" else 6 * elements
    optimizer = OPTIMIZERS[job.training.optimizer]
    if optimizer.foreach_copies and not job.training.optimizer_in_backward:
        return round(whole.step / split)
    largest = max((held.largest_tensor for held in stage.parameters if held.trainable), default=0)
    if job.training.optimizer_in_backward:
        return largest * 4
    tensors = optimizer.step_tensors + (optimizer.step_casts if widths.weight != 4 else 0)
    return largest * 4 * tensors // (1 if optimizer.steps_whole_matrices else split)
