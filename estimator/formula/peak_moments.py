"""The moments of a training step at which a rank holds most, each as a set of components.

These are the end of the forward pass, the loss running backward, the blocks running backward, the end of the backward
pass, and the optimizer step - in the second step, when optimizer states exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from ..budget.budget import Components, Phase, PhaseName
from ..job.dtype_widths import Widths
from ..job.job import Job
from ..job.version_rules import zeroes_gradients
from ..model.rank_share import Stage
from .activations.logits_and_loss import LossBytes
from .activations.saved_activations import SavedActivations
from .cuda_overhead import Communication
from .model_states import States, accumulates_whole


@dataclass(frozen=True, eq=False, kw_only=True)  # not slotted: its figures are kept
class Rank:
    """All the figures of one rank, before they are put together into moments."""

    job: Job
    stage: Stage
    widths: Widths
    states: States
    saved: SavedActivations
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

    @cached_property
    def outside(self) -> int:
        """Never through torch's allocator."""
        return self.context + self.communication.outside

    @property
    def second_gradient(self) -> int:
        """Of an embedding that is the head too: that of the one beside that of the other, before they are added.

        The head's is the transpose of what its kernel gives, to which autograd adds nothing in place, so that the sum
        takes room too; autocast's cast of it to fp32 is a tensor of its own (seen with torch 2.13's profiler).
        """
        tokens = self.stage.token_embedding
        if tokens is None or not (self.tied and self.stage.last and tokens.trainable) or self.communication.unreduced:
            return 0
        return tokens.elements * self.widths.gradient * (1 if self.widths.mixed else 2)

    @property
    def whole_gradient(self) -> int:
        """What tensor parallelism leaves unsplit of an embedding's gradient until the step (DTensor's embedding)."""
        tokens, parallel = self.stage.token_embedding, self.job.parallel
        if tokens is None or self.tied or not tokens.trainable or parallel.strategy == "fsdp2":
            return 0
        if self.job.training.framework != "transformers" or tokens.elements == tokens.group.elements:
            return 0
        return tokens.elements * (parallel.tensor - 1) * self.widths.gradient

    @cached_property
    def accumulated(self) -> int:
        """Gradients that are kept from one micro-batch to the next."""
        if self.job.training.framework == "megatron":
            return self.states.gradients  # one buffer, made once and zeroed (DistributedDataParallel's grad buffer)
        if self.job.training.optimizer_in_backward:
            return 0
        if self.job.training.gradient_accumulation == 1:
            return self.states.gradients if zeroes_gradients(self.job) else 0
        return self.states.unsharded_gradients if accumulates_whole(self.job) else self.states.gradients

    @cached_property
    def gradient_shares(self) -> tuple[float, float]:
        """Of all gradients those around the blocks, the embedding's apart, and those of one block."""
        stage = self.stage
        trainable = max(1, stage.elements(trainable=True))
        embedding, blocks = (
            stage.elements(trainable=True, role="embedding"),
            stage.elements(trainable=True, layered=True),
        )
        around = trainable - embedding - blocks
        if self.tied and embedding and not self.communication.unreduced:
            around += embedding  # the head's gradient is the embedding's
        return around / trainable, blocks / max(1, stage.layers) / trainable


def phases_of(rank: Rank) -> tuple[Phase, ...]:
    """Loading, and the fullest moment of each phase of a step."""
    loading = Components(weights=rank.states.weights, context=rank.bare_context)
    moments: dict[PhaseName, Iterator[_Moment]] = {"forward": _forward(rank)}
    if rank.job.training.mode == "train":
        moments |= {"backward": _backward(rank), "optimizer step": _step(rank)}
    found = [Phase(name="loading", components=loading, outside_bytes=rank.bare_context)]
    for name, candidates in moments.items():
        fullest = max(candidates, key=itemgetter(0))
        found.append(Phase(name=name, components=_components(rank, fullest), outside_bytes=rank.outside))
    return tuple(found)


_Moment = tuple[int, int, int, int, int, int]
"""The sum of what follows, then gradients, activations, logits, temporary and communication: cheap to compare."""


def _moment(
    *, gradients: int = 0, activations: int = 0, logits: int = 0, temporary: int = 0, communication: int = 0
) -> _Moment:
    """These, beside what is there at every moment of a step."""
    total = gradients + activations + logits + temporary + communication
    return total, gradients, activations, logits, temporary, communication


def _components(rank: Rank, moment: _Moment) -> Components:
    """A moment with what is there at every moment of a step."""
    _, gradients, activations, logits, temporary, communication = moment
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


def _forward(rank: Rank) -> Iterator[_Moment]:
    saved, buffers = rank.saved, rank.communication
    if rank.job.training.mode == "inference":
        activations = rank.cache + saved.layer_bytes // 2
        most = max(buffers.forward, buffers.output)
        yield _moment(activations=activations, logits=rank.loss.forward_bytes, communication=most)
        return
    activations = (
        rank.stage.in_flight * (saved.all_layers_bytes + saved.outside_blocks_bytes) + saved.previous_graph_bytes
    )
    # autocast caches casts of what is trained only, and checkpointed blocks keep none of the others
    kept = 0 if rank.job.lora is not None and _checkpoints(rank.job) else rank.casts
    yield _moment(
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.retained_before_bytes,
        temporary=saved.forward_temporary_bytes + (kept or rank.casts // max(1, rank.stage.layers)),
        communication=buffers.forward,
    )
    yield _moment(
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.forward_bytes,
        temporary=kept + rank.head_casts,
        communication=buffers.output,
    )
    if rank.loss.upcast_bytes:  # the root's forward pass is over, and so is autocast
        yield _moment(
            gradients=rank.accumulated,
            activations=activations,
            logits=rank.loss.upcast_bytes,
            temporary=rank.head_casts + (0 if _checkpoints(rank.job) else rank.casts),
            communication=buffers.loss,
        )


def _checkpoints(job: Job) -> bool:
    return job.training.activation_checkpointing != "none"


def _backward(rank: Rank) -> Iterator[_Moment]:
    saved, layers, buffers, head = rank.saved, max(1, rank.stage.layers), rank.communication, rank.head_casts
    others = (rank.stage.in_flight - 1) * (saved.all_layers_bytes + saved.outside_blocks_bytes)
    activations = others + saved.all_layers_bytes + saved.outside_blocks_bytes
    # casts that the recomputation makes anew were dropped when autocast ended
    casts = rank.casts // layers if _checkpoints(rank.job) else rank.casts
    kept = head if _checkpoints(rank.job) else head + casts
    yield _moment(
        gradients=rank.accumulated,
        activations=activations,
        logits=rank.loss.backward_bytes,
        temporary=kept,
        communication=buffers.loss,
    )
    turned = max(rank.accumulated, _gradients_after(rank, 0))
    yield _moment(  # the head; under autocast its gradient has the compute type first
        gradients=rank.accumulated if rank.widths.autocast else turned,
        activations=activations,
        logits=rank.loss.gradient_bytes,
        temporary=kept + (head if rank.job.lora is None else 0),
        communication=buffers.head,
    )
    yield _moment(  # the last norm
        gradients=turned,
        activations=activations,
        logits=rank.loss.retained_bytes,
        temporary=kept + saved.norm_backward_bytes,
        communication=buffers.turn,
    )
    ends = {0, layers - 1}  # blocks that have run backward; between them all goes in straight lines
    if buffers.queue or buffers.first != buffers.backward:
        ends.add(min(max(1, buffers.queue), layers - 1))
    for done in sorted(ends):
        yield from _block_backward(rank, done, casts, others)
    yield _moment(  # the embedding; where it is the head too, its gradient comes twice and is added
        gradients=max(rank.accumulated, rank.states.gradients),
        activations=others + saved.boundary_bytes,
        logits=rank.loss.retained_bytes,
        temporary=rank.second_gradient,
        communication=buffers.embedding,
    )


def _block_backward(rank: Rank, done: int, casts: int, others: int) -> Iterator[_Moment]:
    """One block: its MLP, its attention, and when it is through."""
    saved, layers, buffers, mlp = rank.saved, max(1, rank.stage.layers), rank.communication, rank.stage.mlp_share
    gradients = max(rank.accumulated, _gradients_after(rank, done))
    activations = others + saved.all_layers_bytes * (layers - done) // layers + saved.recomputed_bytes
    temporary = casts * (layers - done) // layers
    waiting = min(done, buffers.queue) * buffers.queued
    communication = waiting + (buffers.backward if done else buffers.first) - buffers.kept * done // layers
    yield _moment(
        gradients=gradients,
        activations=activations,
        logits=rank.loss.retained_bytes,
        temporary=temporary + saved.mlp_backward_bytes,
        communication=communication,
    )
    yield _moment(
        gradients=gradients if buffers.unreduced else max(rank.accumulated, _gradients_after(rank, done + mlp)),
        activations=max(0, activations - saved.mlp_half_bytes),
        temporary=temporary + saved.attention_backward_bytes,
        communication=communication + round(mlp * buffers.unreduced),
    )
    yield _moment(
        gradients=max(rank.accumulated, _gradients_after(rank, done + 1)),
        activations=others + saved.all_layers_bytes * (layers - done - 1) // layers + saved.boundary_bytes,
        communication=waiting + buffers.reduced - buffers.kept * (done + 1) // layers,
    )


def _gradients_after(rank: Rank, blocks: float) -> int:
    """Gradients that exist when so many blocks have run backward: the head's and theirs, not yet the embedding's."""
    if rank.job.training.optimizer_in_backward:
        return rank.states.gradients
    around, block = rank.gradient_shares
    return round(rank.states.gradients * (around + block * blocks))


def _step(rank: Rank) -> Iterator[_Moment]:
    whole = rank.whole_gradient
    yield _moment(
        gradients=rank.states.gradients + whole,
        logits=rank.loss.retained_bytes,
        temporary=rank.states.step + whole // max(1, rank.job.parallel.tensor - 1),
        communication=rank.communication.step,
    )


def fullest_of(phases: tuple[Phase, ...]) -> Phase:
    """The one with the most bytes."""
    return max(phases, key=lambda phase: phase.components.total_bytes)
