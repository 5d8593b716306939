"""Sequence parallelism beside tensor parallelism: norms and residuals hold a part of the sequence on each rank.

The layout of torchtitan's Llama plan (``models/llama3/infra/parallelize.py``) and of Megatron-LM (arXiv:2205.05198):
norms work on a part, attention and MLP gather it, and their last projection scatters it again. transformers takes the
length of its positions and masks from the embedding's output, which therefore stays whole until the first block.
"""

from __future__ import annotations

from typing import Any

from ..request.limits import UnsupportedError


def along_the_sequence(model: Any, styles: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """A plan with the styles that sequence parallelism adds and changes.

    Args:
        model: without its adapters' wrapper.
        styles: by module; None leaves one as it is.
        mesh: of the tensor-parallel ranks.

    Raises:
        UnsupportedError: the model does not name its blocks, or has no final norm after them.
    """
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import RowwiseParallel, SequenceParallel

    from . import tensor_styles as own

    blocks = _blocks(model)
    plan = dict(styles)
    for name, block in blocks.items():
        for child_name, child in block.named_children():
            path = f"{name}.{child_name}"
            if _is_norm(child):
                plan[path] = SequenceParallel(use_local_output=True)
                continue
            inside = {key: style for key, style in styles.items() if key.startswith(f"{path}.") and style is not None}
            rows = [key for key, style in inside.items() if isinstance(style, RowwiseParallel)]
            mixture = any(isinstance(style, own.Experts) for style in inside.values())
            if rows and not mixture:
                plan[path] = own.WholeSequence(split_output=False, as_dtensor=_all_split(child, path, inside))
                for key in rows:
                    plan[key] = RowwiseParallel(
                        input_layouts=styles[key].input_layouts[0], output_layouts=Shard(own.SEQUENCE)
                    )
            elif any(True for _ in child.parameters()):
                plan[path] = own.WholeSequence(split_output=True, as_dtensor=False)
    own.SplitInput()._apply(next(iter(blocks.values())), mesh)
    _leave_the_sequence(model, blocks, plan, mesh)
    return plan


def _leave_the_sequence(model: Any, blocks: dict[str, Any], plan: dict[str, Any], mesh: Any) -> None:
    """The last norm works on a part; the head gathers it, or a head that is not split gets it whole."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel

    from . import tensor_styles as own

    first = next(iter(blocks))
    parent = first.rpartition(".")[0].rpartition(".")[0]  # model.layers.0 -> model
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
        plan[names[0]] = ColwiseParallel(input_layouts=Shard(own.SEQUENCE), output_layouts=style.output_layouts[0])
    else:
        own.GatherOutput()._apply(model.get_submodule(norm), mesh)


def _blocks(model: Any) -> dict[str, Any]:
    wanted = set(getattr(model, "_no_split_modules", None) or ())
    blocks = {name: module for name, module in model.named_modules() if type(module).__name__ in wanted}
    if not blocks:
        raise UnsupportedError(
            f"{type(model).__name__} does not name the blocks that sequence parallelism runs through"
        )
    return blocks


def _all_split(module: Any, path: str, styles: dict[str, Any]) -> bool:
    """Every linear layer in the module is split, so that none meets a DTensor with a weight that is whole."""
    import torch

    linear = [name for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    return all(f"{path}.{name}" in styles for name in linear)


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()
