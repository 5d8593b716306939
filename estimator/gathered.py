"""What FSDP2 gathers and reduces on one rank, moment by moment, in the units that accelerate makes.

Units (accelerate, ``utils/fsdp_utils.py``, 1.15): every block; the token embedding; final norm and head together, a
tied embedding with them; the rest under the root. By torch's ``distributed/fsdp/_fully_shard``: in the forward pass a
unit's flat buffer stays until the next unit has been gathered, or the root's forward pass is over; in the backward
pass the next unit is gathered beforehand, and the input of a reduce-scatter stays until the next unit's gradients
are there. Root and head are not resharded after the forward pass; a head with the embedding in its unit only when
everything has run backward, because a unit waits for its first module.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .rank import Held, Stage
from .states import weight_width
from .widths import Widths


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Bytes of communication buffers inside torch's allocator, by moment."""

    forward: int = 0
    """While the blocks run forward."""
    output: int = 0
    """While head and loss run forward."""
    loss: int = 0
    """While the loss runs backward."""
    head: int = 0
    """While the head runs backward."""
    turn: int = 0
    """When it has."""
    first: int = 0
    """While the first block runs backward: the head's gradients are on their way."""
    backward: int = 0
    """While the others do."""
    reduced: int = 0
    """When a block has run backward."""
    unreduced: int = 0
    """A block's gradients before they are reduced, where they are not those of the step."""
    kept: int = 0
    """Of these, gathered blocks that stay until they have run backward, all of them."""
    embedding: int = 0
    """When everything has run backward."""
    step: int = 0
    """Kept between steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Parameters that are gathered together."""

    whole: int
    """Bytes of them gathered."""
    gradients: int
    """Bytes of their gradients as they are computed."""
    reduced: int
    """The same in the type in which they are reduced."""


@lru_cache(maxsize=256)
def unit_buffers(stage: Stage, widths: Widths, *, tied: bool, keeps: bool) -> Buffers:
    """The buffers of FSDP2 under accelerate.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding.
        keeps: blocks stay gathered after the forward pass.
    """
    block = _unit(_largest_block(stage), widths)
    around = [held for held in stage.held if not held.group.layered]
    tokens = stage.tokens
    root = [held for held in around if held.group.role == "embedding" and held is not tokens]
    last = [held for held in around if held.group.role != "embedding"]
    if tied and tokens:
        last.append(tokens)
    head, others = _unit(((h, 1.0) for h in last), widths), _unit(((h, 1.0) for h in root), widths)
    embedding = _unit([(tokens, 1.0)] if tokens and not tied else [], widths)

    kept = round(block.whole * stage.layers) + embedding.whole if keeps else 0
    stays = others.whole + (head.whole if tied else 0)
    gathering = kept + block.whole if keeps else 2 * block.whole  # the flat buffer, and its parameters
    flat = block.whole if tied else head.whole  # of the unit that was gathered last
    late = head.gradients if tied else 0  # autograd holds them until the embedding's are there
    ahead = kept or 2 * block.whole
    if tied:
        end = head.whole + 2 * head.gradients, head.gradients + head.reduced
    else:
        end = embedding.whole + embedding.gradients + block.reduced, embedding.gradients + embedding.reduced
    return Buffers(
        forward=stays + gathering,
        output=others.whole + head.whole + kept + flat,
        loss=others.whole + head.whole + kept,
        head=others.whole + head.whole + kept + head.gradients,
        turn=stays + (kept or block.whole) + head.gradients + (0 if tied else head.reduced),
        first=stays + ahead + late + (0 if tied else head.reduced),
        backward=stays + ahead + late + block.reduced,
        reduced=stays + (kept or block.whole) + late + block.gradients + block.reduced,
        unreduced=block.gradients,
        kept=kept - embedding.whole if keeps else 0,
        embedding=others.whole + max(end),
    )


def _unit(parts: Iterable[tuple[Held, float]], widths: Widths) -> _Unit:
    whole = gradients = reduced = 0.0
    for held, share in parts:
        elements = held.elements * share
        width = weight_width(held, widths) if held.quantized or not widths.mixed else widths.compute
        whole += elements * width
        if held.trainable:
            gradients += elements * width
            reduced += elements * widths.reduce
    return _Unit(whole=round(whole), gradients=round(gradients), reduced=round(reduced))


def _largest_block(stage: Stage) -> list[tuple[Held, float]]:
    """The parameters of the fullest block, each with its share of its group.

    An encoder's blocks are smaller than those of its decoder, and dense layers smaller than those with experts.
    """
    stacks: dict[str, list[Held]] = {}
    for held in stage.held:
        if held.group.layered:
            stacks.setdefault(held.group.name.partition(".*.")[0], []).append(held)
    return max((_block(stack, stage.layers) for stack in stacks.values()), key=_elements, default=[])


def _block(stack: list[Held], layers: int) -> list[tuple[Held, float]]:
    attention = [held.tensors for held in stack if held.group.role == "attention" and held.group.linear]
    blocks = min(attention, default=layers)
    everywhere = [(held, 1 / blocks) for held in stack if held.tensors >= blocks]
    kinds: dict[int, list[tuple[Held, float]]] = {}
    for held in stack:
        if held.tensors < blocks:
            kinds.setdefault(held.tensors, []).append((held, 1 / held.tensors))
    return everywhere + max(kinds.values(), key=_elements, default=[])


def _elements(parts: list[tuple[Held, float]]) -> float:
    return sum(held.elements * share for held, share in parts)
