"""Host memory that a job needs: bytes of RAM by purpose, per rank and per machine."""

from dataclasses import asdict, dataclass
from typing import Any

_BUFFERS = 1.5
"""DeepSpeed's ``additional_buffer_factor``, for what is pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeed:
    """Bytes of RAM, by what they are for; of one rank, where nothing else is said."""

    process: int
    """The interpreter, libraries and CUDA's host side."""
    loaded: int
    """A private copy of the weights while they are loaded."""
    loads_once: bool
    """Only one rank of a machine has that copy."""
    mapped: int
    """Of the whole machine: pages of the checkpoint while it is read, which the system can drop."""
    weights: int = 0
    """Offloaded for good."""
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def offloaded(self) -> int:
        """What stays on the host while the job trains."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def loading_bytes(self, ranks: int) -> int:
        """While so many ranks of one machine load; mapped pages are not counted, since they can be dropped."""
        return ranks * self.process + (1 if self.loads_once else ranks) * self.loaded

    def steady_bytes(self, ranks: int) -> int:
        """While so many ranks of one machine train."""
        return ranks * (self.process + self.offloaded)

    def peak_bytes(self, ranks: int) -> int:
        """The larger of both."""
        return max(self.loading_bytes(ranks), self.steady_bytes(ranks))

    def high_bytes(self, ranks: int) -> int:
        """The upper bound: pinned buffers rounded up."""
        return max(self.loading_bytes(ranks), ranks * (self.process + round(_BUFFERS * self.offloaded)))

    def to_json(self, ranks: int) -> dict[str, Any]:
        """By component for one rank, and the sums for so many ranks of one machine."""
        return {
            "ranks": ranks,
            "components": asdict(self),
            "loading_bytes": self.loading_bytes(ranks),
            "steady_bytes": self.steady_bytes(ranks),
            "high_bytes": self.high_bytes(ranks),
        }
