"""Puts another framework's mixture of experts in the place of transformers', with the sizes that its config states.

Sources: torchtitan ``models/deepseek_v3/__init__.py``, ``models/qwen3/__init__.py``, ``models/llama4/__init__.py`` (how
each family scores); torchtune ``models/llama4/_component_builders.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ...request.protocol import UnsupportedError
from ..build import default_dtype
from .torchtitan import Routing, TitanMoE

if TYPE_CHECKING:
    from ...request.request import Request

# torchtune's mixture of experts (Llama 4), operation by operation, as on Hopper and newer GPUs.
#
# Source: torchtune's main branch of June 2025 to its end in April 2026 (no release has it): ``modules/moe/moe.py``,
# ``experts.py``, ``indices.py``. The rows from which tokens are gathered are expanded to whole matrices of int64,
# which ``vstack`` and the permutation write out. How many tokens an expert gets depends on values; each gets as many
# here.


ALIGNMENT = 16
"""``ALIGN_SIZE_M``: each expert's tokens are padded to a multiple of it."""


class TuneRouter(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``TokenChoiceTopKRouter``.

    Args:
        hidden: size of a token.
        count: of the experts.
        top_k: experts of a token.
    """

    def __init__(self, hidden: int, count: int, top_k: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, count, bias=False)
        self.top_k = top_k

    def forward(self, tokens: Any) -> tuple[Any, Any]:
        """Return the scores in the order of the experts, and the rows that they belong to."""
        scores = torch.sigmoid(self.gate(tokens).to(torch.float32)).to(tokens.dtype)
        best, chosen = torch.topk(scores, k=self.top_k, dim=1)
        self.selected_experts_indices = chosen  # which torchtune's router keeps
        order = torch.argsort(chosen.view(-1), stable=True)
        best = best.view(-1)[order]
        return best, order // self.top_k


class TuneExperts(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``GroupedExperts``.

    Args:
        count: of the experts.
        hidden: size of a token.
        size: of an expert.
    """

    def __init__(self, count: int, hidden: int, size: int) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Parameter(torch.empty(count, hidden, size))
        self.down_proj = torch.nn.Parameter(torch.empty(count, size, hidden))
        self.up_proj = torch.nn.Parameter(torch.empty(count, hidden, size))
        self.num_experts = count

    def forward(self, tokens: Any) -> Any:
        """Return what the experts make of the tokens, which have their order."""
        offsets = torch.zeros(self.num_experts, dtype=torch.int32, device=tokens.device)
        inner = functional.silu(torch._grouped_mm(tokens, self.gate_proj, offs=offsets))
        inner = inner * torch._grouped_mm(tokens, self.up_proj, offs=offsets)
        return torch._grouped_mm(inner, self.down_proj, offs=offsets)


class TuneMoE(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``MoE``.

    Args:
        sizes: number of experts, size of a token and of an expert.
        top_k: experts of a token.
        shared: the shared expert; None: there is none.
    """

    def __init__(self, sizes: tuple[int, int, int], top_k: int, shared: Any) -> None:
        super().__init__()
        count, hidden, size = sizes
        self.experts = TuneExperts(count, hidden, size)
        self.router = TuneRouter(hidden, count, top_k)
        self.shared_expert = shared

    def forward(self, hidden: Any) -> Any:
        """Return the sum of the routed and the shared expert's outputs."""
        width = hidden.shape[-1]
        tokens = hidden.reshape(-1, width)
        scores, rows = self.router(tokens)
        rows = rows.reshape(-1, 1).expand(-1, width)
        routed = torch.gather(tokens, dim=0, index=rows)
        routed = routed * scores.reshape(-1, 1)
        padded = self._padded_rows(rows.shape[0], tokens.device)
        rows = torch.vstack((rows, rows.new_zeros(width)))
        rows = rows[padded, :]
        routed = torch.vstack((routed, routed.new_zeros(width)))
        routed = routed[padded, :]
        results = self.experts(routed)
        out = self.shared_expert(tokens) if self.shared_expert is not None else torch.zeros_like(tokens)
        out = out.scatter_add(dim=0, index=rows, src=results)
        return out.reshape(hidden.shape)

    def _padded_rows(self, count: int, device: Any) -> Any:
        each = -(-count // self.experts.num_experts)
        each = -(-each // ALIGNMENT) * ALIGNMENT
        return torch.full((each * self.experts.num_experts,), -1, dtype=torch.int32, device=device)


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
