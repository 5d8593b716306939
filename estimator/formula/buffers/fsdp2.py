"""Buffers of FSDP2 on one rank, moment by moment: gathered weights and gradients under reduction, in FSDP's units.

Units (accelerate, ``utils/fsdp_utils.py``, 1.15): every block; the token embedding; final norm and head together, a
tied embedding with them; the rest under the root. By torch's ``distributed/fsdp/_fully_shard``: in the forward pass a
unit's flat buffer stays until the next unit has been gathered, or the root's forward pass is over; in the backward
pass the next unit is gathered beforehand, and the input of a reduce-scatter stays until the next unit's gradients
exist. Root and head are not resharded after the forward pass; a head with the embedding in its unit only when
everything has run backward, because a unit waits for its first module.
"""

from functools import lru_cache

from ...job.rules import Widths
from ...model import Stage
from .buffers import Buffers
from .units import Unit, largest_block, unit_of, whole_unit


@lru_cache(maxsize=256)
def unit_buffers(
    stage: Stage, widths: Widths, *, tied: bool, keeps: bool, loss_in_forward: bool = True, own_pool: bool = False
) -> Buffers:
    """Return the buffers of FSDP2 under accelerate, and under torchtitan since 0.2.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding.
        keeps: blocks stay gathered after the forward pass.
        loss_in_forward: the loss is computed within the root's forward pass, before which no flat buffer is freed.
        own_pool: as for ``root_buffers``.
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
        end = head.whole + 2 * head.gradients, head.gradients + head.reduced
    else:
        end = embedding.whole + embedding.gradients + waiting, embedding.gradients + embedding.reduced
    return Buffers(
        forward=stays + gathering,
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
        pool=max(head.whole, embedding.whole) + block.whole,
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
        pool=root.whole + block.whole if pools_root else block.whole,
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
        pool=model.whole,
        largest_reduction=model.reduced,
    )
