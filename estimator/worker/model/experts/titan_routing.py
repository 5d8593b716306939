"""torchtitan's router and the orders into which it brings tokens, operation by operation.

Sources: torchtitan 0.2.0 to 0.2.2 ``models/moe/moe.py``, ``models/moe/utils.py``; its main branch of August 2026
``models/common/moe.py``, ``models/common/token_dispatcher.py``. How many tokens an expert gets depends on values; each
gets as many as any other here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

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
