"""Blocks of a stage of which some parameters are frozen: what each saves, in the order in which they run.

Nothing before the first parameter that trains has a graph, so those blocks save nothing. The first block in the
graph saves nothing before its first trained part. All blocks after it pass gradients on, whatever trains in them.
"""

from collections.abc import Iterator

from msgspec import Struct

from ...common.records import replace
from ...job.resolved_job import ResolvedJob
from ...model.rank_share import Stage
from .block import (
    attention_half_per_token,
    half_of_norms_per_token,
    mlp_half_per_token,
    mlp_per_token,
    norm_per_token,
    product_per_token,
)
from .layer_context import LayerContext, run_context


class BlockSpan(Struct, frozen=True, kw_only=True):
    """Successive blocks that save the same."""

    count: int
    context: LayerContext
    in_graph: bool
    unsaved: float
    """Bytes per token that the block does not save, of what its parts need saved where gradients pass through it."""
    trained_elements: float
    """Trained elements of one block."""


class BackwardOrder(Struct, frozen=True, kw_only=True):
    """The blocks that run backward, from the first to the last: bytes that each saves, and its trained elements."""

    spans: tuple[tuple[int, float, float], ...]
    """Blocks, bytes saved by each, trained elements of each."""

    @property
    def blocks(self) -> int:
        """Number of blocks that run backward."""
        return sum(count for count, _, _ in self.spans)

    @property
    def ends(self) -> set[int]:
        """Numbers of blocks that have run backward where a span of like blocks begins or ends."""
        found, done = set(), 0
        for count, _, _ in reversed(self.spans):
            found |= {done, done + count - 1}
            done += count
        return found

    def saved_bytes(self, done: float) -> int:
        """Return the bytes that are still saved when that many blocks, the last ones first, have run backward."""
        return round(sum(count * saved for count, saved, _ in self._left(done)))

    def trained_elements(self, done: float) -> float:
        """Return the trained elements of the blocks that have run backward."""
        whole = sum(count * elements for count, _, elements in self.spans)
        return whole - sum(count * elements for count, _, elements in self._left(done))

    def _left(self, done: float) -> Iterator[tuple[float, float, float]]:
        left = self.blocks - done
        for count, saved, elements in self.spans:
            yield max(0.0, min(count, left)), saved, elements
            left -= count


def with_flat_units(job: ResolvedJob, stage: Stage) -> tuple[Stage, bool]:
    """Return the stage as autograd sees it under FSDP1, and whether the embedding's output needs a gradient.

    A unit's parameters are views of one flat parameter, which needs a gradient if any of them trains: then all of them
    save what theirs would need (``_use_unsharded_views`` in torch 2.13 ``distributed/fsdp/_flat_param.py``). The
    embedding is in the root's unit, with norm and head, unless the policy wraps it. Adapters are units of their own.
    """
    if not job.flattens or job.lora is not None or stage.runs is None:
        return stage, False
    parallel, one_unit = job.parallel, job.parallel.fsdp_units == "model"
    layered = frozenset(held.group.name for held in stage.parameters if held.group.layered)
    runs = [replace(run, trained=layered if run.trained or one_unit else run.trained) for run in stage.runs]
    own = parallel.fsdp_min_unit_parameters is not None or any(
        "embed" in name.lower() for name in parallel.fsdp_wrap_classes or ()
    )
    outside = any(held.trainable and not held.group.layered for held in stage.parameters)
    return replace(stage, runs=tuple(runs)), one_unit or (outside and not own)


def block_spans(context: LayerContext, stage: Stage, *, gradient_enters: bool) -> Iterator[BlockSpan]:
    """Yield the spans of a stage's blocks.

    Args:
        context: of all blocks.
        stage: the stage; with runs of blocks in which different parameters train.
        gradient_enters: the first block's input needs a gradient.
    """
    runs, flows = stage.runs or (), gradient_enters
    adapters = sum(h.elements for h in stage.parameters if h.adapter and h.group.layered) / max(1, stage.layers)
    for run in runs:
        own, trained, count = run_context(context, stage, run), adapters, run.count
        for held in stage.parameters:
            if held.trainable and not held.adapter and held.group.layered and held.group.name in run.trained:
                trained += held.elements / sum(each.count for each in runs if held.group.name in each.trained)
        if not flows and not trained:
            yield BlockSpan(count=count, context=own, in_graph=False, unsaved=0.0, trained_elements=0.0)
            continue
        if not flows:
            yield BlockSpan(
                count=1, context=own, in_graph=True, unsaved=_unsaved_in_first(own), trained_elements=trained
            )
            count, flows = count - 1, True
        if count:
            yield BlockSpan(count=count, context=own, in_graph=True, unsaved=0.0, trained_elements=trained)


def _unsaved_in_first(context: LayerContext) -> float:
    """Return the bytes per token that a block does not save because no gradient reaches its input."""
    arch, parts = context.arch, context.parts
    if context.lora_rank is not None:  # adapters train in every block, from its first linear layer on
        return norm_per_token(context, arch.hidden, trained=0.0)
    moe = not arch.dense_layers
    norm = _unsaved_norm(context, trained=parts.first_norm)
    if parts.attention:
        return norm + (_unsaved_mlp(context, moe) if arch.parallel_residual else 0.0)
    attention = (
        attention_half_per_token(context) + half_of_norms_per_token(context) - norm_per_token(context, arch.hidden)
    )
    return attention + _unsaved_mlp(context, moe)


def _unsaved_mlp(context: LayerContext, moe: bool) -> float:
    """Return the bytes that the MLP half does not save if no gradient reaches its input."""
    if not context.parts.mlp:
        return mlp_half_per_token(context, moe=moe)
    own = 0.0 if context.arch.parallel_residual else _unsaved_norm(context, trained=context.parts.norms > 0)
    if moe or context.trains_input("mlp_in") or context.parts.norms or not context.trains_input("mlp_out"):
        return own
    return own + mlp_per_token(context, context.arch.mlp_size) - product_per_token(context, context.arch.mlp_size)


def _unsaved_norm(context: LayerContext, *, trained: bool) -> float:
    """Return the bytes that a norm does not save whose input needs no gradient: all but an RMS norm's output."""
    if trained and context.arch.norm == "layer":
        return 0.0
    return norm_per_token(context, context.arch.hidden, trained=0.0)
