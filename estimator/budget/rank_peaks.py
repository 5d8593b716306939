"""The peaks of all ranks of a job; ranks that are alike are counted, not listed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from .budget import RankPeak


@dataclass(frozen=True, slots=True)
class RankPeaks(Sequence["RankPeak"]):
    """The peak of each rank, by pipeline stage first, as torchtitan and Megatron-LM number them."""

    stages: tuple["RankPeak", ...]
    """Peak of a rank of each pipeline stage."""
    ranks_per_stage: int

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.stages) * self.ranks_per_stage

    @overload
    def __getitem__(self, rank: int) -> "RankPeak": ...

    @overload
    def __getitem__(self, rank: slice) -> tuple["RankPeak", ...]: ...

    def __getitem__(self, rank: int | slice) -> "RankPeak | tuple[RankPeak, ...]":
        """Return the peak of a rank."""
        if isinstance(rank, slice):
            return tuple(self[each] for each in range(*rank.indices(len(self))))
        return self.stages[range(len(self))[rank] // self.ranks_per_stage]

    @property
    def runs(self) -> Iterator[tuple["RankPeak", int]]:
        """Yield each run of ranks that are alike: their peak and their number."""
        for peak, stages in groupby(self.stages):
            yield peak, self.ranks_per_stage * sum(1 for _ in stages)

    @property
    def highest(self) -> "RankPeak":
        """The highest peak."""
        return max(self.stages, key=lambda stage: stage.device_bytes)
