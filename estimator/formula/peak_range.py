"""From the allocated bytes of the peak to what NVML shows: the allocator's slack, and the range of uncertainty."""

from collections.abc import Iterator

from ..budget import Peak, Phase, Span
from ..common.records import replace
from ..common.reserved_memory import ReservedMemory
from ..common.sizes import MIB
from ..model.count_parameters import UNKNOWN_FAMILY_ERROR
from ..model.families.registry import FAMILIES
from ..model.inventory import Inventory
from .calibration import APPROXIMATE_COUNT_SHARE, FORMULA
from .doubts import doubts_of, kept_cache_bytes, longest_first_doubt
from .peak_moments import highest_phase, phase_peaks
from .process_memory import VLLM_GRAPHS_BYTES
from .ranges import DoubtfulBytes, allocated_span, figure_ranges
from .rank_memory import RankMemory
from .reserved.replayed import REPLAYED_BYTES, replayed_slack

_SEGMENT_BYTES = 2 * MIB
"""The allocator takes whole segments from CUDA."""
_GUESSED_SLACK = 0.05
"""Share of the allocated bytes that is guessed where no replay is made: such figures are compared with their like."""
_TOO_MANY = 1 - 1 / (1 + UNKNOWN_FAMILY_ERROR[1])
"""Share by which the true count lies below an approximate one, which may be too high by ``UNKNOWN_FAMILY_ERROR``."""


def peak_with_range(
    rank: RankMemory,
    phase: Phase,
    inventory: Inventory,
    *,
    phases: tuple[Phase, ...] = (),
    reserved: ReservedMemory = "replayed",
    conf: str | None = None,
) -> Peak:
    """Return a rank's peak in its highest phase, as NVML counts it, with its lower and upper bound.

    Args:
        rank: the rank.
        phase: its highest phase.
        inventory: the model's parameters.
        phases: all of its phases.
        reserved: how the reserved memory is found.
        conf: the allocator's settings; None: those that the job's framework makes.

    vLLM allocates its share at once and keeps it, which adds neither slack nor doubt but for its CUDA graphs. The cache
    of transformers' generation grows by a token at a time: blocks that it has outgrown stay with the allocator.
    """
    whole, components = phase, rank.with_vllm(phase.components, phase.name, sign=-1)
    beside = whole.components.total_bytes - components.total_bytes
    if beside:
        phase = replace(phase, components=components)
    allocated = phase.allocated_bytes
    slack = _slack_bytes(rank, phase, reserved=reserved, conf=conf)
    segments = -(-(allocated + slack) // _SEGMENT_BYTES) * _SEGMENT_BYTES
    outside = max(phase.outside_bytes, rank.outside)  # what was loaded stays reserved
    device = segments + outside
    states, counted = rank.states, phase.components.optimizer
    fewer, more = (
        (states.optimizer - states.optimizer_low, states.optimizer_high - states.optimizer) if counted else (0, 0)
    )
    kept_less = kept_more = 0
    if reserved != "least":
        kept_less = max(0, slack - _slack_with(rank, phase, -fewer, reserved=reserved, conf=conf)) if fewer else 0
        kept_more = max(0, _slack_with(rank, phase, more, reserved=reserved, conf=conf) - slack) if more else 0
        kept_more += _largest_piece(rank)
    if phase.name == "loading" and reserved != "least":
        kept_less = slack
    fewer, more = fewer + rank.preparation_doubt[0], more + rank.preparation_doubt[1]
    more += kept_cache_bytes(rank.job, rank.arch) if phase.components.activations else 0
    fewer += longest_first_doubt(rank.job, phase.components)
    outgrown = rank.generation_cache if phase.name == "generation" else 0
    more += rank.saved.unfused_bytes if phase.components.activations else 0
    more += outgrown + (VLLM_GRAPHS_BYTES if beside else 0) + rank.loss.eager_extra_bytes
    approximate = inventory.count == "approximate"
    if approximate:  # encoders that are not counted, beyond what the error of an approximate count allows for
        beyond = rank.arch.uncounted_parameters / inventory.parameters - APPROXIMATE_COUNT_SHARE
        parts = [each.components for each in (phase, *phases)]
        more += round(max(0.0, beyond) * max(each.weights + each.gradients + each.optimizer for each in parts))
    ranges = figure_ranges(
        DoubtfulBytes.of(phase.components, allocated=allocated, reserved=segments, outside=outside),
        doubts_of(rank.job, known_family=inventory.family in FAMILIES, recurrent=rank.arch.recurrent),
        FORMULA,
        allocated=allocated + beside,
        reserved=segments + beside,
        device=device + beside,
        exact=not approximate,
        too_many=_TOO_MANY,
        less=fewer,
        more=more,
        kept_less=kept_less,
        kept_more=kept_more,
        others=_spans_of_others(rank, whole, phases, inventory),
    )
    return Peak(
        phase=phase.name,
        components=whole.components,
        allocated_bytes=allocated + beside,
        reserved_bytes=segments + beside,
        device_bytes=device + beside,
        low_bytes=ranges.device.low_bytes,
        high_bytes=ranges.device.high_bytes,
        allocated_range=ranges.allocated,
        reserved_range=ranges.reserved,
    )


def _spans_of_others(
    rank: RankMemory, highest: Phase, phases: tuple[Phase, ...], inventory: Inventory
) -> Iterator[Span]:
    """Yield the ranges of what is allocated in the other phases: with larger errors, one of them may be the highest."""
    doubts = doubts_of(rank.job, known_family=inventory.family in FAMILIES, recurrent=rank.arch.recurrent)
    for phase in phases:
        if phase is highest:
            continue
        parts, allocated = rank.with_vllm(phase.components, phase.name, sign=-1), phase.allocated_bytes
        found = DoubtfulBytes.of(parts, allocated=allocated, reserved=allocated, outside=phase.outside_bytes)
        yield allocated_span(
            found,
            doubts,
            FORMULA,
            allocated=allocated,
            exact=inventory.count != "approximate",
            too_many=_TOO_MANY,
        )


def _slack_bytes(rank: RankMemory, phase: Phase, *, reserved: ReservedMemory, conf: str | None) -> int:
    """Return the bytes that the allocator holds beyond what is allocated: fragmentation, and other streams' pools.

    Whole weights that were sharded leave blocks of their sizes, into which few of a step's tensors fit.
    """
    if phase.name == "loading" and reserved != "least":
        return highest_phase(phase_peaks(rank)[1:]).allocated_bytes - rank.states.weights
    if reserved == "guessed" or phase.allocated_bytes > REPLAYED_BYTES:
        return round(_GUESSED_SLACK * phase.allocated_bytes)
    # no allocator reserves less than it has allocated
    return 0 if reserved == "least" else max(0, replayed_slack(rank, conf))


def _largest_piece(rank: RankMemory) -> int:
    """Return the bytes of the largest tensor of what is not replayed in its exact order; 0 if there is none.

    That is the input of a reduction of units by size, or of a whole model, and fp32 logits where they are capped, or
    where a model is not a decoder. Whether the second step finds the first one's block whole depends on a few small
    tensors.
    """
    job, arch = rank.job, rank.arch
    if not job.trains:
        return 0
    is_exact = arch.causal and not arch.logit_softcap
    one_unit = job.parallel.fsdp_units == "model" and job.strategy.fsdp2 and not is_exact
    reduced = rank.buffers.largest_reduction if one_unit or job.parallel.fsdp_min_unit_parameters else 0
    if is_exact or not (rank.stage.last and arch.has_vocab_head):
        return reduced
    return max(reduced, min(4 * job.scored_tokens * arch.vocab, rank.loss.forward_bytes))


def _slack_with(rank: RankMemory, phase: Phase, more: int, *, reserved: ReservedMemory, conf: str | None) -> int:
    """Return the slack if the optimizer's states were so many bytes larger: each leaves gaps of its own."""
    states = replace(rank.states, optimizer=rank.states.optimizer + more)
    components = replace(phase.components, optimizer=max(0, phase.components.optimizer + more))
    changed = replace(rank, states=states), replace(phase, components=components)
    return _slack_bytes(*changed, reserved=reserved, conf=conf)
