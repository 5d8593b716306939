"""Tensor parallelism by plan: a Hugging Face model's own or the user's, in styles of ``torch.distributed.tensor``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..model.build import has_tied_head
from ..request.limits import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN = ("replicate", "replicated_with_grad_allreduce", "ep_router")
"""Styles that leave parameters whole on every rank; gradients are summed in place, which takes no memory."""
COLUMNS = ("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise")
ROWS = ("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise")
_FIRST = ("embedding_rowwise", "grouped_gemm")


def read_plan(model: Any) -> dict[str, str]:
    """The model's own plan, by module and parameter: ``{"model.layers.0.self_attn.q_proj": "colwise", ...}``.

    Raises:
        UnsupportedError: it has none.
    """
    patterns = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not patterns:
        raise UnsupportedError(f"{type(model).__name__} has no plan for tensor parallelism")
    return expand_plan(model, patterns)[0]


def expand_plan(model: Any, patterns: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A plan with the numbers of layers in the place of ``*``, and the keys that nothing in the model is called by."""
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    plan: dict[str, Any] = {}
    unused = []
    for pattern, style in patterns.items():
        found = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        matches = [name for name in names if found.fullmatch(name)]
        plan.update(dict.fromkeys(matches, style))
        if not matches:
            unused.append(pattern)
    return plan, unused


def translate(style: Any, config: Any = None) -> Any:
    """A style as one that torch applies to a module; None: the module stays as it is.

    Args:
        style: its name in a plan of transformers; or a style of torch's, which it stays.
        config: of the model, for styles that depend on it.

    Raises:
        UnsupportedError: there is no such style.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

    from . import tensor_styles as own

    if isinstance(style, ParallelStyle) or style in PLAIN:
        return None if isinstance(style, str) else style
    if style == "mla_kv_a_proj":
        return own.LatentKeys(config.get_text_config().qk_rope_head_dim)
    made: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel,
        "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
        "sequence_parallel": lambda: SequenceParallel(use_local_output=True),
        "packed_colwise": own.PackedColumns,
        "packed_rowwise": own.PackedRows,
        "moe_tp_experts": own.Experts,
        "moe_identity_expert": own.IdentityExpert,
        "all_reduce": own.SummedOutput,
        "gather": own.SummedOutput,
        "local": own.LocalStyle,
        "local_params": own.LocalStyle,
    }
    alike = {
        "colwise_gather_output": "colwise_rep",
        "embedding_colwise": "colwise_rep",
        "rowwise_split_input": "rowwise_rep",
        "embedding_rowwise": "rowwise_rep",
    }
    name = str(style)
    name = name if name in made else name.replace("local_", "", 1)
    make = made.get(alike.get(name, name))
    if make is None:
        raise UnsupportedError(f"the tensor-parallel style {style!r} cannot be traced")
    return make()


def split_over(model: Any, mesh: Any, *, plan: dict[str, Any] | None = None, sequence_parallel: bool = False) -> None:
    """Apply a plan over a one-dimensional mesh, in place.

    Args:
        model: perhaps with adapters.
        mesh: of the tensor-parallel ranks.
        plan: the user's, styles by module; the model's own when left out.
        sequence_parallel: norms and residuals are split along the sequence as well.

    Raises:
        UnsupportedError: there is no plan, it names what the model does not have, or a style that is not known.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    _refuse_adapted_parameters(base)
    tied = _has_tied_head(base)
    styles = read_plan(base) if plan is None else _users_plan(base, plan)
    parameters = {name for name, _ in base.named_parameters()}
    for name in [name for name in styles if name in parameters]:
        _split_parameter(base, name, styles.pop(name), mesh)
    translated = {name: translate(style, getattr(base, "config", None)) for name, style in styles.items()}
    if sequence_parallel:
        from .sequence_parallel import along_the_sequence

        translated = along_the_sequence(base, translated, mesh)
    modules = dict(base.named_modules())
    for name, style in translated.items():
        if style is not None:
            for part in _parts(modules[name], style):
                parallelize_module(part, mesh, style)
    if tied:
        head, tokens = base.get_output_embeddings(), base.get_input_embeddings()
        if isinstance(tokens.weight, DTensor) and tokens.weight.placements == head.weight.placements:
            head.weight = tokens.weight


def _users_plan(model: Any, patterns: dict[str, Any]) -> dict[str, Any]:
    expanded, unused = expand_plan(model, patterns)
    if unused:
        raise UnsupportedError(f"parallel.tensor_plan names {unused[0]}, which {type(model).__name__} does not have")
    return expanded


def _refuse_adapted_parameters(model: Any) -> None:
    """Peft adapts fused experts by adding to their parameters, whole, which no plan splits."""
    for name, module in model.named_modules():
        if type(module).__name__ == "ParamWrapper":
            raise UnsupportedError(f"adapters on fused experts ({name}) cannot be traced under tensor parallelism")


def _has_tied_head(model: Any) -> bool:
    return hasattr(model, "get_output_embeddings") and has_tied_head(model)


def _parts(module: Any, style: Any) -> list[Any]:
    """The module; of an adapted one, the frozen layer and the matrix that has the split dimension."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    from .tensor_styles import PackedColumns, PackedRows

    if not hasattr(module, "base_layer"):
        return [module]
    matrices: list[Any] = []
    if isinstance(style, (ColwiseParallel, PackedColumns)):
        matrices = list(module.lora_B.values())
    elif isinstance(style, (RowwiseParallel, PackedRows)):
        matrices = list(module.lora_A.values())
    return [module.base_layer, *matrices]


def _split_parameter(model: Any, name: str, style: Any, mesh: Any) -> None:
    """One parameter that a plan names itself, such as the fused experts of a layer."""
    from .tensor_styles import split_parameter

    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    dimensions = owner._parameters[leaf].ndim
    known = str(style).replace("local_", "", 1)
    if known in COLUMNS:
        split_parameter(owner, leaf, max(dimensions - 2, 0), mesh)
    elif known in ROWS:
        if leaf != "bias":
            split_parameter(owner, leaf, dimensions - 1, mesh)
    elif known in _FIRST:
        split_parameter(owner, leaf, 0, mesh)
    elif known == "embedding_colwise":
        split_parameter(owner, leaf, 1, mesh)
    elif known not in PLAIN:
        raise UnsupportedError(f"the tensor-parallel style {style!r} of {name} cannot be traced")
