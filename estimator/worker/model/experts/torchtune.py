"""torchtune's mixture of experts (Llama 4), operation by operation, as on Hopper and newer GPUs.

Source: torchtune's main branch of June 2025 to its end in April 2026 (no release has it): ``modules/moe/moe.py``,
``experts.py``, ``indices.py``. The rows from which tokens are gathered are expanded to whole matrices of int64, which
``vstack`` and the permutation write out. How many tokens an expert gets depends on values; each gets as many here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

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
