"""The moments of a training step with the highest memory of a rank, each as a set of components.

These are the end of the forward pass, the loss running backward, the blocks running backward, the end of the backward
pass, and the optimizer step - in the second step, when optimizer states exist.
"""

from collections.abc import Iterator
from operator import itemgetter

from ..budget import Components, Phase, PhaseName
from .rank_memory import RankMemory
from .saving import gathered_bytes


def phase_peaks(rank: RankMemory) -> tuple[Phase, ...]:
    """Return loading, and the moment with the highest memory of each phase of a step."""
    loading = Components(weights=rank.states.weights, context=rank.bare_context)
    moments: dict[PhaseName, Iterator[_Moment]] = {"forward": _inference(rank)}
    if rank.job.trains:
        generation: dict[PhaseName, Iterator[_Moment]] = {"generation": _generation(rank)} if rank.job.rollout else {}
        saving: dict[PhaseName, Iterator[_Moment]] = {"saving": _saving(rank)} if rank.job.job.saving else {}
        moments = {
            **generation,
            "forward": _forward(rank),
            "backward": _backward(rank),
            "optimizer step": _step(rank),
            **saving,
        }
    found = [Phase(name="loading", components=loading, outside_bytes=rank.bare_context)]
    for name, candidates in moments.items():
        highest = max(candidates, key=itemgetter(0))
        components = rank.with_vllm(_components(rank, highest), name)
        found.append(Phase(name=name, components=components, outside_bytes=rank.outside))
    return tuple(found)


def highest_phase(phases: tuple[Phase, ...]) -> Phase:
    """Return the phase with the most bytes."""
    return max(phases, key=lambda phase: phase.components.total_bytes)


_SAMPLING_BYTES = 16
"""Per logit of the token that is sampled: fp32 logits, filtered ones, probabilities."""
_Moment = tuple[int, int, int, int, int, int]
"""The sum of what follows, then gradients, activations, logits, temporary and communication: cheap to compare."""


def _moment(
    *, gradients: int = 0, activations: int = 0, logits: int = 0, temporary: int = 0, communication: int = 0
) -> _Moment:
    """Return a moment, without the bytes that exist at every moment of a step."""
    total = gradients + activations + logits + temporary + communication
    return total, gradients, activations, logits, temporary, communication


def _components(rank: RankMemory, moment: _Moment) -> Components:
    """Return a moment with the bytes that exist at every moment of a step."""
    _, gradients, activations, logits, temporary, communication = moment
    return Components(
        weights=rank.states.weights,
        gradients=gradients,
        optimizer=rank.states.optimizer,
        activations=activations,
        logits=logits,
        temporary=rank.workspace + temporary,
        communication=rank.nccl + communication,
        context=rank.context,
    )


def _generation(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the prompts running at once, and the last token: transformers' cache copies a layer as it grows.

    Optimizer states exist, gradients do not: the step before has freed them.
    """
    job, layers = rank.job, max(1, rank.stage.layers)
    kept = rank.states.gradients if job.framework.gradient_buffer or job.versions.zeroes_gradients else 0
    gathered = rank.gathered_weights or max(rank.buffers.forward, rank.buffers.head_forward)
    prompts = job.generated_sequences * job.prompt_length
    casts = rank.casts + rank.head_casts
    yield _moment(
        gradients=kept,
        activations=rank.generation_cache * job.prompt_length // max(1, job.local_length),
        temporary=rank.saved.forward_temporary_bytes * prompts // max(1, job.local_tokens) + casts,
        communication=gathered,
    )
    yield _moment(
        gradients=kept,
        activations=rank.generation_cache,
        logits=_SAMPLING_BYTES * job.generated_sequences * rank.vocabulary,
        temporary=rank.generation_cache // layers + casts,
        communication=gathered,
    )


def _inference(rank: RankMemory) -> Iterator[_Moment]:
    yield _moment(
        activations=rank.kv_cache + rank.saved.layer_bytes // 2,
        logits=max(rank.loss.forward_bytes, rank.returned_logits),
        temporary=rank.stage.passing_bytes,
        communication=max(rank.buffers.forward, rank.buffers.head_forward),
    )


def _forward(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the last block, the loss, and the end of the forward pass."""
    saved, buffers, recomputes = rank.saved, rank.buffers, rank.job.recomputes
    graph = saved.all_layers_bytes + saved.outside_blocks_bytes
    activations = rank.stage.in_flight * graph + saved.previous_graph_bytes
    kept = rank.forward_casts
    if saved.no_graph_bytes:  # blocks before the first one that trains
        yield _moment(
            gradients=rank.accumulated_gradients,
            logits=rank.loss.retained_before_bytes,
            temporary=saved.no_graph_bytes + rank.casts // max(1, rank.stage.layers),
            communication=buffers.forward,
        )
    yield _moment(
        gradients=rank.accumulated_gradients,
        activations=activations,
        logits=rank.loss.retained_before_bytes,
        temporary=rank.batch_mask + saved.forward_temporary_bytes + (kept or rank.casts // max(1, rank.stage.layers)),
        communication=buffers.forward,
    )
    yield _moment(
        gradients=rank.accumulated_gradients,
        activations=activations,
        logits=max(rank.loss.forward_bytes, rank.returned_logits),
        temporary=rank.batch_mask + kept + rank.head_casts,
        communication=buffers.head_forward,
    )
    if rank.loss.upcast_bytes:  # the root's forward pass is over, and so is autocast
        yield _moment(
            gradients=rank.accumulated_gradients,
            activations=activations,
            logits=rank.loss.upcast_bytes,
            temporary=rank.head_casts + (0 if recomputes else kept),
            communication=buffers.loss_backward,
        )


def _backward(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the loss, the head, blocks at which memory may be highest, and the embedding, running backward."""
    saved, layers, buffers = rank.saved, rank.blocks_backward, rank.buffers
    others = (rank.stage.in_flight - 1) * (saved.all_layers_bytes + saved.outside_blocks_bytes)
    # casts of blocks that are recomputed were dropped when autocast ended
    casts = rank.casts // max(1, rank.stage.layers) if rank.job.recomputes else rank.forward_casts
    yield from _head_backward(rank, rank.head_casts + (0 if rank.job.recomputes else casts), others)
    # blocks that have run backward; between them memory changes linearly
    ends = {0, layers - 1} if saved.order is None else saved.order.ends
    if layers and (buffers.pending_blocks or buffers.first_block != buffers.block):
        ends.add(min(max(1, buffers.pending_blocks), layers - 1))
    for done in sorted(ends):
        yield from _block_backward(rank, done, casts, others)
    yield _moment(  # the embedding; where it is the head too, it has two gradients, which are added
        gradients=max(rank.accumulated_gradients, rank.states.gradients),
        activations=others + (saved.boundary_bytes if layers else 0) + (rank.saved_bytes(layers) if layers else 0),
        logits=rank.loss.retained_bytes,
        temporary=rank.second_gradient,
        communication=buffers.embedding,
    )


def _head_backward(rank: RankMemory, casts: int, others: int) -> Iterator[_Moment]:
    """Yield the loss, the head and the last norm running backward.

    Args:
        rank: the rank's figures.
        casts: autocast's copies of weights that are still cached.
        others: activations of the other micro-batches in flight.
    """
    saved, buffers, accumulated = rank.saved, rank.buffers, rank.accumulated_gradients
    activations = others + saved.all_layers_bytes + saved.outside_blocks_bytes
    yield _moment(
        gradients=accumulated,
        activations=activations,
        logits=rank.loss.backward_bytes,
        temporary=casts,
        communication=buffers.loss_backward,
    )
    gradients = max(accumulated, rank.gradients_after(0))
    yield _moment(  # the head; under autocast its gradient has the compute dtype first
        gradients=accumulated if rank.job.widths.autocast else gradients,
        activations=activations,
        logits=rank.loss.gradient_bytes,
        temporary=casts + (rank.head_casts if rank.stage.trains_head else 0),
        communication=buffers.head_backward,
    )
    if rank.job.steps_in_backward and rank.stage.trains_head:  # the head's update, while all activations exist
        yield _moment(
            gradients=gradients // 2,  # its own: the next one is not computed yet
            activations=activations,
            logits=rank.loss.retained_bytes,
            temporary=casts + rank.states.step,
            communication=buffers.after_head,
        )
    if not rank.blocks_backward and not rank.stage.trains_embeddings:
        return  # nothing before the head needs a gradient
    yield _moment(  # the last norm
        gradients=gradients,
        activations=activations,
        logits=rank.loss.retained_bytes,
        temporary=casts + saved.norm_backward_bytes,
        communication=buffers.after_head,
    )


def _block_backward(rank: RankMemory, done: int, casts: int, others: int) -> Iterator[_Moment]:
    """Yield three moments of one block: its MLP, its attention, and its end.

    Args:
        rank: the rank's figures.
        done: blocks that have run backward before it.
        casts: autocast's copies of the blocks' weights that were cached before any ran backward.
        others: activations of the other micro-batches in flight.
    """
    saved, layers, buffers, mlp = rank.saved, rank.blocks_backward, rank.buffers, rank.stage.mlp_share
    accumulated = rank.accumulated_gradients
    gradients = max(accumulated, rank.gradients_after(done))
    activations = others + rank.saved_bytes(done) + saved.recomputed_bytes
    temporary = casts * (layers - done) // layers
    pending = min(done, buffers.pending_blocks) * buffers.pending_bytes
    communication = pending + (buffers.block if done else buffers.first_block) - buffers.kept * done // layers
    yield _moment(
        gradients=gradients,
        activations=activations,
        logits=rank.loss.retained_bytes,
        temporary=temporary + saved.mlp_backward_bytes,
        communication=communication,
    )
    yield _moment(
        gradients=gradients if buffers.unreduced else max(accumulated, rank.gradients_after(done + mlp)),
        activations=max(0, activations - saved.mlp_half_bytes),
        logits=rank.loss.retained_bytes,
        temporary=temporary + saved.attention_backward_bytes,
        communication=communication + round(mlp * buffers.unreduced),
    )
    yield _moment(
        gradients=max(accumulated, rank.gradients_after(done + 1)),
        activations=others + rank.saved_bytes(done + 1) + saved.boundary_bytes,
        logits=rank.loss.retained_bytes,
        communication=pending + buffers.block_end - buffers.kept * (done + 1) // layers,
    )


def _step(rank: RankMemory) -> Iterator[_Moment]:
    unsplit = rank.unsplit_gradient
    yield _moment(
        gradients=rank.step_gradients + unsplit,
        logits=rank.loss.retained_in_step_bytes,
        temporary=rank.states.step + unsplit // max(1, rank.job.parallel.tensor - 1),
        communication=rank.buffers.step,
    )


def _saving(rank: RankMemory) -> Iterator[_Moment]:
    """Yield a checkpoint being saved, between steps: gradients are freed unless they are zeroed."""
    job, states = rank.job, rank.states
    kept = states.gradients if job.framework.gradient_buffer or job.versions.zeroes_gradients else 0
    yield _moment(
        gradients=kept,
        logits=rank.loss.retained_in_step_bytes,
        communication=gathered_bytes(job, rank.stage) + rank.buffers.step,
    )
