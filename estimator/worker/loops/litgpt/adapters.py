"""LitGPT's linear layers with LoRA, operation by operation.

Source: LitGPT 0.5.13 ``lora.py`` (``LoRALinear``, ``LoRAQKVLinear``), the same since 0.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


class LoRALinear(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """A linear layer with an adapter beside it.

    Args:
        size_in: of its input.
        size_out: of its output.
        bias: it has a bias.
        rank: of the adapter; 0: it has none.
        dropout: of the adapter's input.
    """

    def __init__(self, size_in: int, size_out: int, *, bias: bool, rank: int, dropout: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size_in, size_out, bias=bias)
        self.rank, self.dropout = rank, dropout
        if rank:
            self.lora_A = torch.nn.Parameter(torch.empty((rank, size_in)))
            self.lora_B = torch.nn.Parameter(torch.empty((size_out, rank)))

    def dropped(self, tensor: Any) -> Any:
        """Return the adapter's input."""
        return functional.dropout(tensor, self.dropout, self.training) if self.dropout else tensor

    def forward(self, tensor: Any) -> Any:
        """Return the sum of the layer's and the adapter's product."""
        pretrained = self.linear(tensor)
        if not self.rank:
            return pretrained
        adapted = (self.dropped(tensor) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)) * 1.0
        return pretrained + adapted


class LoRAQKVLinear(LoRALinear):
    """Queries, keys and values as one linear layer, of which an adapter changes parts.

    Args:
        size_in: of its input.
        sizes: of queries, keys and values.
        adapted: which of them have an adapter.
        bias: it has a bias.
        rank: of each adapter.
        dropout: of their input.
    """

    def __init__(
        self,
        size_in: int,
        sizes: tuple[int, int, int],
        adapted: tuple[bool, bool, bool],
        *,
        bias: bool,
        rank: int,
        dropout: float,
    ) -> None:
        super().__init__(size_in, sum(sizes), bias=bias, rank=0, dropout=dropout)
        self.adapted = sum(adapted) if rank else 0
        self.grouped, self.complete = sizes[0] == sizes[1], all(adapted)
        self.parts = [size for size, has in zip(sizes, adapted) if has]  # noqa: B905 - not in Python 3.9
        self.width = sum(sizes)
        if self.adapted:
            self.lora_A = torch.nn.Parameter(torch.empty((rank * self.adapted, size_in)))
            self.lora_B = torch.nn.Parameter(torch.empty(sum(self.parts), rank))
            self.register_buffer("_lora_ind", torch.empty(sum(self.parts), dtype=torch.long), persistent=False)

    def forward(self, tensor: Any) -> Any:
        """Return the sum of the layer's and the adapters' product, these padded to all three parts."""
        pretrained = self.linear(tensor)
        if not self.adapted:
            return pretrained
        after_a = functional.linear(self.dropped(tensor), self.lora_A)
        after_b = self._products(after_a.transpose(-2, -1), self.lora_B.unsqueeze(-1)).transpose(-2, -1)
        return pretrained + self._padded(after_b) * 1.0

    def _products(self, tensor: Any, weight: Any) -> Any:
        if self.grouped:
            return functional.conv1d(tensor, weight, groups=self.adapted)
        parts = zip(tensor.chunk(self.adapted, dim=1), weight.split(self.parts))  # noqa: B905 - not in Python 3.9
        return torch.cat([functional.conv1d(part, matrix) for part, matrix in parts], dim=1)

    def _padded(self, tensor: Any) -> Any:
        if self.complete:
            return tensor
        result = tensor.new_zeros(*tensor.shape[:-1], self.width)
        return result.index_copy_(dim=-1, index=self._lora_ind, source=tensor)
