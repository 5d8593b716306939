"""FSDP1 in the closed form: its units, by block, by size or by class, and the buffers that they take.

Follows torch 2.13: ``torch/distributed/fsdp/wrap.py``, ``_runtime_utils.py``.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Literal

from msgspec import Struct

from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import Widths
from ..model.rank_share import LocalParameters, Stage
from .buffers import Buffers, Unit, largest_block, unit_of, weight_width

Part = tuple[LocalParameters, float]
"""A parameter group, and the share of it."""

_CLASSES = (
    (re.compile(r"mlp|feedforward|ffn|experts|moe", re.IGNORECASE), r"mlp|feed_?forward|ffn|experts|moe"),
    (re.compile(r"attention|attn", re.IGNORECASE), r"attn|attention"),
    (re.compile(r"embedding", re.IGNORECASE), r"embed|wte|wpe"),
    (re.compile(r"linear", re.IGNORECASE), r"proj|head|dense|linear|fc\d?|c_\w+|w\d"),
    (re.compile(r"layer$|block$", re.IGNORECASE), "block"),  # not MixtralSparseMoeBlock, a part of one
)
"""Parts of a class's name, and the names that transformers gives to modules of such a class."""


class UnitRule(Struct, frozen=True, kw_only=True):
    """Rule by which modules become units besides the root."""

    minimum: int | None = None
    """Parameters from which on a module becomes a unit; None: by name."""
    blocks: bool = True
    names: tuple[str, ...] = ()
    """Patterns of the names of other modules that become units."""
    adapters_apart: bool = True
    """Adapters are units of their own (peft's ``fsdp_auto_wrap_policy``); False: they are part of their block's."""
    understood: bool = True
    """False: a class is named of which is not known what it is."""


class FlatUnits(Struct, frozen=True, kw_only=True):
    """The units of one stage."""

    root: tuple[Part, ...]
    """Gathered all through the step."""
    around: tuple[Part, ...]
    """The unit around the blocks, gathered while they run; empty: there is none, what it would have is the root's."""
    embedding: tuple[Part, ...]
    head: tuple[Part, ...]
    """Units of their own."""
    block: tuple[Part, ...]
    """The block's own unit: what units inside of it leave over."""
    inner: tuple[tuple[Part, ...], ...]
    """Units inside of a block."""
    left: tuple[Part, ...]
    """Parts of a block that belong to the unit around the blocks, or to the root's."""


def unit_rule(job: ResolvedJob) -> UnitRule:
    """Return what a job's wrap policy makes a unit.

    A policy decides bottom-up: a module becomes a unit of what its wrapped children leave over. The size-based policy
    wraps what has at least so many parameters, but no lists of modules; the other one wraps modules of given classes.
    """
    parallel = job.parallel
    if job.framework.own_adapters:  # LitGPT wraps its Block class only (finetune/lora.py)
        return UnitRule(adapters_apart=False)
    if parallel.fsdp_min_unit_parameters is not None and job.lora is None:
        return UnitRule(minimum=parallel.fsdp_min_unit_parameters, blocks=False)
    if parallel.fsdp_units == "model":
        return UnitRule(blocks=False)
    if not parallel.fsdp_wrap_classes:
        return UnitRule()
    kinds = [next((kind for word, kind in _CLASSES if word.search(name)), None) for name in parallel.fsdp_wrap_classes]
    return UnitRule(
        blocks="block" in kinds or None in kinds,
        names=tuple(kind for kind in kinds if kind not in (None, "block")),
        understood=None not in kinds,
    )


def gathered_share(job: ResolvedJob) -> float:
    """Return the bytes that a unit takes while it is gathered, for each of its bytes.

    Offloaded shards in the compute type are copied to the GPU, where the parameters are views of them as long as the
    unit is gathered (``flat_param_to``); others are cast there and freed. Units that no ranks share are cast under
    mixed precision or copied from the host, and else computed with as they are (``pre_unshard`` in torch's
    ``distributed/fsdp/_flat_param.py``, 2.13).
    """
    shards = job.shards.weights
    if shards == 1:
        return 1.0 if casts_units(job) or job.offloads_weights else 0.0
    return 1 + 1 / shards if keeps_copies(job) else 1.0


def casts_units(job: ResolvedJob) -> bool:
    """Return True if FSDP1 casts what it gathers: under mixed precision, in which 4-bit weights have no part."""
    return job.widths.mixed and job.quantization is None


def keeps_copies(job: ResolvedJob) -> bool:
    """Return True if copies of offloaded shards stay with their units: the model's own parameters are views of them.

    Absent, ``parallel.original_parameters`` is the Trainer's default (``use_orig_params`` of ``fsdp_config``), and for
    quantized weights what the programs that train them set (AnswerDotAI/fsdp_qlora, ``train.py``; peft's examples).
    """
    stated = job.parallel.original_parameters
    views = job.quantization is None if stated is None else stated
    return views and job.offloads_weights and not casts_units(job)


def flat_units(stage: Stage, rule: UnitRule) -> FlatUnits:
    """Return the units of a stage, without adapters where each trained leaf among them is a unit of its own."""

    def wraps(name: str, elements: float) -> bool:
        if rule.minimum is None:
            return any(re.search(pattern, name) for pattern in rule.names)
        return elements >= rule.minimum and name not in ("*", "experts")

    apart = rule.adapters_apart
    inner, left = _wrap(_inside([(h, s) for h, s in largest_block(stage) if not (apart and h.adapter)]), wraps)
    own: tuple[Part, ...] = ()
    if rule.blocks or (rule.minimum is not None and _elements(left) >= rule.minimum):
        own, left = left, ()
    outside = [(h, 1.0) for h in stage.parameters if not h.group.layered and not (apart and h.adapter)]
    embedding = tuple(part for part in outside if part[0] is stage.token_embedding)
    head = tuple(part for part in outside if part[0].group.role == "head")
    rest = [part for part in outside if part not in embedding and part not in head]
    embedding, rest = _apart(embedding, rest, wraps, "embed_tokens")
    head, root = _apart(head, [], wraps, "lm_head")
    around = tuple(rest)
    remaining = _elements(around) + _elements(left) * stage.layers
    if rule.minimum is None or remaining < rule.minimum:
        root, around = [*root, *around], ()
    return FlatUnits(
        root=tuple(root),
        around=around,
        embedding=embedding,
        head=head,
        block=own,
        inner=inner,
        left=left,
    )


def _apart(
    parts: tuple[Part, ...], rest: list[Part], wraps: Callable[[str, float], bool], name: str
) -> tuple[tuple[Part, ...], list[Part]]:
    """Return the parts that are a unit of their own, and the rest with what is none."""
    if parts and wraps(name, _elements(parts)):
        return parts, rest
    return (), [*parts, *rest]


def _inside(parts: Iterable[Part]) -> list[tuple[list[str], Part]]:
    """Return the parts of a block with the names of the modules that contain them."""
    return [(part[0].group.name.partition(".*.")[2].split(".")[:-1], part) for part in parts]


def _wrap(
    parts: list[tuple[list[str], Part]], wraps: Callable[[str, float], bool]
) -> tuple[tuple[tuple[Part, ...], ...], tuple[Part, ...]]:
    """Return the units that are made of the modules below one, and what they leave over."""
    units: list[tuple[Part, ...]] = []
    left = [part for path, part in parts if not path]
    children: dict[str, list[tuple[list[str], Part]]] = {}
    for path, part in parts:
        if path:
            children.setdefault(path[0], []).append((path[1:], part))
    for name, inside in children.items():
        found, rest = _wrap(inside, wraps)
        units += found
        if rest and wraps(name, _elements(rest)):
            units.append(rest)
        else:
            left += rest
    return tuple(units), tuple(left)


def _elements(parts: Iterable[Part]) -> float:
    return sum(held.elements * share for held, share in parts)


Prefetch = Literal["pre", "late", "post", "none"]


def prefetch(job: ResolvedJob, stage: Stage) -> Prefetch:
    """Return when the backward pass gathers the next block: before this one runs, at its end, after it, or not at all.

    A unit's hook gathers the one that ran before it, if its output has a hook too (``_get_handle_to_prefetch``): not
    so in a reentrant checkpoint, which has run without a graph. Before the first adapter of a block ran the block
    before, so that attention runs backward until then.
    """
    if job.checkpoints_units:
        return "none"
    stated = job.parallel.fsdp_backward_prefetch or "pre"
    adapted = job.adapter_units and any(held.adapter and "attn" in held.group.name for held, _ in largest_block(stage))
    return "late" if stated == "pre" and adapted else stated


@lru_cache(maxsize=256)
def flat_buffers(
    stage: Stage,
    widths: Widths,
    *,
    rule: UnitRule,
    share: float,
    shards: int,
    tied: bool,
    keeps: bool,
    prefetches: Prefetch,
    loss_in_forward: bool = True,
) -> Buffers:
    """Return the buffers of FSDP1.

    A unit is gathered before it runs and freed after it, the root's only at the end of the step. In the backward pass
    the next unit is gathered ahead: before this one's gradients are computed (BACKWARD_PRE), beginning with the last
    one when the root's output has its gradient; after them (BACKWARD_POST); or not at all. The gradient of a flat
    parameter covers all of it, frozen parts too; autograd puts it together from those of the unit's parameters while
    the unit is still gathered. What is reduced on another stream is no longer allocated, though its block is not free
    yet (``record_stream``).

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        rule: what becomes a unit.
        share: bytes that a unit takes while it is gathered, for each of its bytes.
        shards: ranks over which it is sharded.
        tied: the stage's head is its embedding, whose gradient autograd holds from the head to the embedding.
        keeps: units stay gathered after the forward pass.
        prefetches: when the backward pass gathers the unit that it needs next.
        loss_in_forward: the root computes the loss, so that its hook gathers before the loss runs backward.
    """
    units, layers = flat_units(stage, rule), stage.layers
    reduce = 0 if shards == 1 and widths.reduce == widths.compute else widths.reduce  # 0: in place
    flat = partial(_flat, widths=widths, share=share, reduce=reduce)
    root, around, left = (flat(parts) for parts in (units.root, units.around, units.left))
    embedding, head, own = flat(units.embedding), flat(units.head), flat(units.block)
    inner = [flat(parts) for parts in (*units.inner, units.block) if parts]
    in_blocks = _times(left, layers)  # part of the unit around the blocks, or of the root's
    if units.around:
        around = _plus(around, in_blocks)
    else:
        root = _plus(root, in_blocks)
    largest = max(inner, key=lambda unit: unit.whole, default=flat(()))
    inside = own.whole + max((unit.whole for unit in inner if unit is not inner[-1] or not own.whole), default=0)
    kept = layers * sum(unit.whole for unit in inner) if keeps else 0
    always = root.whole + (around.whole + embedding.whole + head.whole if keeps else 0)
    ahead = largest.whole if prefetches in ("pre", "late") and not keeps else 0
    first = (around.whole or largest.whole) if ahead else 0  # what is gathered before the head runs backward
    early = (head.whole or first) if ahead else 0  # by the root's hook, if it has parameters
    behind = largest.whole if prefetches != "none" and not keeps else 0
    running = kept or inside
    over = 0 if keeps else around.whole
    own_head = 0 if keeps else head.whole
    outside = [
        held for held in stage.parameters if not held.group.layered and (tied or held is not stage.token_embedding)
    ]
    gradients = unit_of(((held, 1.0) for held in outside), widths).gradients
    late = 0 if head.whole else gradients  # until the root's are reduced
    # the head's gradient, the embedding's, and their sum, to which autograd adds nothing in place
    tokens = [(stage.token_embedding, 1.0)] if tied and stage.token_embedding is not None else []
    summed = 3 * unit_of(tokens, widths).gradients
    apart = [(held, share) for held, share in largest_block(stage) if held.adapter and rule.adapters_apart]
    adapters = unit_of(apart, widths)
    computed, sharded = largest.gradients + adapters.gradients, widths.gradient / widths.compute / shards
    running += over
    block = always + running + late + (ahead if prefetches == "pre" else 0)
    return Buffers(
        forward=always + max(over + (kept or inside), embedding.whole),
        head_forward=always + kept,
        loss_backward=always + kept + (early if root.whole and loss_in_forward else 0),
        head_backward=always + kept + own_head + first + gradients,
        after_head=always + (kept or first) + gradients + (own_head + head.gradients if head.whole else 0),
        first_block=block,
        block=block,
        block_end=late
        + max(
            always + running + ahead + 2 * computed - round(computed * sharded),  # of parameters, the flat one
            always + over + (kept or behind) + computed + largest.reduced,
        ),
        kept=kept,
        unreduced=computed or left.gradients,
        pending_blocks=layers if left.gradients else 0,
        pending_bytes=left.gradients,
        embedding=always
        + max(
            over + late + 2 * around.gradients,
            max(2 * root.gradients, summed) - round(root.gradients * sharded),
            root.gradients + root.reduced,
        ),
        largest_reduction=max(root.reduced, around.reduced, head.reduced),
    )


def _flat(parts: Iterable[Part], *, widths: Widths, share: float, reduce: int) -> Unit:
    """Return a flat parameter; 4-bit weights are gathered without their scales, which are no parameters.

    Args:
        parts: of the unit.
        widths: bytes per element.
        share: bytes that it takes while it is gathered, for each of its bytes.
        reduce: bytes per element of what its gradient is cast to and reduced into.
    """
    parts = list(parts)
    unit = unit_of(parts, widths)
    if unit.gradients:  # one gradient for all of it
        elements = sum(held.elements * share for held, share in parts)
        return Unit(whole=round(share * unit.whole), gradients=unit.whole, reduced=round(elements * reduce))
    packed = sum(held.elements * share * (weight_width(held, widths) % 0.5) for held, share in parts if held.quantized)
    return Unit(whole=round(share * (unit.whole - packed)), gradients=0, reduced=0)


def _times(unit: Unit, count: int) -> Unit:
    return Unit(whole=count * unit.whole, gradients=count * unit.gradients, reduced=count * unit.reduced)


def _plus(one: Unit, other: Unit) -> Unit:
    return Unit(
        whole=one.whole + other.whole,
        gradients=one.gradients + other.gradients,
        reduced=one.reduced + other.reduced,
    )
