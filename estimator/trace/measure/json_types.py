"""The JSON of measured steps, key by key (``vramtop measure --json``); its schema is made from these types."""

from typing import Annotated, Any, TypedDict

from ...budget import FieldsOf
from .figures import Allocator, OutOfMemory, PhasePeak, StepPeak


class RankPeaksJson(TypedDict):
    """Peaks of one rank by torch's own counters."""

    max_allocated_bytes: int | None
    """Peak of `torch.cuda.memory_allocated`; null: unknown."""
    max_reserved_bytes: int | None
    """Peak of `torch.cuda.memory_reserved`; null: unknown, as on the CPU."""


class MeasuredStepJson(RankPeaksJson):
    """Memory of a job's real steps: of the rank with the highest peak, or that ran out of memory."""

    allocated_by_step_bytes: list[int | None]
    """Peak of each optimizer step, in bytes that tensors hold."""
    phases: dict[str, Annotated[dict[str, Any], FieldsOf(PhasePeak)]]
    """Highest memory of torch's allocator in each phase, over all steps."""
    by_step: list[Annotated[dict[str, Any], FieldsOf(StepPeak)]]
    """Highest memory of torch's allocator in each phase of each step, in their order."""
    components: dict[str, int | None]
    """Bytes of weights, gradients and optimizer states; null: the steps did not get that far."""
    retries: int | None
    """Times that the allocator freed its cache because memory was full; null: unknown, as on the CPU."""
    allocator: Annotated[dict[str, Any], FieldsOf(Allocator)] | None
    """What torch says of its allocator after the last step; null: unknown, as on the CPU."""
    ranks: list[RankPeaksJson]
    """Peaks of every rank."""
    out_of_memory: Annotated[dict[str, Any], FieldsOf(OutOfMemory)] | None
    """Where a rank ran out of memory; null: the steps ran."""
