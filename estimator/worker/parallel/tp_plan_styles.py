"""Styles that tensor-parallel plans name: what each stands for, on modules and on single parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from ..request.errors import UnsupportedError
from . import extra_tp_styles as tensor_styles

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE_STYLES = ("replicate", "replicated_with_grad_allreduce", "ep_router")
"""Styles that leave parameters whole on every rank; their gradients are summed in place, without temporary memory."""
MODULE_STYLES: dict[str, Callable[[], Any]] = {
    "colwise": ColwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": lambda: SequenceParallel(use_local_output=True),
    "packed_colwise": tensor_styles.PackedColumns,
    "packed_rowwise": tensor_styles.PackedRows,
    "moe_tp_experts": tensor_styles.TensorParallelExperts,
    "moe_identity_expert": tensor_styles.IdentityExpert,
    "all_reduce": tensor_styles.AllReducedOutput,
    "gather": tensor_styles.AllReducedOutput,
    "local": tensor_styles.LocalStyle,
    "local_params": tensor_styles.LocalStyle,
}
"""Styles of transformers' plans as styles that torch applies to a module."""
COLUMN, ROW = -2, -1
SPLIT_DIMENSIONS: dict[str, int] = {
    **dict.fromkeys(("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise"), COLUMN),
    **dict.fromkeys(("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise"), ROW),
    **dict.fromkeys(("embedding_rowwise", "grouped_gemm"), 0),
    "embedding_colwise": 1,
}
"""The dimension that a style splits of a parameter named in the plan itself, such as a layer's fused experts."""


def module_style(style: Any, config: Any = None) -> Any:
    """Return a plan's style as one that torch applies to a module; None: the module is not changed.

    Args:
        style: its name in a plan of transformers, or a style of torch's, which is returned as it is.
        config: of the model, for styles that depend on it.

    Raises:
        UnsupportedError: there is no such style.
    """
    if isinstance(style, ParallelStyle):
        return style
    if style in WHOLE_STYLES:
        return None
    if style == "mla_kv_a_proj":
        return tensor_styles.LatentKeyValueProjection(config.get_text_config().qk_rope_head_dim)
    name = str(style)
    make = MODULE_STYLES.get(name) or MODULE_STYLES.get(_without_local(name))
    if make is None:
        raise UnsupportedError(f"the tensor-parallel style {style!r} cannot be traced")
    return make()


def split_planned_parameter(model: Any, name: str, style: Any, mesh: Any) -> None:
    """Split one parameter that the plan names itself.

    Raises:
        UnsupportedError: there is no such style.
    """
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    style_name = _without_local(str(style))
    dimension = SPLIT_DIMENSIONS.get(style_name)
    if dimension is None:
        if style_name not in WHOLE_STYLES:
            raise UnsupportedError(f"the tensor-parallel style {style!r} of {name} cannot be traced")
        return
    if dimension == ROW and leaf == "bias":  # added after the ranks' outputs are summed: whole on every rank
        return
    if dimension < 0:
        dimension = max(owner._parameters[leaf].ndim + dimension, 0)
    tensor_styles.split_parameter(owner, leaf, dimension, mesh)


def adapter_matrices(module: Any, style: Any) -> list[Any]:
    """Return the LoRA matrices of an adapted module that have the dimension which the style splits."""
    if not hasattr(module, "base_layer"):
        return []
    if isinstance(style, (ColwiseParallel, tensor_styles.PackedColumns)):
        return list(module.lora_B.values())
    if isinstance(style, (RowwiseParallel, tensor_styles.PackedRows)):
        return list(module.lora_A.values())
    return []


def _without_local(name: str) -> str:
    return name.replace("local_", "", 1)
