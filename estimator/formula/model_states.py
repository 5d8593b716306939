"""Bytes of weights, gradients and optimizer states that one rank holds, and temporary memory of the optimizer step.

Widths have their sources in ``job.rules.dtype_widths``, states of optimizers in ``job.rules.optimizers`` (compared with
those that the optimizers' own classes make), quantized weights in ``job.quantization``.
"""

from functools import lru_cache
from math import prod
from typing import Literal

from msgspec import Struct

from ..common.library_versions import older
from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import Widths
from ..job.rules.optimizers.optimizer import Optimizer
from ..job.rules.strategies import Shards
from ..model.architecture import Architecture
from ..model.rank_share import LocalParameters, Stage
from .buffers import largest_block, weight_width
from .zero import zero_step_bytes

Bound = Literal["low", "expected", "high"]
_BOUNDS: tuple[Bound, ...] = ("low", "expected", "high")


class ModelStates(Struct, frozen=True, kw_only=True):
    """Bytes on one rank."""

    weights: int
    loaded: int
    """Weights on the GPU at most while they are loaded."""
    scales: int
    """Scales of quantized weights, part of ``weights``: bitsandbytes keeps them beside its parameters."""
    gradients: int
    """Gradients of all trainable parameters at the end of the backward pass."""
    unsharded_gradients: int
    """Gradients before they are reduced, which accumulation without reduction keeps."""
    optimizer: int
    optimizer_low: int
    """The fewest bytes that ``optimizer`` may be."""
    optimizer_high: int
    saved: int
    """Optimizer states of all ranks of the stage, once each, wherever they are: what a checkpoint holds."""
    step: int
    """Temporary memory of the optimizer step."""


class StateRules(Struct, frozen=True, kw_only=True):
    """All that decides the optimizer states of a parameter group."""

    optimizer: Optimizer
    widths: Widths
    whole_embeddings: bool
    """8-bit optimizers keep the states of embeddings in fp32."""
    flat: bool
    """Parameters are stepped as parts of flat buffers, which hide their shapes."""
    partitioned: bool
    """All that trains is stepped as an fp32 copy, adapters too (DeepSpeed)."""

    def states(self, held: LocalParameters, bound: Bound = "expected") -> float:
        """Return the bytes of a group's states before sharding, wherever they are."""
        width = self.widths.adapter if held.adapter and not self.partitioned else self.widths.state
        whole = prod(held.group.shape)
        return (held.elements / whole) * self.optimizer.state_bytes(
            held.group,
            width,
            shape=(whole,) if self.flat else None,
            whole_embeddings=self.whole_embeddings,
            bound=bound,
        )

    def master(self, held: LocalParameters) -> int:
        """Return the bytes of the fp32 copy of a group that the optimizer keeps, before sharding."""
        own = held.adapter and not self.partitioned
        return 0 if own or not self.optimizer.steps else held.elements * self.widths.master

    def saved(self, held: LocalParameters, stage: Stage) -> float:
        """Return the bytes that a checkpoint holds of a group; a tied head's states are those of the embedding."""
        if held.group.role == "embedding" and not stage.first:
            return 0.0
        share = held.group.elements * held.tensors / (held.group.repeat * max(1, held.elements))
        return (self.states(held) + self.master(held)) * share


def state_rules(job: ResolvedJob) -> StateRules:
    """Return what decides a job's optimizer states."""
    return StateRules(
        optimizer=job.optimizer,
        widths=job.widths,
        whole_embeddings=job.framework.fp32_embedding_states,
        flat=job.steps_flat_buffers,
        partitioned=job.deepspeed,
    )


_ROTARY_TABLES_UNTIL = {
    "llama": (4, 41),
    **dict.fromkeys(("falcon", "gpt_neox", "mistral", "phi", "qwen2", "qwen2_moe", "stablelm", "starcoder2"), (4, 46)),
    "mixtral": (4, 52),
}
"""The first version of transformers, of 4.30, 4.41, 4.46 and 4.52, whose model keeps no table (``cos_cached``)."""


def rotary_tables(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Return the bytes of the sines and cosines of all positions that each block keeps, in the weights' type."""
    until = _ROTARY_TABLES_UNTIL.get(arch.family, ())
    if not until or not job.framework.transformers_models or not older(job.software.transformers, *until):
        return 0
    width = job.widths.compute if job.widths.quantized is not None else job.widths.weight
    return round(stage.layers * 2 * (arch.max_positions or 0) * arch.rope_head_dim * width)


def model_states(job: ResolvedJob, stage: Stage, tables: int = 0) -> ModelStates:
    """Return the bytes of weights, gradients and optimizer states that one rank of a stage holds.

    Args:
        job: the job.
        stage: its part of the model.
        tables: bytes of ``rotary_tables``.
    """
    shards = job.shards
    # peft's wrap policy makes each adapter a unit of its own, without what is frozen
    whole = _unsharded(stage, state_rules(job), job.strategy.flat_parameters and not job.adapter_units, shards)
    on_gpu = 0 if job.offloads_optimizer else 1 / shards.optimizer
    if job.steps_in_backward:
        gradients = _passing_gradients(job, stage)
    elif job.deepspeed and job.offloads_optimizer and job.zero_stage > 1:
        gradients = 0  # moved to the host one by one (stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu)
    elif job.flattens and job.lora is None and stage.partly_trained:
        gradients = round(_flat_gradients(stage, job.widths) / shards.gradients)
    else:
        gradients = round(whole.gradients / shards.gradients)
    # FSDP1 shards parameters, and no other attributes of theirs
    apart = whole.scales if job.strategy.flat_parameters else 0
    weights = round((whole.weights - apart) / shards.weights) + apart
    buffers = stage.buffer_bytes + tables
    held = 0 if job.offloads_weights else weights + buffers
    return ModelStates(
        weights=held,
        loaded=whole.loaded + buffers if job.loads_whole else held,
        scales=whole.scales,
        gradients=0 if job.offloads_weights and not job.flattens else gradients,
        unsharded_gradients=whole.unsharded_gradients,
        optimizer=round(whole.optimizer * on_gpu),
        optimizer_low=round(whole.optimizer_low * on_gpu),
        optimizer_high=round(whole.optimizer_high * on_gpu),
        saved=whole.saved,
        step=0 if job.offloads_optimizer else _step_bytes(job, stage, whole.step),
    )


@lru_cache(maxsize=256)  # searches ask for the same stage with other activations
def _unsharded(stage: Stage, rules: StateRules, flattens_frozen: bool, shards: Shards) -> ModelStates:
    """Return the stage's states before sharding; ``step`` is one copy of all that is stepped.

    What expert parallelism has split over some of the ranks that shard a state counts as often as that, since they
    shard it no further.
    """
    widths = rules.widths
    of_weights, of_gradients, of_optimizer = (
        {id(held): held.counted(ranks) * (held.padding if ranks > 1 else 1) for held in stage.parameters}
        for ranks in (shards.weights, shards.gradients, shards.optimizer)
    )
    trained = [held for held in stage.parameters if held.trainable]
    if flattens_frozen:
        # a unit is flattened into one parameter, whose gradient covers what is frozen in it too
        blocks = sum(h.elements for h in stage.parameters if h.group.layered) * stage.trained_blocks
        around = sum(h.elements for h in stage.parameters if h.trainable and not h.group.layered)
        unsharded = round((blocks + around) * widths.compute)
    else:
        unsharded = sum(h.elements * widths.reduce for h in trained)
    master = round(sum(rules.master(h) * of_optimizer[id(h)] for h in trained))
    on_gpu = 0 if rules.optimizer.elsewhere else 1
    low, expected, high = (
        master + on_gpu * round(sum(rules.states(h, bound) * of_optimizer[id(h)] for h in trained)) for bound in _BOUNDS
    )
    return ModelStates(
        loaded=round(sum(_stored_bytes(h, widths) for h in stage.parameters)),
        weights=round(sum(_stored_bytes(h, widths) * of_weights[id(h)] for h in stage.parameters)),
        scales=round(sum(_scale_bytes(h) for h in stage.parameters)),
        gradients=round(sum(h.elements * of_gradients[id(h)] * _gradient_width(h, widths) for h in trained)),
        unsharded_gradients=unsharded,
        optimizer=expected,
        optimizer_low=low,
        optimizer_high=high,
        saved=round(sum(rules.saved(h, stage) for h in trained)),
        step=round(
            sum(h.elements * of_optimizer[id(h)] * (widths.adapter if h.adapter else widths.state) for h in trained)
        ),
    )


def _stored_bytes(held: LocalParameters, widths: Widths) -> float:
    if held.quantized_bytes is not None:
        return held.quantized_bytes
    return held.elements * weight_width(held, widths)


def _scale_bytes(held: LocalParameters) -> float:
    """Return the bytes of a quantized weight beyond its packed elements, of which one byte has one or two."""
    stored = held.quantized_bytes or 0
    return stored - held.elements * (1 if stored >= held.elements else 0.5) if stored else 0.0


def _gradient_width(held: LocalParameters, widths: Widths) -> int:
    return widths.adapter if held.adapter else widths.gradient


def largest_gradient(stage: Stage, widths: Widths) -> int:
    """Return the bytes of the largest gradient."""
    trained = (held for held in stage.parameters if held.trainable)
    return max((held.largest_tensor * _gradient_width(held, widths) for held in trained), default=0)


def _flat_gradients(stage: Stage, widths: Widths) -> float:
    """Return the bytes of FSDP1's flat gradients, which cover what is frozen in a unit with something that trains."""
    blocks = sum(held.elements for held in stage.parameters if held.group.layered) * stage.trained_blocks
    around = [held for held in stage.parameters if not held.group.layered]
    root = sum(held.elements for held in around) if any(held.trainable for held in around) else 0
    return (blocks + root) * widths.gradient


def _passing_gradients(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes of gradients that exist where each is applied in the backward pass, while the next is computed.

    Under FSDP2 a unit's gradients are reduced together, and its shards are stepped one by one when all of them exist,
    before another unit is reduced (``_post_accumulate_grad_hooks`` in ``foreach_reduce``, torch 2.13
    ``distributed/fsdp/_fully_shard``).
    """
    if not steps_shards(job):
        return 2 * largest_gradient(stage, job.widths)
    trained = [held for held in stage.parameters if held.trainable]
    around = sum(held.elements * _gradient_width(held, job.widths) for held in trained if not held.group.layered)
    block = sum(
        share * held.elements * _gradient_width(held, job.widths)
        for held, share in largest_block(stage)
        if held.trainable
    )
    return round(max(around, block) / job.shards.gradients)


def steps_shards(job: ResolvedJob) -> bool:
    """Return True if an optimizer that steps in the backward pass is given the rank's shards."""
    return job.strategy.fsdp2 and job.shards.gradients > 1


def _step_bytes(job: ResolvedJob, stage: Stage, stepped_bytes: int) -> int:
    """Return the temporary memory of the optimizer step.

    torch's foreach AdamW copies all that it steps; fused and bitsandbytes' kernels copy nothing.
    """
    optimizer, shards, in_backward = job.optimizer, job.shards.optimizer, job.steps_in_backward
    if job.deepspeed:
        return zero_step_bytes(job, stage)
    copies = 0.0 if optimizer.fused else optimizer.copies
    if copies is not None and not in_backward:
        return round(copies * stepped_bytes / shards)
    largest = max((held.largest_tensor for held in stage.parameters if held.trainable), default=0)
    tensors = optimizer.step_tensors + (optimizer.step_casts if job.widths.weight != 4 else 0)
    width = 4 * tensors + job.widths.state * (optimizer.step_parameters if copies is None else copies)
    if in_backward:
        whole = optimizer.steps_whole_matrices or not steps_shards(job)
        return int(largest * max(4, width) // (1 if whole else shards))
    return int(largest * width // (1 if optimizer.steps_whole_matrices else shards))
