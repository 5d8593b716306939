"""Tensor parallelism by plan: the model's own or the user's, in styles of ``torch.distributed.tensor``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from ..model.build import has_tied_head, without_adapters
from ..request.errors import RefusedError, UnsupportedError
from ..request.user_code import import_attribute, refusing_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..request.request import Request


def load_user_plan(model: Any, request: Request) -> dict[str, Any] | None:
    """Return the user's plan for this model, styles by module; None: the job names no plan.

    Raises:
        RefusedError: the plan cannot be imported, or is no dict.
    """
    name, folder = request.parallel.tensor_plan, request.code.folder if request.code else ""
    if name is None or isinstance(name, dict):
        return name
    if ":" not in name:  # a.b.plan
        name = ":".join(name.rpartition(".")[::2])
    plan = import_attribute(name, folder)
    if callable(plan):
        with refusing_errors(name, folder):
            given = (without_adapters(model),)
            plan = plan(*given if _takes_arguments(plan) else ())
    if not isinstance(plan, dict):
        raise RefusedError(f"{name} gives a {type(plan).__name__}, not a dict of styles by module")
    return plan


def _takes_arguments(function: Any) -> bool:
    """Return True if a function takes the model; AutoModel calls plans without arguments."""
    keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return any(each.kind not in keywords for each in inspect.signature(function).parameters.values())


def apply_tensor_parallelism(
    model: Any, mesh: Any, *, plan: dict[str, Any] | None = None, sequence_parallel: bool = False
) -> None:
    """Split a model over a one-dimensional mesh, in place.

    Args:
        model: with or without adapters.
        mesh: of the tensor-parallel ranks.
        plan: the user's, styles by module; the model's own by default.
        sequence_parallel: split norms and residuals along the sequence as well.

    Raises:
        UnsupportedError: there is no plan, or it names an unknown style or a module that the model does not have.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    from .tp_plan_styles import adapter_matrices, module_style, split_planned_parameter

    base = without_adapters(model)
    _refuse_adapted_parameters(base)
    tied = has_tied_head(base)
    plan = _model_plan(base) if plan is None else _complete_user_plan(base, plan)
    parameters = {name for name, _ in base.named_parameters()}
    for name in [name for name in plan if name in parameters]:
        split_planned_parameter(base, name, plan.pop(name), mesh)
    styles = {name: module_style(style, getattr(base, "config", None)) for name, style in plan.items()}
    if sequence_parallel:
        from .sequence_parallel import add_sequence_parallelism

        styles = add_sequence_parallelism(base, styles, mesh)
    modules = dict(base.named_modules())
    for name, style in styles.items():
        if style is None:
            continue
        module = modules[name]
        for part in (getattr(module, "base_layer", module), *adapter_matrices(module, style)):
            parallelize_module(part, mesh, style)
    if tied:
        _tie_head_again(base)


def expand_plan(model: Any, patterns: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a plan with layer numbers in place of ``*``, and the patterns that match nothing in the model."""
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    plan: dict[str, Any] = {}
    unused = []
    for pattern, style in patterns.items():
        expression = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        matches = [name for name in names if expression.fullmatch(name)]
        plan.update(dict.fromkeys(matches, style))
        if not matches:
            unused.append(pattern)
    return plan, unused


def _model_plan(model: Any) -> dict[str, str]:
    """Return the model's own plan, expanded: ``{"model.layers.0.self_attn.q_proj": "colwise", ...}``."""
    patterns = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not patterns:
        raise UnsupportedError(f"{type(model).__name__} has no plan for tensor parallelism")
    return expand_plan(model, patterns)[0]


def _complete_user_plan(model: Any, patterns: dict[str, Any]) -> dict[str, Any]:
    """Return the user's plan, expanded; all of its patterns must match."""
    expanded, unused = expand_plan(model, patterns)
    if unused:
        raise UnsupportedError(f"parallel.tensor_plan names {unused[0]}, which {type(model).__name__} does not have")
    return expanded


def _refuse_adapted_parameters(model: Any) -> None:
    """Refuse adapters on fused experts: peft adds them to whole parameters, which no plan splits."""
    for name, module in model.named_modules():
        if type(module).__name__ == "ParamWrapper":
            raise UnsupportedError(f"adapters on fused experts ({name}) cannot be traced under tensor parallelism")


def _tie_head_again(model: Any) -> None:
    """Make the head's weight the embedding's again, where both were split the same way."""
    from torch.distributed.tensor import DTensor

    head, tokens = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(tokens.weight, DTensor) and tokens.weight.placements == head.weight.placements:
        head.weight = tokens.weight
