"""Stand-in for bitsandbytes' optimizers: their states, and steps that take no other memory.

Source: bitsandbytes 0.43 to 0.50 ``optim/optimizer.py`` (``init_state``, ``get_state_buffer``): 8-bit states from 4,096
elements on, with an fp32 scale per 256 of them, else fp32 ones; paged states from 100,000 elements on are managed
memory, which torch does not allocate. Kernels update parameters in place.
"""

from __future__ import annotations

from typing import Any

import torch

PATH = "bitsandbytes"
"""What a request's optimizer has for its path."""
_MIN_QUANTIZED, _BLOCK = 4096, 256
_MIN_PAGED = 100_000
_CODES = 256


class BlockwiseOptimizer(torch.optim.Optimizer):  # type: ignore[misc] # torch is not type-checked
    """An optimizer with 8-bit or fp32 states.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        states: number of states.
        bits: of each.
        paged: large states are managed memory.
        whole_embeddings: parameters marked as embeddings have fp32 states (the Trainer's ``GlobalOptimManager``).
    """

    def __init__(
        self, params: Any, lr: float = 1e-4, *, states: int, bits: int, paged: bool, whole_embeddings: bool
    ) -> None:
        super().__init__(params, {"lr": lr})
        self.states, self.bits, self.paged, self.whole_embeddings = states, bits, paged, whole_embeddings
        self.managed: list[Any] = []
        """States in managed memory."""
        self._codes: list[Any] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Make the states; gradients that are not contiguous are copied."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self._make_states(parameter)
                parameter.grad = parameter.grad.contiguous()

    def _make_states(self, parameter: Any) -> None:
        size, state = parameter.numel(), self.state[parameter]
        whole = self.whole_embeddings and getattr(parameter, "vramtop_embedding", False)
        quantized = self.bits == 8 and size >= _MIN_QUANTIZED and not whole
        if quantized and not self._codes:
            self._codes = [torch.zeros(_CODES, dtype=torch.float32) for _ in range(min(2, self.states))]
        for number in range(1, self.states + 1):
            made = torch.zeros_like(parameter, dtype=torch.uint8 if quantized else torch.float32)
            state[f"state{number}"] = made
            if self.paged and size >= _MIN_PAGED:
                self.managed.append(made)
            if quantized:
                state[f"absmax{number}"] = torch.zeros(-(-size // _BLOCK), dtype=torch.float32)
        if quantized:
            state["codes"] = self._codes


def mark_embeddings(model: Any) -> None:
    """Mark the parameters of embeddings, whose states are not quantized."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.weight.vramtop_embedding = True
