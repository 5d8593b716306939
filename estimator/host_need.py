"""Host memory that a job needs: bytes of RAM by purpose, per rank and per machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_PINNED_BUFFER_FACTOR = 1.5
"""DeepSpeed's ``additional_buffer_factor`` for pinned memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """Bytes of RAM by purpose; of one rank unless stated otherwise."""

    process: int
    """The interpreter, libraries and CUDA's host side."""
    loaded: int
    """A private copy of the weights while they are loaded."""
    loads_once: bool
    """Only one rank of a machine has that copy."""
    mapped: int
    """Pages of the checkpoint while it is read, on the whole machine; the system can drop them."""
    weights: int = 0
    """Weights that stay offloaded."""
    gradients: int = 0
    """Gradients that stay offloaded."""
    optimizer: int = 0
    """Optimizer states that stay offloaded."""
    activations: int = 0
    """Saved activations that are offloaded until the backward pass."""
    saving: int = 0
    """Copies of weights and states while a checkpoint is written."""
    saves_once: bool = True
    """Only the first rank of the job has that copy."""

    @property
    def offloaded(self) -> int:
        """Bytes that stay on the host while the job trains."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def loading_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine load; mapped pages do not count, since they can be dropped."""
        return ranks * self.process + (1 if self.loads_once else ranks) * self.loaded

    def steady_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine train."""
        return ranks * (self.process + self.offloaded)

    def saving_bytes(self, ranks: int) -> int:
        """Return the bytes while ranks of one machine, the first among them, save a checkpoint."""
        return self.steady_bytes(ranks) + (1 if self.saves_once else ranks) * self.saving

    def peak_bytes(self, ranks: int) -> int:
        """Return the largest of loading, training and saving."""
        return max(self.loading_bytes(ranks), self.saving_bytes(ranks))

    def high_bytes(self, ranks: int) -> int:
        """Return the upper bound, with pinned buffers rounded up."""
        pinned = round(_PINNED_BUFFER_FACTOR * self.offloaded)
        saved = self.saving_bytes(ranks) - self.steady_bytes(ranks)
        return max(self.loading_bytes(ranks), ranks * (self.process + pinned) + saved)

    def to_json(self, ranks: int) -> dict[str, Any]:
        """Return the components of one rank, and the sums for the ranks of one machine."""
        return {
            "ranks": ranks,
            "components": asdict(self),
            "loading_bytes": self.loading_bytes(ranks),
            "steady_bytes": self.steady_bytes(ranks),
            "saving_bytes": self.saving_bytes(ranks),
            "high_bytes": self.high_bytes(ranks),
        }
