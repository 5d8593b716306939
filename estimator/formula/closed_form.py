"""The closed form: a Budget from a job, a shape and a parameter inventory, by arithmetic alone.

A training step is looked at in its fullest moments (``moments``), each a set of components; a phase is its fullest
moment, the peak the fullest phase.
"""

from functools import lru_cache
from math import hypot

from ..budget.budget import Budget, Method, ModelFacts, Peak, Phase, RankPeak
from ..common.sizes import MIB
from ..job.dtype_widths import Widths, read_widths
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.optimizers import OPTIMIZERS
from ..model.architecture import Architecture
from ..model.count_parameters import UNKNOWN_FAMILY_ERROR
from ..model.lora import adapter_elements, adapter_groups
from ..model.parameters import Inventory
from ..model.rank_share import Stage, stages
from .activations.kv_cache import key_value_cache_bytes
from .activations.litgpt import head_passes
from .activations.logits_and_loss import loss_bytes
from .activations.saved_activations import saved_activations
from .assumptions import assumptions, warnings
from .cuda_overhead import communication, context_bytes, workspace_bytes
from .host_memory import host_need_of
from .model_states import shards, states
from .peak_moments import Rank as _Rank
from .peak_moments import fullest_of, phases_of
from .serving import serving_budget


def closed_form(
    job: Job,
    arch: Architecture,
    inventory: Inventory,
    *,
    method: Method = "formula",
    gpu: Gpu | None = None,
    words: bool = True,
) -> Budget:
    """Predict the memory of a job's fullest rank.

    Args:
        job: what is trained.
        arch: the model's shape.
        inventory: its parameters, counted either way.
        method: how they were counted: ``formula`` from the shape, ``exact`` on the built model.
        gpu: the card, for what CUDA itself takes; a Hopper card when left out.
        words: with assumptions and warnings, which a search has no use for.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    if job.served_by_vllm:
        return serving_budget(job, arch, inventory, method=method, gpu=gpu)
    widths = read_widths(job)
    parts = stages(job, inventory)
    ranks = [_rank(job, arch, stage, widths, gpu, tied=inventory.tied_head) for stage in parts]
    by_stage = [phases_of(rank) for rank in ranks]
    peaks = [_peak(rank, fullest_of(phases), inventory) for rank, phases in zip(ranks, by_stage, strict=True)]
    fullest = max(range(len(peaks)), key=lambda at: peaks[at].components.total_bytes)
    peak, phases = peaks[fullest], by_stage[fullest]
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=inventory.parameters,
            trainable_parameters=_trainable_parameters(job, inventory),
            count=inventory.count,
        ),
        method=method,
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        assumptions=assumptions(job, arch, gpu) if words else (),
        warnings=warnings(job, arch, inventory) if words else (),
        stages=tuple(_need(each) for each in peaks) if len(peaks) > 1 else (),
        host=host_need_of(job, arch, inventory, parts, widths),
        matrix_parameters=_matrix_parameters(job, inventory),
    )


def _need(peak: Peak) -> RankPeak:
    return RankPeak(device_bytes=peak.device_bytes, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes)


def _rank(job: Job, arch: Architecture, stage: Stage, widths: Widths, gpu: Gpu | None, *, tied: bool) -> _Rank:
    return _Rank(
        job=job,
        stage=stage,
        widths=widths,
        states=states(job, stage, widths),
        saved=saved_activations(job, arch, stage, widths),
        loss=loss_bytes(job, arch, stage, widths),
        communication=communication(job, stage, widths, tied=tied),
        cache=key_value_cache_bytes(job, arch, stage, widths),
        context=context_bytes(job, gpu),
        bare_context=context_bytes(job, gpu, training=False),
        workspace=workspace_bytes(
            gpu,
            setting=job.software.cublas_workspace,
            megatron=job.training.framework == "megatron",
            grouped=any(held.group.role == "expert" for held in stage.parameters),
        ),
        tied=tied,
        casts=_casts(job, stage, widths, layered=True, tied=tied),
        head_casts=_casts(job, stage, widths, layered=False, tied=tied),
    )


def _casts(job: Job, stage: Stage, widths: Widths, *, layered: bool, tied: bool) -> int:
    if not widths.autocast:
        return 0
    fused = job.training.framework != "transformers"  # its autocast casts experts that lie in one tensor
    passes = 1 if layered else head_passes(job)  # a frozen weight's cast is made anew for every use
    return _cast_elements(stage, layered, fused, tied) * passes * widths.compute


@lru_cache(maxsize=256)
def _cast_elements(stage: Stage, layered: bool, fused: bool, tied: bool) -> int:
    head = stage.token_embedding if tied and stage.last else None
    return sum(
        held.elements
        for held in stage.parameters
        if held.group.layered == layered
        and not held.quantized
        and (held.group.linear or (fused and held.group.role == "expert") or held is head)
    )


def _peak(rank: _Rank, phase: Phase, inventory: Inventory) -> Peak:
    allocated = phase.allocated_bytes
    slack = _slack(rank, phase)
    reserved = _whole_segments(allocated + slack)
    device = reserved + phase.outside_bytes
    below, above = _uncertainty(rank, phase, inventory, slack / max(1, allocated))
    return Peak(
        phase=phase.name,
        components=phase.components,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=max(0, device - below),
        high_bytes=device + above,
    )


def _slack(rank: _Rank, phase: Phase) -> int:
    """Bytes that the allocator holds beyond what is allocated: fragmentation, and what other streams' pools keep.

    FSDP2 gathers and reduces on streams of their own, whose pools keep their blocks (torch.distributed.fsdp,
    ``_fsdp_param_group.py``): the sharded gradients, which come from the reducing stream, and the gathering stream's
    flat buffers. At the loss also what the blocks' forward passes left free, which is too small for logits, and so
    is the block of low-precision logits for the fp32 ones. FSDP1 reserves 3.5 to 7 % more than FSDP2 on the same job
    (PyTorch's FSDP2 notes): a unit that is freed serves again only when the GPU is done with it (``record_stream``).
    In the Trainer's loop, optimizer states and their temporaries split the blocks that activations left in the first
    step: the allocator's model, replayed on traces of twenty families, leaves 2 to 30 % behind, about 10 in the middle.
    """
    job, allocated = rank.job, phase.allocated_bytes
    trainer = job.training.framework == "transformers" and job.training.mode == "train"
    split = (0.06 if job.lora else 0.1) if trainer else 0.0
    if job.parallel.strategy == "fsdp2" and shards(job).weights > 1:
        return _pools(rank, phase) + round(split * allocated)
    waiting = rank.communication.pool if job.parallel.strategy == "fsdp1" else 0
    share = {"fsdp1": 0.12, "zero3": 0.07, "megatron-fsdp": 0.07}.get(job.parallel.strategy) or split or 0.03
    return waiting + round(allocated * share)


def _pools(rank: _Rank, phase: Phase) -> int:
    """What lies in FSDP2's pools and in blocks that do not fit, and is not allocated at the phase's peak."""
    gradients = max(0, rank.states.gradients - phase.components.gradients)
    at_the_loss = phase.components.logits > 0
    passing = rank.saved.forward_temporary_bytes if at_the_loss else 0
    # what is reduced at once is larger than a block of the loss
    apart = (
        rank.loss.backward_bytes if not at_the_loss and 3 * rank.communication.block > rank.loss.backward_bytes else 0
    )
    return gradients + rank.communication.pool + rank.loss.low_precision_bytes + passing + apart


def _whole_segments(size: int) -> int:
    """The allocator takes whole segments of 2 MiB from CUDA."""
    return -(-size // (2 * MIB)) * 2 * MIB


def _uncertainty(rank: _Rank, phase: Phase, inventory: Inventory, slack: float) -> tuple[int, int]:
    """How far below and above the expected figure the truth may lie, taken together as independent."""
    parts = phase.components
    approximate = inventory.count == "approximate"
    # the true count lies below an approximate one by what UNKNOWN_FAMILY_ERROR says that this is too high
    too_many = 1 - 1 / (1 + UNKNOWN_FAMILY_ERROR[1]) if approximate else 0.002
    too_few = 0.1 if approximate else 0.002
    states = parts.weights + parts.gradients + parts.optimizer
    compiled = 0.4 if rank.job.training.compile else 0.0
    # others' blocks are counted from their sources, and held against published figures alone, not against autograd;
    # half of this share leaves 4 of 104 published rows outside of the range, instead of 3
    foreign = 0.0 if rank.job.training.framework in ("transformers", "litgpt") else 0.15
    above = (
        too_few * states,
        max(0.08, foreign) * parts.activations,
        max(0.2, foreign) * parts.logits,
        0.15 * parts.temporary,
        0.5 * parts.communication,
        (slack + (0.08 if rank.job.training.framework == "transformers" else 0.02)) * phase.allocated_bytes,
        rank.loss.eager_extra_bytes,
        300 * MIB,
    )
    below = (
        too_many * states,
        max(0.1, compiled, foreign) * parts.activations,
        0.3 * parts.logits,
        0.5 * parts.temporary,
        0.5 * parts.communication,
        slack * phase.allocated_bytes,
        250 * MIB,
    )
    return round(hypot(*below)), round(hypot(*above))


def _matrix_parameters(job: Job, inventory: Inventory) -> int | None:
    """Trained elements in matrices of blocks, where the optimizer steps those apart."""
    if job.training.mode == "inference" or OPTIMIZERS[job.training.optimizer].states_off_matrices is None:
        return None
    groups = adapter_groups(inventory, job) if job.lora else inventory.groups
    return sum(group.elements for group in groups if group.is_block_matrix)


def _trainable_parameters(job: Job, inventory: Inventory) -> int:
    if job.training.mode == "inference":
        return 0
    return adapter_elements(inventory, job) if job.lora else inventory.parameters
