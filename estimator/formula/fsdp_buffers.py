"""What FSDP gathers and reduces on one rank, moment by moment, in the units that the frameworks make.

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

from ..job.dtype_widths import Widths
from ..job.job import Job
from ..job.version_rules import gathers_with_root
from ..model.rank_share import LocalParameters, Stage
from .model_states import weight_width

_MEGATRON_UNIT = 1_000_000_000
"""Elements that Megatron-FSDP takes for a unit of communication at least (``suggested_communication_unit_size``)."""


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
    queue: int = 0
    """How many blocks that have run backward wait for the reduction of their gradients."""
    queued: int = 0
    """Bytes of each of these."""
    unreduced: int = 0
    """A block's gradients before they are reduced, where they are not those of the step."""
    kept: int = 0
    """Of these, gathered blocks that stay until they have run backward, all of them."""
    embedding: int = 0
    """When everything has run backward."""
    step: int = 0
    """Kept between steps."""
    pool: int = 0
    """What the gathering stream's own blocks come to, which serve no other stream."""
    block: int = 0
    """The largest input of a reduce-scatter: one block of the allocator."""


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
def unit_buffers(stage: Stage, widths: Widths, *, tied: bool, keeps: bool, within: bool = True) -> Buffers:
    """The buffers of FSDP2 under accelerate, and torchtitan since 0.2.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding.
        keeps: blocks stay gathered after the forward pass.
        within: the loss is computed within the root's forward pass, before which no flat buffer is freed.
    """
    block = _unit(_largest_block(stage), widths)
    around = [held for held in stage.parameters if not held.group.layered]
    tokens = stage.token_embedding
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
    if not within:
        flat = 0
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
        pool=max(head.whole, embedding.whole) + block.whole,
        block=max(head.reduced, embedding.reduced),
    )


def root_buffers(job: Job, stage: Stage, widths: Widths) -> Buffers:
    """The buffers where embedding and head are the root's: gathered throughout, and reduced at the very end.

    So under FSDP1, torchtune, and torchtitan before 0.2. FSDP1 too has the unit in use and the next one alive
    (``limit_all_gathers``).
    """
    block = _unit(_largest_block(stage), widths)
    root = _unit(((held, 1.0) for held in stage.parameters if not held.group.layered), widths)
    head = _unit(
        ((h, 1.0) for h in stage.parameters if not h.group.layered and h is not stage.token_embedding), widths
    ).gradients
    kept = block.whole * stage.layers if keeps_gathered(job) else 0
    ahead = kept + block.whole if kept else 2 * block.whole
    base = root.whole
    return Buffers(
        forward=base + ahead,
        output=base + kept,
        loss=base + kept,
        head=base + kept + head,
        turn=base + (kept or block.whole) + head,
        first=base + ahead + head,
        backward=base + ahead + head + block.reduced,
        reduced=base + (kept or block.whole) + head + block.gradients + block.reduced,
        kept=kept,
        unreduced=block.gradients,
        embedding=max(root.whole + root.gradients + block.reduced, root.gradients + root.reduced),
        pool=root.whole + block.whole if job.parallel.strategy == "fsdp2" else block.whole,
        block=root.reduced,
    )


def megatron_buffers(job: Job, stage: Stage, widths: Widths) -> Buffers:
    """The buffers of Megatron-FSDP (megatron_fsdp.py, param_and_grad_buffer.py): units are the blocks.

    Weights are gathered ahead until 5e8 elements, or a unit, are; gradients, in the type they are reduced in, wait for
    their reduction until there are more than 1e9 elements, or two units, of them. Doubled, there are two units of each,
    which are kept. What is around the blocks stays gathered.
    """
    block = _unit(_largest_block(stage), widths)
    elements = max(1, round(_elements(_largest_block(stage))))
    limit = max(_MEGATRON_UNIT, 2 * elements)
    queue = min(stage.layers, limit // elements)
    if job.parallel.sharding in ("none", "optim"):
        return Buffers()  # the gradients of all parameters are there anyhow
    if job.parallel.sharding == "optim_grads":
        return Buffers(backward=block.reduced, reduced=block.reduced, queue=queue, queued=block.reduced)
    ahead = min(stage.layers - 1, -(-limit // 2 // elements))
    root = _unit(((held, 1.0) for held in stage.parameters if not held.group.layered), widths)
    base, step = root.whole, 0
    if job.parallel.double_buffer:
        step = 2 * (block.whole + block.reduced)
        base, ahead, queue, block = base + step, 0, 0, _Unit(whole=0, gradients=0, reduced=0)
    return Buffers(
        forward=base + 2 * block.whole,
        output=base,
        loss=base,
        head=base + root.reduced,
        turn=base + root.reduced + ahead * block.whole,
        first=base + root.reduced + (1 + ahead) * block.whole + block.reduced,
        backward=base + root.reduced + (1 + ahead) * block.whole + block.reduced,
        reduced=base + root.reduced + ahead * block.whole + block.reduced,
        embedding=base + root.reduced + queue * block.reduced,
        queue=queue,
        queued=block.reduced,
        step=step,
    )


def has_own_units(job: Job) -> bool:
    """Embedding and head come and go as the blocks do: FSDP2 under accelerate, and under torchtitan."""
    if job.parallel.strategy != "fsdp2":
        return False
    framework = job.training.framework
    return framework == "transformers" or (framework == "torchtitan" and not gathers_with_root(job))


def keeps_gathered(job: Job) -> bool:
    """Blocks stay gathered from the forward to the backward pass.

    Asked for, or torchtitan's default where there are pipeline stages (its distributed/fsdp.py).
    """
    pipelined = job.training.framework == "torchtitan" and job.parallel.pipeline > 1
    return not job.parallel.reshard_after_forward or job.parallel.sharding == "grad_op" or pipelined


def _unit(parts: Iterable[tuple[LocalParameters, float]], widths: Widths) -> _Unit:
    whole = gradients = reduced = 0.0
    for held, share in parts:
        elements = held.elements * share
        width = weight_width(held, widths) if held.quantized or not widths.mixed else widths.compute
        whole += elements * width
        if held.trainable:
            gradients += elements * width
            reduced += elements * widths.reduce
    return _Unit(whole=round(whole), gradients=round(gradients), reduced=round(reduced))


def _largest_block(stage: Stage) -> list[tuple[LocalParameters, float]]:
    """The parameters of the fullest block, each with its share of its group.

    An encoder's blocks are smaller than those of its decoder, and dense layers smaller than those with experts.
    """
    stacks: dict[str, list[LocalParameters]] = {}
    for held in stage.parameters:
        if held.group.layered:
            stacks.setdefault(held.group.name.partition(".*.")[0], []).append(held)
    return max((_block(stack, stage.layers) for stack in stacks.values()), key=_elements, default=[])


def _block(stack: list[LocalParameters], layers: int) -> list[tuple[LocalParameters, float]]:
    attention = [held.tensors for held in stack if held.group.role == "attention" and held.group.linear]
    blocks = min(attention, default=layers)
    everywhere = [(held, 1 / blocks) for held in stack if held.tensors >= blocks]
    kinds: dict[int, list[tuple[LocalParameters, float]]] = {}
    for held in stack:
        if held.tensors < blocks:
            kinds.setdefault(held.tensors, []).append((held, 1 / held.tensors))
    return everywhere + max(kinds.values(), key=_elements, default=[])


def _elements(parts: list[tuple[LocalParameters, float]]) -> float:
    return sum(held.elements * share for held, share in parts)
