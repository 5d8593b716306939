"""Tensor parallelism as a Hugging Face model plans it, with the styles of ``torch.distributed.tensor.parallel``."""

from __future__ import annotations

import re
from typing import Any

from .build import has_tied_head
from .limits import UnsupportedError

PLAIN = ("replicate", "replicated_with_grad_allreduce")
"""Styles that leave a module's parameters whole on every rank."""


def read_plan(model: Any) -> dict[str, str]:
    """The model's own plan, by module: ``{"model.layers.0.self_attn.q_proj": "colwise", ...}``.

    Raises:
        UnsupportedError: it has none.
    """
    patterns = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not patterns:
        raise UnsupportedError(f"{type(model).__name__} has no plan for tensor parallelism")
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    plan = {}
    for pattern, style in patterns.items():
        found = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        plan.update({name: style for name in names if found.fullmatch(name)})
    return plan


def translate(style: str) -> Any:
    """A plan's style name as a torch style; None: the module stays as it is.

    Raises:
        UnsupportedError: the name stands for something torch has no style for.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    if style in PLAIN:
        return None
    if style in ("colwise", "local_colwise"):
        return ColwiseParallel()
    if style in ("colwise_rep", "colwise_gather_output", "embedding_colwise"):
        return ColwiseParallel(output_layouts=Replicate())
    if style in ("rowwise", "local_rowwise"):
        return RowwiseParallel()
    if style in ("rowwise_rep", "rowwise_split_input", "embedding_rowwise"):
        return RowwiseParallel(input_layouts=Replicate())
    if style == "sequence_parallel":
        return SequenceParallel(use_local_output=True)
    raise UnsupportedError(f"the tensor-parallel style {style!r} cannot be traced")


def split_over(model: Any, mesh: Any) -> None:
    """Apply the model's own plan over a one-dimensional mesh, in place.

    Raises:
        UnsupportedError: it has none, or one that torch has no styles for.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    styles = {name: translate(style) for name, style in read_plan(model).items()}
    tied = has_tied_head(model)
    parallelize_module(model, mesh, {name: style for name, style in styles.items() if style is not None})
    head, tokens = model.get_output_embeddings(), model.get_input_embeddings()
    if tied and isinstance(tokens.weight, DTensor) and tokens.weight.placements == head.weight.placements:
        head.weight = tokens.weight
