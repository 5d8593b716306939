"""Communication buffers by moment of the step: the record that every strategy fills, units, and FSDP2's."""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from ..job.rules.dtype_widths import Widths
from ..model.inventory import ParameterGroup
from ..model.rank_share import LocalParameters, Stage


class Unit(Struct, frozen=True, kw_only=True):
    """Parameters that are gathered together, in bytes."""

    whole: int
    """Gathered."""
    gradients: int
    """Their gradients as they are computed."""
    reduced: int
    """Their gradients in the dtype in which they are reduced."""


NO_UNIT = Unit(whole=0, gradients=0, reduced=0)


def whole_unit(parameters: Iterable[LocalParameters], widths: Widths) -> Unit:
    """Return a unit of whole parameter groups."""
    return unit_of(((held, 1.0) for held in parameters), widths)


def unit_of(parts: Iterable[tuple[LocalParameters, float]], widths: Widths) -> Unit:
    """Return a unit of parameter groups, each with the share of it that the unit holds."""
    whole = gradients = reduced = 0.0
    casts = widths.casts or widths.compute != widths.weight
    for held, share in parts:
        elements = held.elements * share
        width = weight_width(held, widths) if held.quantized or not casts else widths.compute
        whole += elements * held.padding * width
        if held.trainable:
            gradients += elements * width
            reduced += elements * held.padding * widths.reduce
    return Unit(whole=round(whole), gradients=round(gradients), reduced=round(reduced))


def largest_block(stage: Stage) -> list[tuple[LocalParameters, float]]:
    """Return the parameters of the largest block, each with its share of its group.

    An encoder's blocks are smaller than those of its decoder, and dense layers smaller than those with experts.
    """
    stacks: dict[str, list[LocalParameters]] = {}
    for held in stage.parameters:
        if held.group.layered:
            stacks.setdefault(held.group.name.partition(".*.")[0], []).append(held)
    return max((_block(stack, stage.layers) for stack in stacks.values()), key=elements_of, default=[])


def _block(stack: list[LocalParameters], layers: int) -> list[tuple[LocalParameters, float]]:
    """Return the largest kind of block of a stack: what all have, and what those of one kind have."""
    totals: dict[ParameterGroup, int] = {}
    for held in stack:
        totals[held.group] = totals.get(held.group, 0) + (0 if held.copied else held.tensors)
    attention = [totals[held.group] for held in stack if held.group.role == "attention" and held.group.linear]
    blocks = min(attention, default=layers)
    everywhere: list[tuple[LocalParameters, float]] = []
    kinds: dict[int, list[tuple[LocalParameters, float]]] = {}
    for held in stack:
        total = held.tensors if held.copied else totals[held.group]
        if total != held.tensors and not held.trainable:
            continue  # what trains of the group stands for it: the block is one in which it trains
        if total >= blocks:
            everywhere.append((held, total / blocks / held.tensors))
        else:
            kinds.setdefault(total, []).append((held, 1 / held.tensors))
    return everywhere + max(kinds.values(), key=elements_of, default=[])


def elements_of(parts: list[tuple[LocalParameters, float]]) -> float:
    """Return the elements of parameter groups, each with the share of it that counts."""
    return sum(held.elements * share for held, share in parts)


def weight_width(held: LocalParameters, widths: Widths) -> float:
    """Return the bytes per stored element of a parameter group."""
    if held.quantized and widths.quantized is not None:
        return widths.quantized
    return widths.adapter if held.adapter else widths.weight


class Buffers(Struct, frozen=True, kw_only=True):
    """Bytes of communication buffers inside torch's allocator, by moment of the step."""

    forward: int = 0
    """While blocks run forward."""
    last_gather: int = 0
    """While the last block's parameters are copied out of its flat buffer; 0: no buffer of another unit is left."""
    head_gather: int = 0
    """While the head's are; likewise."""
    head_forward: int = 0
    """While head and loss run forward."""
    loss_backward: int = 0
    """While the loss runs backward."""
    head_backward: int = 0
    """While the head runs backward."""
    after_head: int = 0
    """After the head has run backward."""
    first_block: int = 0
    """While the first block runs backward and the head's gradients are being reduced."""
    block: int = 0
    """While any other block runs backward."""
    block_end: int = 0
    """After a block has run backward."""
    embedding: int = 0
    """After everything has run backward."""
    step: int = 0
    """Kept between steps."""

    pending_blocks: int = 0
    """Blocks that have run backward and wait for the reduction of their gradients."""
    pending_bytes: int = 0
    """Gradients of each of ``pending_blocks``."""
    ahead_blocks: int = 0
    """Blocks that are gathered ahead of the one that runs, as long as there are so many; part of the figures above."""
    ahead_bytes: int = 0
    """Weights of each of ``ahead_blocks``."""
    unreduced: int = 0
    """A block's gradients before they are reduced; 0: they are those of the step."""
    kept: int = 0
    """Blocks that stay gathered until they have run backward, all of them; part of the figures above."""
    largest_reduction: int = 0
    """The largest input of a reduce-scatter, which is one block of the allocator."""


@lru_cache(maxsize=256)
def unit_buffers(
    stage: Stage,
    widths: Widths,
    *,
    tied: bool,
    keeps: bool,
    loss_in_forward: bool = True,
    own_pool: bool = False,
    reduced_over: int | None = None,
) -> Buffers:
    """Return the buffers of FSDP2 under accelerate, and under torchtitan since 0.2.

    Units (accelerate, ``utils/fsdp_utils.py``, 1.15): every block; the token embedding; final norm and head together, a
    tied embedding with them; the rest under the root. By torch's ``distributed/fsdp/_fully_shard``: in the forward pass
    a unit's flat buffer stays until the next unit's parameters are copied out of theirs (``wait_for_unshard`` holds it
    in a variable of its own), or the root's forward pass is over; in the backward pass the next unit is gathered
    beforehand, and the input of a reduce-scatter stays until the next unit's gradients exist. Root and head are not
    resharded after the forward pass; a head with the embedding in its unit is gathered again by the last block's
    backward pass.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding.
        keeps: blocks stay gathered after the forward pass.
        loss_in_forward: the loss is computed within the root's forward pass, before which no flat buffer is freed.
        own_pool: as for ``root_buffers``.
        reduced_over: ranks over which gradients are split; None: the rank keeps whole ones from earlier micro-batches.
    """
    block = unit_of(largest_block(stage), widths)
    head, embedding, root = _units_around_blocks(stage, widths, tied=tied)
    kept = round(block.whole * stage.layers) + embedding.whole if keeps else 0
    stays = root.whole + (head.whole if tied else 0)
    gathering = kept + block.whole if keeps else 2 * block.whole  # the flat buffer, and its parameters
    flat = (block.whole if tied else head.whole) if loss_in_forward else 0  # of the unit that was gathered last
    late = head.gradients if tied else 0  # autograd holds them until the embedding's exist
    ahead = kept or 2 * block.whole
    waiting, waiting_head = (0, 0) if own_pool else (block.reduced, head.reduced)
    if tied:
        # the last block's backward pass gathers the unit ahead, which was freed with the head
        own = head.reduced * widths.gradient // widths.reduce // reduced_over if reduced_over else 0  # not there yet
        end = 2 * head.whole + 2 * head.gradients + waiting - own, head.gradients + head.reduced
    else:
        end = embedding.whole + embedding.gradients + waiting, embedding.gradients + embedding.reduced
    return Buffers(
        forward=stays + gathering,
        last_gather=stays + gathering + block.whole,
        head_gather=0 if tied else root.whole + kept + 2 * head.whole + block.whole,
        head_forward=root.whole + head.whole + kept + flat,
        loss_backward=root.whole + head.whole + kept,
        head_backward=root.whole + head.whole + kept + head.gradients,
        after_head=stays + (kept or block.whole) + head.gradients + (0 if tied else head.reduced),
        first_block=stays + ahead + late + (0 if tied else waiting_head),
        block=stays + ahead + late + waiting,
        block_end=stays + (kept or block.whole) + late + block.gradients + block.reduced,
        unreduced=block.gradients,
        kept=kept - embedding.whole if keeps else 0,
        embedding=root.whole + max(end),
        largest_reduction=max(head.reduced, embedding.reduced),
    )


def _units_around_blocks(stage: Stage, widths: Widths, *, tied: bool) -> tuple[Unit, Unit, Unit]:
    """Return the units of the head, of the embedding, and of what the root keeps."""
    tokens = stage.token_embedding
    around = [held for held in stage.parameters if not held.group.layered]
    root = [held for held in around if held.group.role == "embedding" and held is not tokens]
    last = [held for held in around if held.group.role != "embedding"]
    if tied and tokens:
        last.append(tokens)
    embedding = [tokens] if tokens and not tied else []
    return whole_unit(last, widths), whole_unit(embedding, widths), whole_unit(root, widths)


def root_buffers(
    stage: Stage,
    widths: Widths,
    *,
    tied: bool,
    keeps: bool,
    pools_root: bool,
    last_stays: bool = False,
    own_pool: bool = False,
) -> Buffers:
    """Return the buffers where embedding and head belong to the root: always gathered, and reduced at the very end.

    This holds under torchtune, and torchtitan before 0.2.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding, whose gradient autograd holds from the head to the embedding.
        keeps: blocks stay gathered after the forward pass.
        pools_root: the root's buffers come from the gathering stream's pool too (FSDP2).
        last_stays: the last block stays gathered after the forward pass.
        own_pool: the input of a reduce-scatter is freed as soon as it is issued, since it has the reducing stream's
            pool (FSDP2 before torch 2.5).
    """
    block = unit_of(largest_block(stage), widths)
    waiting = 0 if own_pool else block.reduced
    root = whole_unit((held for held in stage.parameters if not held.group.layered), widths)
    around = (h for h in stage.parameters if not h.group.layered and h is not stage.token_embedding)
    head = root.gradients if tied else whole_unit(around, widths).gradients
    kept = block.whole * stage.layers if keeps else 0
    ahead = kept + block.whole if kept else 2 * block.whole
    base, last = root.whole, (block.whole if last_stays and not kept else 0)
    return Buffers(
        forward=base + ahead,
        last_gather=base + ahead + block.whole if pools_root else 0,
        head_forward=base + kept + last,
        loss_backward=base + kept + last,
        head_backward=base + kept + last + head,
        after_head=base + (kept or block.whole) + head,
        first_block=base + ahead + head,
        block=base + ahead + head + waiting,
        block_end=base + (kept or block.whole) + head + block.gradients + block.reduced,
        kept=kept,
        unreduced=block.gradients,
        embedding=max(root.whole + (2 if tied else 1) * root.gradients + waiting, root.gradients + root.reduced),
        largest_reduction=root.reduced,
    )


def whole_model_buffers(stage: Stage, widths: Widths) -> Buffers:
    """Return the buffers of FSDP2 where the whole model is one unit, which is reduced at the end of the step.

    The flat buffer of gathered weights stays until the forward pass is over.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
    """
    block = unit_of(largest_block(stage), widths)
    model = whole_unit(stage.parameters, widths)
    around = (h for h in stage.parameters if not h.group.layered and h is not stage.token_embedding)
    backward = model.whole + whole_unit(around, widths).gradients
    forward = 2 * model.whole
    return Buffers(
        forward=forward,
        head_forward=forward,
        loss_backward=model.whole,
        head_backward=backward,
        after_head=backward,
        first_block=backward,
        block=backward,
        block_end=backward + block.gradients,
        unreduced=block.gradients,
        pending_blocks=stage.layers,
        pending_bytes=block.gradients,
        embedding=model.gradients + max(model.whole, model.reduced),
        largest_reduction=model.reduced,
    )
