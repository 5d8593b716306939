"""The moments of a training step with the highest memory of a rank, each as a set of components.

These are the end of the forward pass, the loss running backward, the blocks running backward, the end of the backward
pass, and the optimizer step - in the second step, when optimizer states exist.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ..budget import Components, Phase, PhaseName
from .activations.saved_activations import forward_pass_bytes
from .checkpoint_saving import gathered_bytes
from .model_states import steps_shards
from .rank_memory import RankMemory, in_evaluation


def phase_peaks(rank: RankMemory) -> tuple[Phase, ...]:
    """Return loading, and the moment with the highest memory of each phase of a step."""
    return (_loading(rank), *(_phase(rank, name, moment) for name, moment in _highest_moments(rank)))


def highest_phase(phases: tuple[Phase, ...]) -> Phase:
    """Return the phase with the most bytes."""
    return max(phases, key=lambda phase: phase.components.total_bytes)


_SAMPLING_BYTES = 16
"""Per logit of the token that is sampled: fp32 logits, filtered ones, probabilities."""


class _Moment(NamedTuple):
    """Bytes that exist at one moment, beside those that exist all through a step."""

    gradients: int = 0
    activations: int = 0
    logits: int = 0
    temporary: int = 0
    communication: int = 0


def _highest_moments(rank: RankMemory) -> list[tuple[PhaseName, _Moment]]:
    """Return the highest moment of each phase of a step."""
    job = rank.job
    if not job.trains:
        return [("forward", _inference(rank))]
    found: list[tuple[PhaseName, _Moment]] = [
        ("forward", max(_forward(rank), key=sum)),
        ("backward", max(_backward(rank), key=sum)),
        ("optimizer step", _step(rank)),
    ]
    if job.rollout:
        found.insert(0, ("generation", max(_generation(rank), key=sum)))
    if job.training.evaluation_batch:
        found.append(("evaluation", _evaluation(in_evaluation(rank, job.training.evaluation_batch))))
    if job.job.saving:
        found.append(("saving", _saving(rank)))
    return found


def _loading(rank: RankMemory) -> Phase:
    components = Components(weights=rank.states.loaded, context=rank.bare_context)
    return Phase(name="loading", components=components, outside_bytes=rank.bare_context)


def _phase(rank: RankMemory, name: PhaseName, moment: _Moment) -> Phase:
    """Return a moment with the bytes that exist at every moment of a step."""
    components = Components(
        weights=rank.states.weights,
        gradients=moment.gradients,
        optimizer=rank.states.optimizer,
        activations=moment.activations,
        logits=moment.logits,
        temporary=rank.workspace + moment.temporary,
        communication=rank.nccl + moment.communication,
        context=rank.context,
    )
    return Phase(name=name, components=rank.with_vllm(components, name), outside_bytes=rank.outside)


def _generation(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the prompts running at once, and the last token: transformers' cache copies a layer as it grows.

    Optimizer states exist, gradients do not: the step before has freed them.
    """
    job, layers = rank.job, max(1, rank.stage.layers)
    kept = rank.step_gradients if job.gradient_buffer or job.versions.zeroes_gradients else 0
    gathered = rank.gathered_weights or max(rank.buffers.forward, rank.buffers.head_forward)
    prompts = job.generated_sequences * job.prompt_length
    casts = rank.casts + rank.head_casts
    yield _Moment(
        gradients=kept,
        activations=rank.generation_cache * job.prompt_length // max(1, job.local_length),
        temporary=rank.saved.forward_temporary_bytes * prompts // max(1, job.local_tokens) + casts,
        communication=gathered,
    )
    yield _Moment(
        gradients=kept,
        activations=rank.generation_cache,
        logits=_SAMPLING_BYTES * job.generated_sequences * rank.arch.vocab,
        temporary=rank.generation_cache // layers + casts,
        communication=gathered,
    )


def _inference(rank: RankMemory) -> _Moment:
    """Return the last block running on the prompts, or the head, whichever takes more: the cache is full at both."""
    job, stage = rank.job, rank.stage
    logits = max(rank.loss.most_forward_bytes, rank.returned_logits)
    block = forward_pass_bytes(job, rank.arch, stage) if stage.layers else 0
    head = rank.residual_bytes if stage.last else 0  # its input; the model has returned where others' logits arrive
    at_head = logits + stage.passing_head_bytes >= block + stage.passing_bytes
    return _Moment(
        activations=rank.kv_cache + (head if at_head else block),
        logits=logits if at_head else 0,
        temporary=stage.passing_head_bytes if at_head else stage.passing_bytes,
        communication=max(rank.buffers.forward, rank.buffers.head_forward),
    )


def _forward(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the last block, the loss, and the end of the forward pass."""
    saved, buffers, recomputes = rank.saved, rank.buffers, rank.job.recomputes
    graph = saved.all_layers_bytes + saved.outside_blocks_bytes
    activations = rank.stage.in_flight * graph + saved.previous_graph_bytes + rank.kv_cache
    kept = rank.forward_casts
    if saved.no_graph_bytes:  # blocks before the first one that trains
        yield _Moment(
            gradients=rank.accumulated_gradients,
            logits=rank.loss.retained_before_bytes,
            temporary=saved.no_graph_bytes + rank.casts // max(1, rank.stage.layers),
            communication=buffers.forward,
        )
    yield _Moment(
        gradients=rank.accumulated_gradients,
        activations=activations,
        logits=rank.loss.retained_before_bytes,
        temporary=rank.batch_mask + saved.forward_temporary_bytes + (kept or rank.casts // max(1, rank.stage.layers)),
        communication=buffers.forward,
    )
    if buffers.last_gather:
        yield _Moment(
            gradients=rank.accumulated_gradients,
            activations=activations - saved.all_layers_bytes // max(1, rank.stage.layers),
            logits=rank.loss.retained_before_bytes,
            temporary=rank.batch_mask + kept,
            communication=buffers.last_gather,
        )
    if buffers.head_gather and rank.stage.last:
        yield _Moment(
            gradients=rank.accumulated_gradients,
            activations=activations,
            logits=rank.loss.retained_before_bytes,
            temporary=rank.batch_mask + kept,
            communication=buffers.head_gather,
        )
    if buffers.ahead_blocks:  # the last block with as many gathered ahead of it
        yield _Moment(
            gradients=rank.accumulated_gradients,
            activations=activations - saved.all_layers_bytes * buffers.ahead_blocks // max(1, rank.stage.layers),
            logits=rank.loss.retained_before_bytes,
            temporary=rank.batch_mask
            + saved.forward_temporary_bytes
            + (kept or rank.casts // max(1, rank.stage.layers)),
            communication=buffers.forward + buffers.ahead_blocks * buffers.ahead_bytes,
        )
    yield _Moment(
        gradients=rank.accumulated_gradients,
        activations=activations,
        logits=max(rank.loss.most_forward_bytes, rank.returned_logits),
        temporary=rank.batch_mask + kept + rank.loss_casts,
        communication=buffers.head_forward,
    )
    if returned := max(rank.loss.upcast_bytes, rank.loss.cloned_bytes):  # the root's forward pass is over, and autocast
        yield _Moment(
            gradients=rank.accumulated_gradients,
            activations=activations,
            logits=returned,
            temporary=rank.loss_casts + (0 if recomputes else kept),
            communication=buffers.loss_backward,
        )


def _backward(rank: RankMemory) -> Iterator[_Moment]:
    """Yield the loss, the head, blocks at which memory may be highest, and the embedding, running backward."""
    saved, layers, buffers = rank.saved, rank.blocks_backward, rank.buffers
    others = (rank.stage.in_flight - 1) * (saved.all_layers_bytes + saved.outside_blocks_bytes)
    # casts of blocks that are recomputed were dropped when autocast ended
    casts = rank.casts // max(1, rank.stage.layers) if rank.job.recomputes else rank.forward_casts
    yield from _head_backward(rank, rank.loss_casts + (0 if rank.job.recomputes else casts), others)
    # blocks that have run backward; between them memory changes linearly
    ends = {0, layers - 1} if saved.order is None else saved.order.ends
    if layers and (buffers.pending_blocks or buffers.first_block != buffers.block):
        ends.add(min(max(1, buffers.pending_blocks), layers - 1))
    if layers and buffers.ahead_blocks:
        ends.add(max(0, layers - 1 - buffers.ahead_blocks))
    for done in sorted(ends):
        yield from _block_backward(rank, done, casts, others)
    yield _Moment(  # the embedding; where it is the head too, it has two gradients, which are added
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
    yield _Moment(
        gradients=accumulated,
        activations=activations,
        logits=rank.loss.backward_bytes,
        temporary=casts,
        communication=buffers.loss_backward,
    )
    gradients = max(accumulated, rank.gradients_after(0))
    yield _Moment(  # the head; under autocast its gradient has the compute dtype first
        gradients=accumulated if rank.job.widths.autocast else gradients,
        activations=activations,
        logits=rank.loss.gradient_bytes,
        temporary=casts + (rank.loss_casts if rank.stage.trains_head else 0),
        communication=buffers.head_backward,
    )
    if rank.job.steps_in_backward and rank.stage.trains_head:  # the head's update, while all activations exist
        yield _Moment(
            # its own: the next one is not computed yet; a unit's shards exist together
            gradients=gradients if steps_shards(rank.job) else gradients // 2,
            activations=activations,
            logits=rank.loss.retained_bytes,
            temporary=casts + rank.states.step,
            communication=buffers.after_head,
        )
    if not rank.blocks_backward and not rank.stage.trains_embeddings:
        return  # nothing before the head needs a gradient
    yield _Moment(  # the last norm
        gradients=gradients,
        activations=activations,
        logits=rank.loss.retained_bytes,
        temporary=casts + saved.norm_backward_bytes,
        communication=buffers.after_head,
    )


def _block_backward(rank: RankMemory, done: int, casts: int, others: int) -> tuple[_Moment, _Moment, _Moment]:
    """Return three moments of one block: its MLP, its attention, and its end.

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
    not_ahead = max(0, done + 1 + buffers.ahead_blocks - layers) * buffers.ahead_bytes
    communication -= not_ahead
    return (
        _Moment(
            gradients=gradients,
            activations=activations,
            logits=rank.loss.retained_bytes,
            temporary=temporary + saved.mlp_backward_bytes,
            communication=communication,
        ),
        _Moment(
            gradients=gradients if buffers.unreduced else max(accumulated, rank.gradients_after(done + mlp)),
            activations=max(0, activations - saved.mlp_half_bytes),
            logits=rank.loss.retained_bytes,
            temporary=temporary + saved.attention_backward_bytes,
            communication=communication + round(mlp * buffers.unreduced),
        ),
        _Moment(
            gradients=max(accumulated, rank.gradients_after(done + 1)),
            activations=others + rank.saved_bytes(done + 1) + saved.boundary_bytes,
            logits=rank.loss.retained_bytes,
            communication=pending + buffers.block_end - buffers.kept * (done + 1) // layers - not_ahead,
        ),
    )


def _step(rank: RankMemory) -> _Moment:
    unsplit = rank.unsplit_gradient
    return _Moment(
        gradients=rank.step_gradients + unsplit,
        logits=rank.loss.retained_in_step_bytes,
        temporary=rank.states.step + unsplit // max(1, rank.job.parallel.tensor - 1),
        communication=rank.buffers.step,
    )


def _evaluation(rank: RankMemory) -> _Moment:
    """Return the last block or the head of a forward pass of evaluation, which saves nothing for a backward pass.

    Optimizer states exist, gradients are freed unless they are zeroed. Autocast keeps its casts of trained weights to
    the end of the pass (``cached_cast`` of torch 2.13's autocast_mode.cpp does not ask whether there is a graph).

    Args:
        rank: of a micro-batch of evaluation.
    """
    job, stage = rank.job, rank.stage
    logits = max(rank.loss.most_forward_bytes, rank.returned_logits) if stage.last else 0
    block = forward_pass_bytes(job, rank.arch, stage) if stage.layers else 0
    at_head = logits > block
    passing_casts = (rank.casts - rank.trained_casts) // max(1, stage.layers)
    return _Moment(
        gradients=rank.step_gradients if job.gradient_buffer or job.versions.zeroes_gradients else 0,
        activations=rank.kv_cache + (rank.residual_bytes if at_head and stage.last else block),
        logits=logits if at_head else 0,
        temporary=rank.trained_casts + (rank.loss_casts if at_head else passing_casts),
        communication=max(rank.buffers.forward, rank.buffers.head_forward),
    )


def _saving(rank: RankMemory) -> _Moment:
    """Return a checkpoint being saved, between steps: gradients are freed unless they are zeroed."""
    job = rank.job
    kept = rank.step_gradients if job.gradient_buffer or job.versions.zeroes_gradients else 0
    return _Moment(
        gradients=kept,
        logits=rank.loss.retained_in_step_bytes,
        communication=gathered_bytes(job, rank.stage) + rank.buffers.step,
    )
