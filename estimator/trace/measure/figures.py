"""Figures of measured steps, as the ranks report them. What a device cannot know is None, never 0."""

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from .json_types import MeasuredStepJson

Device = Literal["cuda", "cpu"]


class PhasePeak(msgspec.Struct, frozen=True):
    """Highest memory of torch's allocator in one phase, over all steps."""

    allocated: int | None
    """Bytes that tensors held."""
    reserved: int | None
    """Bytes that the allocator held; None: unknown, as on the CPU."""


class OutOfMemory(msgspec.Struct, frozen=True):
    """Where a rank ran out of memory."""

    step: int
    """Number of the step; 0: before the first one."""
    phase: str
    """Part of the step."""
    message: str
    """Torch's message, in one line."""
    allocated_bytes: int | None
    """Held by tensors at the failure."""
    reserved_bytes: int | None
    """Held by torch's allocator at the failure."""

    @property
    def place(self) -> str:
        """Where, in words."""
        return f"in the {self.phase} of step {self.step}" if self.step else f"while {self.phase}"


class MeasuredRank(msgspec.Struct, frozen=True):
    """Memory of one rank by torch's own counters."""

    pid: int
    phases: dict[str, PhasePeak]
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; None: the steps did not get that far."""
    allocated_bytes: int | None
    """Peak of ``torch.cuda.memory_allocated``; on the CPU, of the storages."""
    reserved_bytes: int | None
    """Peak of ``torch.cuda.memory_reserved``; None on the CPU."""
    allocated_by_step_bytes: list[int]
    retries: int | None
    """Times that the allocator freed its cache because memory was full."""
    out_of_memory: OutOfMemory | None = None
    versions: dict[str, str] = {}


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A job's measured steps."""

    device: Device
    ranks: tuple[MeasuredRank, ...]
    """Figures of the ranks; of a run that ended out of memory, those of ranks that reported any."""
    versions: dict[str, str]

    @property
    def highest(self) -> MeasuredRank:
        """The rank with the highest peak; of a run that ended out of memory, the one that did."""
        failed = [rank for rank in self.ranks if rank.out_of_memory]
        return failed[0] if failed else max(self.ranks, key=_peak)

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where a rank ran out of memory; None: the steps ran."""
        return self.highest.out_of_memory

    def to_json(self) -> "MeasuredStepJson":
        """Return the figures of the rank with the highest peak, and of all ranks."""
        rank, failed = self.highest, self.out_of_memory
        return {
            "max_allocated_bytes": rank.allocated_bytes,
            "max_reserved_bytes": rank.reserved_bytes,
            "allocated_by_step_bytes": rank.allocated_by_step_bytes,
            "phases": msgspec.to_builtins(rank.phases),
            "components": rank.components,
            "retries": rank.retries,
            "ranks": [
                {"max_allocated_bytes": each.allocated_bytes, "max_reserved_bytes": each.reserved_bytes}
                for each in self.ranks
            ],
            "out_of_memory": None if failed is None else msgspec.to_builtins(failed),
        }


def _peak(rank: MeasuredRank) -> int:
    return rank.reserved_bytes or rank.allocated_bytes or 0
