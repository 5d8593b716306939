"""Puts another framework's mixture of experts in the place of transformers', with the sizes that its config states.

Sources: torchtitan ``models/deepseek_v3/__init__.py``, ``models/qwen3/__init__.py``, ``models/llama4/__init__.py`` (how
each family scores); torchtune ``models/llama4/_component_builders.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...request.errors import UnsupportedError
from ..dtypes import default_dtype
from .titan_routing import Routing
from .torchtitan import TitanMoE
from .torchtune import TuneMoE

if TYPE_CHECKING:
    from ...request.request import Request

_SCORES = {"deepseek_v3": "sigmoid", "llama4": "sigmoid", "llama4_text": "sigmoid"}
"""How torchtitan's routers score tokens, by family; the others' take a softmax."""
_FUSED = ("gate_up_proj", "down_proj")
_SHARED = ("shared_experts", "shared_expert")


def replace_experts(model: Any, request: Request) -> None:
    """Replace each mixture of experts of the model, in place, if the loop has its own.

    Raises:
        UnsupportedError: the model's are of another form than those that can be replaced, or torch is too old.
    """
    form, family = request.loop.experts, str(request.config.get("model_type"))
    if not form:
        return
    if not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError(f"torch {torch.__version__} has no grouped matrix product; it came with 2.8")
    config, found = model.config.get_text_config(), 0
    for path, module in list(model.named_modules()):
        if _is_mixture(module):
            model.set_submodule(path, _made_like(module, config, family, form))
            found += 1
    if not found:
        raise UnsupportedError(f"the experts of {type(model).__name__} are not in one tensor and cannot be replaced")
    if family.startswith("llama4") and form != "torchtune":
        _take_plain_attention(model, config)


def _take_plain_attention(model: Any, config: Any) -> None:
    """Leave out what torchtitan's Llama 4 has not: norms and temperatures of queries, masks beside the kernel's own."""
    for module in model.modules():
        if hasattr(module, "qk_norm"):
            del module.qk_norm
        if hasattr(module, "attn_temperature_tuning"):
            module.attn_temperature_tuning = False
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(config.layer_types)


def _is_mixture(module: Any) -> bool:
    tensors = [getattr(getattr(module, "experts", None), name, None) for name in _FUSED]
    return all(isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 3 for tensor in tensors)


def _made_like(module: Any, config: Any, family: str, form: str) -> Any:
    weight, hidden = module.experts.down_proj, config.hidden_size
    size = weight.shape[1] if weight.shape[2] == hidden else weight.shape[2]
    sizes = weight.shape[0], hidden, size
    shared = next((getattr(module, name) for name in _SHARED if getattr(module, name, None) is not None), None)
    with default_dtype(weight.dtype), torch.device(weight.device):
        made = _make(sizes, shared, config, family, form)
    return _Pair(made) if family.startswith("llama4") else made


def _make(sizes: tuple[int, int, int], shared: Any, config: Any, family: str, form: str) -> Any:
    if form == "torchtune":
        return TuneMoE(sizes, config.num_experts_per_tok, shared)
    groups = getattr(config, "n_group", None) or 1
    routing = Routing(
        top_k=config.num_experts_per_tok,
        score_func=_SCORES.get(family, "softmax"),
        route_norm=bool(getattr(config, "norm_topk_prob", False)),
        num_expert_groups=1 if form == "scatter" else groups,
        num_limited_groups=getattr(config, "topk_group", None) or 1,
        fp32_gate=form == "dispatch",
    )
    score_first = family.startswith("llama4") and form != "dispatch"
    return TitanMoE(sizes, routing, shared, form=form, score_first=score_first)


class _Pair(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """A mixture whose block expects the router's logits beside its output, as transformers' Llama 4 does."""

    def __init__(self, mixture: Any) -> None:
        super().__init__()
        self.mixture = mixture

    def forward(self, hidden: Any) -> tuple[Any, None]:
        return self.mixture(hidden), None
