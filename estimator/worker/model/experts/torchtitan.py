"""torchtitan's mixture of experts, operation by operation, in its three forms.

``scatter``: from August 2025 (0.2.0 ``models/moe/moe.py``); ``matmul``: from 2025-11-21 (0.2.1 and 0.2.2, the same
file); ``dispatch``: from April 2026 (``models/common/moe.py``, ``models/common/token_dispatcher.py`` of August 2026).
The weights of all experts are three tensors, multiplied by ``torch._grouped_mm`` in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .titan_routing import Router, Routing, exchanged, from_padded_order, in_padded_order


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
