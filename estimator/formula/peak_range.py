"""From the allocated bytes of the peak to what NVML shows: the allocator's slack, and the range of uncertainty."""

from dataclasses import replace
from math import hypot

from ..budget import Peak, Phase
from ..common import MIB
from ..model import UNKNOWN_FAMILY_ERROR, Inventory
from .cuda_overhead import VLLM_GRAPHS_BYTES
from .rank_memory import RankMemory

_SEGMENT_BYTES = 2 * MIB
"""The allocator takes whole segments from CUDA."""
_COUNT_ERROR = 0.002
"""Relative error of model states whose parameters were counted exactly."""
_APPROXIMATE_COUNT_ERROR = 0.1
"""Relative error upwards of an approximate count; downwards it is ``UNKNOWN_FAMILY_ERROR``."""
_COMPILED_SAVING = 0.4
"""Share of the activations that torch.compile may save."""
_DEFAULT_SLACK = 0.03


def peak_with_range(rank: RankMemory, phase: Phase, inventory: Inventory) -> Peak:
    """Return a rank's peak in its highest phase, as NVML counts it, with its lower and upper bound.

    vLLM allocates its share at once and keeps it, which adds neither slack nor doubt but for its CUDA graphs. The cache
    of transformers' generation grows by a token at a time: blocks that it has outgrown stay with the allocator.
    """
    whole, components = phase, rank.with_vllm(phase.components, phase.name, sign=-1)
    beside = whole.components.total_bytes - components.total_bytes
    phase = replace(phase, components=components)
    allocated = phase.allocated_bytes
    slack = _slack_bytes(rank, phase)
    reserved = -(-(allocated + slack) // _SEGMENT_BYTES) * _SEGMENT_BYTES
    device = reserved + phase.outside_bytes
    relative_slack = slack / max(1, allocated)
    states, counted = rank.states, phase.components.optimizer
    fewer, more = (
        (states.optimizer - states.optimizer_low, states.optimizer_high - states.optimizer) if counted else (0, 0)
    )
    fewer, more = fewer + rank.preparation_doubt[0], more + rank.preparation_doubt[1]
    outgrown = rank.generation_cache if phase.name == "generation" else 0
    more += outgrown + (VLLM_GRAPHS_BYTES if beside else 0)
    return Peak(
        phase=phase.name,
        components=whole.components,
        allocated_bytes=allocated + beside,
        reserved_bytes=reserved + beside,
        device_bytes=device + beside,
        low_bytes=max(0, device + beside - _margin_below(rank, phase, inventory, relative_slack) - fewer),
        high_bytes=device + beside + _margin_above(rank, phase, inventory, relative_slack) + more,
    )


def _slack_bytes(rank: RankMemory, phase: Phase) -> int:
    """Return the bytes that the allocator holds beyond what is allocated: fragmentation, and other streams' pools.

    FSDP2 gathers and reduces on streams of their own, whose pools keep their blocks (torch.distributed.fsdp,
    ``_fsdp_param_group.py``). FSDP1 reserves 3.5 to 7 % more than FSDP2 on the same job (PyTorch's FSDP2 notes): a unit
    that is freed serves again only when the GPU is done with it (``record_stream``). In the Trainer's loop, optimizer
    states and their temporaries split the blocks that activations left in the first step: the allocator's model,
    replayed on traces of twenty families, leaves 2 to 30 % behind, about 10 at the median.
    """
    job, allocated = rank.job, phase.allocated_bytes
    loop = (job.framework.lora_slack if job.lora else job.framework.slack) if job.trains else 0.0
    if job.strategy.fsdp2 and job.shards.weights > 1:
        return _pool_bytes(rank, phase) + round(loop * allocated)
    pool = rank.buffers.pool if job.strategy.flat_parameters else 0
    return pool + round(allocated * (job.strategy.slack or loop or _DEFAULT_SLACK))


def _pool_bytes(rank: RankMemory, phase: Phase) -> int:
    """Return what FSDP2's pools, and blocks that nothing fits into, hold at the phase's peak without being allocated.

    These are the sharded gradients, which come from the reducing stream, and the gathering stream's flat buffers. At
    the loss also what the blocks' forward passes left free, which is too small for logits; so is the block of
    low-precision logits for the fp32 ones.
    """
    gradients = max(0, rank.states.gradients - phase.components.gradients)
    held = gradients + rank.buffers.pool + rank.loss.low_precision_bytes
    if phase.components.logits > 0:
        return held + rank.saved.forward_temporary_bytes
    # what is reduced at once is larger than a block of the loss
    return held + (rank.loss.backward_bytes if 3 * rank.buffers.largest_reduction > rank.loss.backward_bytes else 0)


def _margin_below(rank: RankMemory, phase: Phase, inventory: Inventory, slack: float) -> int:
    """Return how far below the expected figure the truth may lie: independent errors, added as squares."""
    parts, framework = phase.components, rank.job.framework
    # the true count lies below an approximate one by as much as UNKNOWN_FAMILY_ERROR states that this is too high
    too_many = 1 - 1 / (1 + UNKNOWN_FAMILY_ERROR[1]) if inventory.count == "approximate" else _COUNT_ERROR
    compiled = _COMPILED_SAVING if rank.job.training.compile else 0.0
    errors = (
        too_many * (parts.weights + parts.gradients + parts.optimizer),
        max(0.1, compiled, framework.activation_uncertainty) * parts.activations,
        0.3 * parts.logits,
        0.5 * parts.temporary,
        0.5 * parts.communication,
        slack * phase.allocated_bytes,
        250 * MIB,
    )
    return round(hypot(*errors))


def _margin_above(rank: RankMemory, phase: Phase, inventory: Inventory, slack: float) -> int:
    """Return how far above the expected figure the truth may lie: independent errors, added as squares.

    Blocks of frameworks other than transformers and LitGPT are counted from their sources, and compared with published
    figures only, not with autograd: half of their ``activation_uncertainty`` leaves 4 of 104 published rows outside of
    the range, instead of 3.
    """
    parts, framework = phase.components, rank.job.framework
    too_few = _APPROXIMATE_COUNT_ERROR if inventory.count == "approximate" else _COUNT_ERROR
    errors = (
        too_few * (parts.weights + parts.gradients + parts.optimizer),
        max(0.08, framework.activation_uncertainty) * parts.activations,
        max(0.2, framework.activation_uncertainty) * parts.logits,
        0.15 * parts.temporary,
        0.5 * parts.communication,
        (slack + framework.allocator_uncertainty) * phase.allocated_bytes,
        rank.loss.eager_extra_bytes,
        300 * MIB,
    )
    return round(hypot(*errors))
