"""Sequence parallelism with tensor parallelism: norms and residuals are split along the sequence.

The layout of torchtitan's Llama plan (``models/llama3/infra/parallelize.py``) and of Megatron-LM (arXiv:2205.05198):
norms work on a shard, attention and MLP all-gather it, and their last projection reduce-scatters the result.
transformers takes the length of positions and masks from the embedding's output, which therefore stays whole until the
first block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from ..model.build import transformer_blocks
from ..request.errors import UnsupportedError
from . import extra_tp_styles as tensor_styles


def add_sequence_parallelism(model: Any, styles: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Return a plan with the styles that sequence parallelism adds and changes.

    Args:
        model: without its adapters' wrapper.
        styles: by module; None leaves a module as it is.
        mesh: of the tensor-parallel ranks.

    Raises:
        UnsupportedError: the model does not name its blocks, or has no final norm after them.
    """
    blocks = transformer_blocks(model)
    if not blocks:
        raise UnsupportedError(
            f"{type(model).__name__} does not name the blocks that sequence parallelism runs through"
        )
    plan = dict(styles)
    for name, block in blocks.items():
        for child_name, child in block.named_children():
            plan.update(_child_styles(child, f"{name}.{child_name}", styles))
    tensor_styles.SplitInputSequence()._apply(next(iter(blocks.values())), mesh)
    _gather_after_blocks(model, blocks, plan, mesh)
    return plan


def _child_styles(child: Any, path: str, styles: dict[str, Any]) -> dict[str, Any]:
    """Return the styles for a child of a block: a norm, attention, an MLP or a mixture of experts."""
    if _is_norm(child):
        return {path: SequenceParallel(use_local_output=True)}
    inside = {key: style for key, style in styles.items() if key.startswith(f"{path}.") and style is not None}
    rowwise = [key for key, style in inside.items() if isinstance(style, RowwiseParallel)]
    mixture = any(isinstance(style, tensor_styles.TensorParallelExperts) for style in inside.values())
    if rowwise and not mixture:
        as_dtensor = _are_linears_split(child, path, inside)
        plan: dict[str, Any] = {path: tensor_styles.GatheredSequence(split_output=False, as_dtensor=as_dtensor)}
        for key in rowwise:
            plan[key] = RowwiseParallel(
                input_layouts=styles[key].input_layouts[0], output_layouts=Shard(tensor_styles.SEQUENCE_DIMENSION)
            )
        return plan
    if any(True for _ in child.parameters()):
        return {path: tensor_styles.GatheredSequence(split_output=True, as_dtensor=False)}
    return {}


def _gather_after_blocks(model: Any, blocks: dict[str, Any], plan: dict[str, Any], mesh: Any) -> None:
    """Let the final norm work on a shard, and gather its output for the head, or in the head if that is split."""
    parent = next(iter(blocks)).rpartition(".")[0].rpartition(".")[0]  # model.layers.0 -> model
    body = model.get_submodule(parent)
    norms = [name for name, child in body.named_children() if _is_norm(child)]
    if not norms:
        raise UnsupportedError(f"{type(model).__name__} has no norm after its blocks, where sequence parallelism ends")
    norm = ".".join(filter(None, (parent, norms[-1])))
    plan[norm] = SequenceParallel(use_local_output=True)
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if head is not None and module is head]
    style = plan.get(names[0]) if names else None
    if isinstance(style, ColwiseParallel):
        plan[names[0]] = ColwiseParallel(
            input_layouts=Shard(tensor_styles.SEQUENCE_DIMENSION), output_layouts=style.output_layouts[0]
        )
    else:
        tensor_styles.GatheredOutput()._apply(model.get_submodule(norm), mesh)


def _are_linears_split(module: Any, path: str, styles: dict[str, Any]) -> bool:
    """Return True if every linear layer in the module is split, so that no whole weight meets a DTensor."""
    linear = [name for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    return all(f"{path}.{name}" in styles for name in linear)


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()
