"""Figures of measured steps, as the ranks report them. What a device cannot know is None, never 0."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Device = Literal["cuda", "cpu"]


class PhasePeak(msgspec.Struct, frozen=True):
    """Highest memory of torch's allocator in one phase, over all steps."""

    allocated: int | None
    """Bytes that tensors held."""
    reserved: int | None
    """Bytes that the allocator held; None: unknown, as on the CPU."""


class StepPeak(PhasePeak, frozen=True, kw_only=True):
    """Highest memory of torch's allocator in one phase of one step."""

    step: int
    """Number of the optimizer step; 0: before the first one."""
    phase: str
    """Part of the step."""


class Allocator(msgspec.Struct, frozen=True):
    """What torch says of its allocator after the last step."""

    backend: str
    """Name of the allocator."""
    settings: dict[str, Any]
    """The allocator's settings in force (``PYTORCH_CUDA_ALLOC_CONF`` over the defaults), under torch's names."""
    counters: dict[str, int]
    """Entries of ``torch.cuda.memory_stats``."""


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
    peaks: list[StepPeak]
    """In the order in which they were reached."""
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; None: the steps did not get that far."""
    retries: int | None
    """Times that the allocator freed its cache because memory was full."""
    allocator: Allocator | None = None
    """None on the CPU."""
    out_of_memory: OutOfMemory | None = None
    versions: dict[str, str] = {}

    @property
    def phases(self) -> dict[str, PhasePeak]:
        """Highest memory in each phase, over all steps."""
        names = dict.fromkeys(each.phase for each in self.peaks)
        return {name: _highest(each for each in self.peaks if each.phase == name) for name in names}

    @property
    def allocated_bytes(self) -> int | None:
        """Peak of ``torch.cuda.memory_allocated``; on the CPU, of the storages."""
        return _highest(self.peaks).allocated

    @property
    def reserved_bytes(self) -> int | None:
        """Peak of ``torch.cuda.memory_reserved``; None on the CPU."""
        return _highest(self.peaks).reserved

    @property
    def allocated_by_step_bytes(self) -> list[int | None]:
        """Allocated peak of each step."""
        steps = sorted({each.step for each in self.peaks if each.step})
        return [_highest(each for each in self.peaks if each.step == step).allocated for step in steps]


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

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the rank with the highest peak, and of all ranks."""
        rank, failed = self.highest, self.out_of_memory
        return {
            "max_allocated_bytes": rank.allocated_bytes,
            "max_reserved_bytes": rank.reserved_bytes,
            "allocated_by_step_bytes": rank.allocated_by_step_bytes,
            "phases": msgspec.to_builtins(rank.phases),
            "by_step": msgspec.to_builtins(rank.peaks),
            "components": rank.components,
            "retries": rank.retries,
            "allocator": msgspec.to_builtins(rank.allocator),
            "ranks": [
                {"max_allocated_bytes": each.allocated_bytes, "max_reserved_bytes": each.reserved_bytes}
                for each in self.ranks
            ],
            "out_of_memory": None if failed is None else msgspec.to_builtins(failed),
        }


def _peak(rank: MeasuredRank) -> int:
    return rank.reserved_bytes or rank.allocated_bytes or 0


def _highest(peaks: Iterable[PhasePeak]) -> PhasePeak:
    """Return the highest known value of each figure; None where none is known."""
    found = list(peaks)
    return PhasePeak(
        max((each.allocated for each in found if each.allocated is not None), default=None),
        max((each.reserved for each in found if each.reserved is not None), default=None),
    )
