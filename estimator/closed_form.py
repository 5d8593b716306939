"""The closed form: a Budget from a job, a shape and a parameter inventory, by arithmetic alone.

A training step is looked at in its fullest moments: the end of the forward pass, the loss running backward, the
blocks running backward, the end of the backward pass, and the optimizer step - in the second step, when optimizer
states exist. Each moment is a set of components; a phase is its fullest moment, the peak the fullest phase.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot

from .activations import Saved, key_value_cache_bytes, saved_activations
from .adapters import adapters_of
from .architecture import Architecture
from .assumptions import assumptions, warnings
from .budget import Budget, Components, Method, ModelFacts, Peak, Phase, PhaseName
from .gpus import Gpu
from .inventory import Inventory
from .job import Job
from .litgpt import head_passes
from .loss import LossBytes, loss_bytes
from .rank import Stage, stages
from .shape_inventory import UNKNOWN_FAMILY_ERROR
from .sizes import MIB
from .software import zeroes_gradients
from .states import States, accumulates_whole, shards, states
from .surroundings import Communication, communication, context_bytes, workspace_bytes
from .widths import Widths, read_widths


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """All the figures of one rank, before they are put together into moments."""

    job: Job
    stage: Stage
    widths: Widths
    states: States
    saved: Saved
    loss: LossBytes
    communication: Communication
    cache: int
    """Key-value cache of inference."""
    context: int
    bare_context: int
    """The same before a step has loaded its kernels."""
    workspace: int
    tied: bool
    """Head and embedding are one parameter."""
    casts: int
    """Autocast's copies of the weights of the blocks' linear layers, all of them."""
    head_casts: int
    """The same of those around the blocks."""

    @property
    def outside(self) -> int:
        """Never through torch's allocator."""
        return self.context + self.communication.outside

    @property
    def second_gradient(self) -> int:
        """Of an embedding that is the head too: that of the one beside that of the other, before they are added."""
        tokens = self.stage.tokens
        if tokens is None or not (self.tied and self.stage.last and tokens.trainable) or self.communication.unreduced:
            return 0
        return tokens.elements * self.widths.gradient

    @property
    def whole_gradient(self) -> int:
        """What tensor parallelism leaves unsplit of an embedding's gradient until the step (DTensor's embedding)."""
        tokens, parallel = self.stage.tokens, self.job.parallel
        if tokens is None or self.tied or not tokens.trainable or parallel.strategy == "fsdp2":
            return 0
        if self.job.training.framework != "transformers" or tokens.elements == tokens.group.elements:
            return 0
        return tokens.elements * (parallel.tensor - 1) * self.widths.gradient

    @property
    def accumulated(self) -> int:
        """Gradients that are kept from one micro-batch to the next."""
        if self.job.training.framework == "megatron":
            return (
                self.states.gradients
            )  # one buffer that is made once and zeroed (DistributedDataParallel's grad buffer)
        if self.job.training.optimizer_in_backward:
            return 0
        if self.job.training.gradient_accumulation == 1:
            return self.states.gradients if zeroes_gradients(self.job) else 0
        return self.states.unsharded_gradients if accumulates_whole(self.job) else self.states.gradients


def closed_form(
    job: Job, arch: Architecture, inventory: Inventory, *, method: Method = "formula", gpu: Gpu | None = None
) -> Budget:
    """Predict the memory of a job's fullest rank.

    Args:
        job: what is trained.
        arch: the model's shape.
        inventory: its parameters, counted either way.
        method: how they were counted: ``formula`` from the shape, ``exact`` on the built model.
        gpu: the card, for what CUDA itself takes; a Hopper card when left out.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    widths = read_widths(job)
    ranks = [_rank(job, arch, stage, widths, gpu, tied=inventory.tied_head) for stage in stages(job, inventory)]
    rank, phases = max(((r, _phases(r)) for r in ranks), key=lambda pair: _fullest(pair[1]).components.total_bytes)
    peak = _peak(rank, _fullest(phases), inventory)
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
        assumptions=assumptions(job, arch, gpu),
        warnings=warnings(job, arch, inventory),
    )


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
            megatron=job.training.framework == "megatron",
            grouped=any(held.group.role == "expert" for held in stage.held),
        ),
        tied=tied,
        casts=_casts(job, stage, widths, layered=True, tied=tied),
        head_casts=_casts(job, stage, widths, layered=False, tied=tied),
    )


def _casts(job: Job, stage: Stage, widths: Widths, *, layered: bool, tied: bool) -> int:
    if not widths.autocast:
        return 0
    fused = job.training.framework != "transformers"  # its autocast casts experts that lie in one tensor
    head = stage.tokens if tied and stage.last else None
    passes = 1 if layered else head_passes(job)  # a frozen weight's cast is made anew for every use
    linear = (
        held.elements * passes
        for held in stage.held
        if held.group.layered == layered
        and not held.quantized
        and (held.group.linear or (fused and held.group.role == "expert") or held is head)
    )
    return sum(linear) * widths.compute


def _phases(rank: _Rank) -> tuple[Phase, ...]:
    loading = Components(weights=rank.states.weights, context=rank.bare_context)
    moments: dict[PhaseName, Iterator[Components]] = {"forward": _forward(rank)}
    if rank.job.training.mode == "train":
        moments |= {"backward": _backward(rank), "optimizer step": _step(rank)}
    phases = [Phase(name="loading", components=loading, outside_bytes=rank.bare_context)]
    for name, candidates in moments.items():
        fullest = max(candidates, key=lambda components: components.total_bytes)
        phases.append(Phase(name=name, components=fullest, outside_bytes=rank.outside))
    return tuple(phases)


def _moment(
    rank: _Rank,
    *,
    gradients: int = 0,
    activations: int = 0,
    logits: int = 0,
    temporary: int = 0,
    communication: int = 0,
) -> Components:
    """These, and what is there at every moment of a step."""
    return Components(
        weights=rank.states.weights,
        gradients=gradients,
        optimizer=rank.states.optimizer,
        activations=activations,
        logits=logits,
        temporary=rank.workspace + temporary,
        communication=rank.communication.outside + communication,
        context=rank.context,
    )


def _forward(rank: _Rank) -> Iterator[Components]:
    saved, buffers = rank.saved, rank.communication
    if rank.job.training.mode == "inference":
        activations = rank.cache + saved.layer_bytes // 2
        most = max(buffers.forward, buffers.output)
        yield _moment(rank, activations=activations, logits=rank.loss.forward, communication=most)
        return
    activations = rank.stage.in_flight * (saved.layers_bytes + saved.around_bytes) + saved.previous_bytes
    # autocast caches casts of what is trained only, and checkpointed blocks keep none of the others
    kept = 0 if rank.job.lora is not None and _checkpoints(rank.job) else rank.casts
    yield _moment(
        rank,
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.kept_before,
        temporary=saved.forward_bytes + (kept or rank.casts // max(1, rank.stage.layers)),
        communication=buffers.forward,
    )
    yield _moment(
        rank,
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.forward,
        temporary=kept + rank.head_casts,
        communication=buffers.output,
    )
    if rank.loss.widened:  # the root's forward pass is over, and so is autocast
        yield _moment(
            rank,
            gradients=rank.accumulated,
            activations=activations,
            logits=rank.loss.widened,
            temporary=rank.head_casts + (0 if _checkpoints(rank.job) else rank.casts),
            communication=buffers.loss,
        )


def _checkpoints(job: Job) -> bool:
    return job.training.activation_checkpointing != "none"


def _backward(rank: _Rank) -> Iterator[Components]:
    saved, layers, buffers, head = rank.saved, max(1, rank.stage.layers), rank.communication, rank.head_casts
    others = (rank.stage.in_flight - 1) * (saved.layers_bytes + saved.around_bytes)
    activations = others + saved.layers_bytes + saved.around_bytes
    # casts that the recomputation makes anew were dropped when autocast ended
    casts = rank.casts // layers if _checkpoints(rank.job) else rank.casts
    kept = head if _checkpoints(rank.job) else head + casts
    yield _moment(
        rank,
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.backward,
        temporary=kept,
        communication=buffers.loss,
    )
    turned = max(rank.accumulated, _gradients_after(rank, 0))
    yield _moment(  # the head; under autocast its gradient has the compute type first
        rank,
        gradients=rank.accumulated if rank.widths.autocast else turned,
        activations=activations,
        logits=rank.loss.gradient,
        temporary=kept + (head if rank.job.lora is None else 0),
        communication=buffers.head,
    )
    yield _moment(  # the last norm
        rank,
        gradients=turned,
        activations=activations,
        logits=rank.loss.kept,
        temporary=kept + saved.norm_working_bytes,
        communication=buffers.turn,
    )
    for done in sorted({0, min(max(1, buffers.queue), layers - 1), layers - 1}):  # blocks that have run backward
        yield from _block_backward(rank, done, casts, others)
    yield _moment(  # the embedding; where it is the head too, its gradient comes twice and is added
        rank,
        gradients=max(rank.accumulated, rank.states.gradients),
        activations=others + saved.boundary_bytes,
        logits=rank.loss.kept,
        temporary=rank.second_gradient,
        communication=buffers.embedding,
    )


def _block_backward(rank: _Rank, done: int, casts: int, others: int) -> Iterator[Components]:
    """One block: its MLP, its attention, and when it is through."""
    saved, layers, buffers, mlp = rank.saved, max(1, rank.stage.layers), rank.communication, rank.stage.share_of_mlp
    gradients = max(rank.accumulated, _gradients_after(rank, done))
    activations = others + saved.layers_bytes * (layers - done) // layers + saved.recomputed_bytes
    temporary = casts * (layers - done) // layers
    waiting = min(done, buffers.queue) * buffers.queued
    communication = waiting + (buffers.backward if done else buffers.first) - buffers.kept * done // layers
    yield _moment(
        rank,
        gradients=gradients,
        activations=activations,
        logits=rank.loss.kept,
        temporary=temporary + saved.working_bytes,
        communication=communication,
    )
    yield _moment(
        rank,
        gradients=gradients if buffers.unreduced else max(rank.accumulated, _gradients_after(rank, done + mlp)),
        activations=max(0, activations - saved.mlp_half_bytes),
        temporary=temporary + saved.attention_working_bytes,
        communication=communication + round(mlp * buffers.unreduced),
    )
    yield _moment(
        rank,
        gradients=max(rank.accumulated, _gradients_after(rank, done + 1)),
        activations=others + saved.layers_bytes * (layers - done - 1) // layers + saved.boundary_bytes,
        communication=waiting + buffers.reduced - buffers.kept * (done + 1) // layers,
    )


def _gradients_after(rank: _Rank, blocks: float) -> int:
    """Gradients that exist when so many blocks have run backward: the head's and theirs, not yet the embedding's."""
    if rank.job.training.optimizer_in_backward:
        return rank.states.gradients
    trainable = max(1, rank.stage.elements(trainable=True))
    embedding = rank.stage.elements(trainable=True, role="embedding")
    blocks_share = rank.stage.elements(trainable=True, layered=True) * blocks / max(1, rank.stage.layers)
    around = trainable - embedding - rank.stage.elements(trainable=True, layered=True)
    if rank.tied and embedding and not rank.communication.unreduced:
        around += embedding  # the head's gradient is the embedding's
    return round(rank.states.gradients * (around + blocks_share) / trainable)


def _step(rank: _Rank) -> Iterator[Components]:
    whole = rank.whole_gradient
    yield _moment(
        rank,
        gradients=rank.states.gradients + whole,
        logits=rank.loss.kept,
        temporary=rank.states.step + whole // max(1, rank.job.parallel.tensor - 1),
        communication=rank.communication.step,
    )


def _fullest(phases: tuple[Phase, ...]) -> Phase:
    return max(phases, key=lambda phase: phase.components.total_bytes)


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
    passing = rank.saved.forward_bytes if at_the_loss else 0
    # what is reduced at once is larger than a block of the loss
    apart = rank.loss.backward if not at_the_loss and 3 * rank.communication.block > rank.loss.backward else 0
    return gradients + rank.communication.pool + rank.loss.low + passing + apart


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
        rank.loss.eager,
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


def _trainable_parameters(job: Job, inventory: Inventory) -> int:
    if job.training.mode == "inference":
        return 0
    return sum(g.elements for g in adapters_of(inventory, job)) if job.lora else inventory.parameters
