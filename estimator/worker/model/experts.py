"""Mixtures of experts of torchtitan and torchtune, operation by operation, in the place of transformers'.

torchtitan's has three forms. ``scatter``: from August 2025 (0.2.0 ``models/moe/moe.py``); ``matmul``: from 2025-11-21
(0.2.1 and 0.2.2, the same file); ``dispatch``: from April 2026 (``models/common/moe.py``,
``models/common/token_dispatcher.py`` of August 2026). The weights of all experts are three tensors, multiplied by
``torch._grouped_mm`` in bf16. How each family scores: torchtitan ``models/deepseek_v3/__init__.py``,
``models/qwen3/__init__.py``, ``models/llama4/__init__.py``; torchtune ``models/llama4/_component_builders.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ..request.protocol import UnsupportedError
from .build import default_dtype

if TYPE_CHECKING:
    from ..request.request import Request

# torchtitan's router and the orders into which it brings tokens, operation by operation.
#
# Sources: torchtitan 0.2.0 to 0.2.2 ``models/moe/moe.py``, ``models/moe/utils.py``; its main branch of August 2026
# ``models/common/moe.py``, ``models/common/token_dispatcher.py``. How many tokens an expert gets depends on values;
# each gets as many as any other here.


ALIGNMENT = 8
"""``TOKEN_GROUP_ALIGN_SIZE_M`` of bf16: until April 2026 each expert's tokens were padded to a multiple of it."""


@dataclass(frozen=True)
class Routing:
    """A router's settings, under torchtitan's names."""

    top_k: int
    score_func: str
    """``sigmoid`` or ``softmax``."""
    route_norm: bool
    num_expert_groups: int = 1
    """Groups of which ``num_limited_groups`` are considered for each token (since December 2025); 1: none."""
    num_limited_groups: int = 1
    fp32_gate: bool = False
    """The gate multiplies in fp32 (since March 2026)."""


class Router(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``TokenChoiceTopKRouter``.

    Args:
        hidden: size of a token.
        count: of the experts.
        routing: its settings.
    """

    def __init__(self, hidden: int, count: int, routing: Routing) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, count, bias=False)
        self.routing = routing

    def forward(self, tokens: Any, bias: Any) -> tuple[Any, Any]:
        """Return the scores of the chosen experts of each token, and which they are."""
        routing = self.routing
        if routing.fp32_gate:  # under autocast to fp32, which casts both
            scores = functional.linear(tokens.float(), self.gate.weight.float())
        else:
            scores = self.gate(tokens).to(torch.float32)
        scores = torch.sigmoid(scores) if routing.score_func == "sigmoid" else functional.softmax(scores, dim=-1)
        choice = scores + bias
        if routing.num_expert_groups > 1:
            choice = self._of_best_groups(choice)
        _, chosen = torch.topk(choice, k=routing.top_k, dim=-1)
        found = scores.gather(dim=1, index=chosen)
        if routing.route_norm:
            found = found / (found.sum(dim=-1, keepdim=True) + 1e-20)
        return found * 1.0, chosen

    def _of_best_groups(self, scores: Any) -> Any:
        groups, routing = scores.view(-1, self.routing.num_expert_groups, self._group_size()), self.routing
        best, _ = groups.topk(2, dim=-1)
        _, chosen = torch.topk(best.sum(dim=-1), k=routing.num_limited_groups, dim=-1, sorted=False)
        mask = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device)
        mask.scatter_(1, chosen, value=False)
        return groups.masked_fill(mask.unsqueeze(-1), float("-inf")).view(scores.shape)

    def _group_size(self) -> int:
        return int(self.gate.out_features) // self.routing.num_expert_groups


def in_padded_order(tokens: Any, experts: int) -> tuple[Any, Any]:
    """Return the tokens in the order of the experts, padded, and the rows that they come from (``_permute``).

    Args:
        tokens: rows, those of an expert one after the other, or those of a rank.
        experts: of this rank.
    """
    length = -(-(tokens.shape[0] + experts * ALIGNMENT) // ALIGNMENT) * ALIGNMENT
    rows = torch.full((length,), -1, dtype=torch.int32, device=tokens.device)
    tokens = torch.vstack((tokens, tokens.new_zeros(tokens.shape[-1])))
    return tokens[rows, :], rows


def from_padded_order(tokens: Any, rows: Any, count: int) -> Any:
    """Return ``count`` tokens in the order that they had before (``_unpermute``)."""
    result = tokens.new_empty((count + 1, tokens.shape[-1]))
    result[rows, :] = tokens
    return result[:-1]


def exchanged(tokens: Any) -> Any:
    """Return the tokens that other ranks send for these (``all_to_all_single_autograd``): as many, on average."""
    return _AllToAll.apply(tokens)


_exchanges = [0]
"""Number of exchanges whose result is being allocated: selective checkpointing keeps it."""


def exchanging() -> bool:
    """Return True while an exchange allocates what it receives."""
    return _exchanges[0] > 0


class _AllToAll(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, tokens: Any) -> Any:
        del ctx
        _exchanges[0] += 1
        try:
            return torch.empty_like(tokens, memory_format=torch.contiguous_format)
        finally:
            _exchanges[0] -= 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        return torch.empty_like(gradient, memory_format=torch.contiguous_format)


class TitanExperts(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``GroupedExperts``, and the order of its tokens, which expert parallelism changes in hooks around it.

    Args:
        count: of the experts.
        hidden: size of a token.
        size: of an expert.
        padded: each expert's tokens are padded.
    """

    def __init__(self, count: int, hidden: int, size: int, *, padded: bool) -> None:
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.empty(count, size, hidden))
        self.w2 = torch.nn.Parameter(torch.empty(count, hidden, size))
        self.w3 = torch.nn.Parameter(torch.empty(count, size, hidden))
        self.num_experts, self.padded, self.ranks = count, padded, 1

    def split_over(self, ranks: int) -> None:
        """Keep this rank's experts only."""
        self.ranks = ranks
        for name, weight in list(self.named_parameters(recurse=False)):
            local = weight.new_empty((self.num_experts // ranks, *weight.shape[1:]))
            setattr(self, name, torch.nn.Parameter(local, requires_grad=weight.requires_grad))

    def forward(self, tokens: Any) -> Any:
        """Return what the experts make of the tokens, which have their order."""
        if self.ranks > 1:
            return self._exchanged(tokens)
        if not self.padded:
            return self._products(tokens)
        ordered, rows = in_padded_order(tokens, self.num_experts)
        return from_padded_order(self._products(ordered), rows, tokens.shape[0])

    def _exchanged(self, tokens: Any) -> Any:
        """Return the tokens that other ranks' experts have worked on."""
        count, local = tokens.shape[0], self.num_experts // self.ranks
        if not self.padded:
            received = exchanged(tokens)
            rows = torch.arange(count, device=tokens.device)
            results = self._products(received[rows, :])
            back = results.new_empty(received.shape)
            back[rows, :] = results
            return exchanged(back)
        ordered, rows = in_padded_order(exchanged(tokens), local)
        results = self._products(ordered)  # which the module's hooks hold until it returns
        return exchanged(from_padded_order(results, rows, count))

    def _products(self, tokens: Any) -> Any:
        offsets = torch.zeros(self.w1.shape[0], dtype=torch.int32, device=tokens.device)
        inner = functional.silu(
            torch._grouped_mm(tokens.bfloat16(), self.w1.bfloat16().transpose(-2, -1), offs=offsets)
        )
        inner = inner * torch._grouped_mm(tokens.bfloat16(), self.w3.bfloat16().transpose(-2, -1), offs=offsets)
        return torch._grouped_mm(inner, self.w2.bfloat16().transpose(-2, -1), offs=offsets).type_as(tokens)


class TitanMoE(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``MoE``.

    Args:
        sizes: number of experts, size of a token and of an expert.
        routing: of the router.
        shared: the shared experts; None: there are none.
        form: ``scatter``, ``matmul`` or ``dispatch``.
        score_first: tokens are scored before the experts and not after them, as in Llama 4 before ``dispatch``.
    """

    def __init__(
        self, sizes: tuple[int, int, int], routing: Routing, shared: Any, *, form: str, score_first: bool
    ) -> None:
        super().__init__()
        count, hidden, size = sizes
        self.experts = TitanExperts(count, hidden, size, padded=form != "dispatch")
        self.router = Router(hidden, count, routing)
        self.shared_experts = shared
        self.form, self.score_first = form, score_first
        for name in ("expert_bias", "tokens_per_expert"):
            self.register_buffer(name, torch.zeros(count, dtype=torch.float32))

    def forward(self, hidden: Any) -> Any:
        """Return the sum of the routed and the shared experts' outputs."""
        tokens = hidden.view(-1, hidden.shape[-1])
        scores, chosen = self.router(tokens, self.expert_bias)
        self.tokens_per_expert.add_(1.0)
        run = {"scatter": self._scattered, "matmul": self._multiplied, "dispatch": self._dispatched}[self.form]
        return run(tokens, scores, chosen).reshape(hidden.shape)

    def _scattered(self, tokens: Any, scores: Any, chosen: Any) -> Any:
        order = torch.argsort(chosen.view(-1), stable=True)
        ordered_scores = scores.view(-1)[order]
        rows = order // self.router.routing.top_k
        del order
        rows = rows.reshape(-1, 1).expand(-1, tokens.shape[-1])
        routed = torch.gather(tokens, dim=0, index=rows)
        if self.score_first:
            routed = _scored(routed, ordered_scores)
        results = self.experts(routed)
        out = self.shared_experts(tokens) if self.shared_experts is not None else torch.zeros_like(tokens)
        if not self.score_first:
            results = _scored(results, ordered_scores)
        return out.scatter_add(dim=0, index=rows, src=results)

    def _multiplied(self, tokens: Any, scores: Any, chosen: Any) -> Any:
        top_k, width = self.router.routing.top_k, tokens.shape[-1]
        order = torch.argsort(chosen.view(-1), stable=True)
        ordered_scores = scores.view(-1)[order]
        routed = tokens[order // top_k]
        if self.score_first:
            routed = _scored(routed, ordered_scores)
        results = self.experts(routed)
        out = self.shared_experts(tokens) if self.shared_experts is not None else None
        unsorted = torch.zeros((order.shape[0], width), dtype=results.dtype, device=results.device)
        unsorted[order] = results
        unsorted = unsorted.reshape(-1, top_k, width)
        if self.score_first:
            summed = unsorted.sum(dim=1)
        else:
            summed = torch.bmm(scores.reshape(-1, 1, top_k), unsorted.float()).to(tokens.dtype).squeeze(1)
        return summed if out is None else out + summed

    def _dispatched(self, tokens: Any, scores: Any, chosen: Any) -> Any:
        routing_map = torch.zeros(scores.shape[0], self.experts.num_experts, dtype=torch.bool, device=scores.device)
        counts = routing_map.scatter_(-1, chosen, value=True).sum(dim=0)
        summed = self._routed(tokens, scores, chosen)
        del routing_map, counts
        if self.shared_experts is None:
            return summed
        return summed + self.shared_experts(tokens)

    def _routed(self, tokens: Any, scores: Any, chosen: Any) -> Any:
        order = torch.argsort(chosen.view(-1), stable=True)
        ordered_scores = scores.view(-1)[order]
        rows = order // self.router.routing.top_k
        del order
        routed = tokens[rows]
        results = self.experts(routed)
        del routed
        out = torch.zeros_like(tokens)
        results = _scored(results, ordered_scores)
        return out.scatter_add(dim=0, index=rows.reshape(-1, 1).expand(-1, tokens.shape[-1]), src=results)


def _scored(tokens: Any, scores: Any) -> Any:
    return (tokens.to(torch.float32) * scores.reshape(-1, 1)).to(tokens.dtype)


# torchtune's mixture of experts (Llama 4), operation by operation, as on Hopper and newer GPUs.
#
# Source: torchtune's main branch of June 2025 to its end in April 2026 (no release has it): ``modules/moe/moe.py``,
# ``experts.py``, ``indices.py``. The rows from which tokens are gathered are expanded to whole matrices of int64,
# which ``vstack`` and the permutation write out. How many tokens an expert gets depends on values; each gets as many
# here.


TUNE_ALIGNMENT = 16
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
        each = -(-each // TUNE_ALIGNMENT) * TUNE_ALIGNMENT
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
