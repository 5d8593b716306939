"""Adds the phase in which a checkpoint is saved to a traced budget: the traced step takes no checkpoint."""

from dataclasses import replace

from ...budget import Budget, Peak, Phase
from ...model import Architecture, Inventory
from ..peak_moments import phase_peaks
from ..plan import make_plan
from ..rank_memory import rank_memory


def with_saving_phase(budget: Budget, arch: Architecture, inventory: Inventory) -> Budget:
    """Return a traced budget with the phase "saving", and a higher peak where saving needs more than the step.

    Weights and optimizer states are the traced ones; what is gathered is computed.

    Args:
        budget: of a traced step, without the phase.
        arch: the model's shape.
        inventory: its parameters.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    step = budget.phase("optimizer step")
    if budget.job.saving is None or step is None or budget.phase("saving") is not None:
        return budget
    plan = make_plan(budget.job, arch, inventory)
    rank = rank_memory(plan, plan.stages[0])
    computed = next(phase for phase in phase_peaks(rank) if phase.name == "saving").components
    held = step.components
    more = computed.communication - rank.nccl  # beyond NCCL's own buffers, which the traced step has too
    components = replace(
        held,
        gradients=computed.gradients,
        activations=0,
        logits=computed.logits,
        temporary=min(held.temporary, computed.temporary),
        communication=step.outside_bytes - held.context + more,
    )
    phase = Phase(name="saving", components=components, outside_bytes=step.outside_bytes)
    return replace(budget, phases=(*budget.phases, phase), peak=_peak(budget.peak, phase))


def _peak(peak: Peak, phase: Phase) -> Peak:
    """Return the peak, or that of the phase with the allocator's slack of the peak, if it is higher."""
    more = phase.allocated_bytes - peak.allocated_bytes
    if more <= 0:
        return peak
    moved = peak.with_ranges(lambda span: span.moved(more))
    return replace(
        moved,
        phase=phase.name,
        components=phase.components,
        allocated_bytes=phase.allocated_bytes,
        reserved_bytes=peak.reserved_bytes + more,
        device_bytes=peak.device_bytes + more,
    )
