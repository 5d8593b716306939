"""Explains a failure of memory: what filled the GPU, why the allocation failed, and at which point of the step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..budget import Budget
from ..common import UNSEEN_BYTES
from .findings import failure_findings, job_findings
from .predicted_place import PredictedPlace, find_place
from .records import Failure, OutOfMemory
from .snapshot import MemorySnapshot

if TYPE_CHECKING:
    from .json_types import ExplanationJson

PartName = Literal["tensors", "unused by tensors", "outside the allocator", "others", "not the allocator's", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the GPU at the failure; all parts together are the GPU."""

    name: PartName
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a failure; the most important sentences come first."""

    failure: Failure
    parts: tuple[Part, ...]
    """Memory by owner at the failure; empty: the failure comes without figures."""
    findings: tuple[str, ...]
    """Sentences that follow from the failure alone."""
    compared: tuple[str, ...]
    """Sentences that compare the failure with the job's budget; empty without a job."""
    place: PredictedPlace | None
    """Point of the predicted step at which it failed."""
    least_bytes: int | None
    """Bytes that the process needed at least, as NVML counts them, without unused memory. None: not known."""
    snapshot: MemorySnapshot | None = None

    def to_json(self) -> "ExplanationJson":
        """Return the explanation for ``--json``."""
        return {
            "failure": self.failure.to_json(),
            "parts": {part.name: part.bytes for part in self.parts},
            "findings": list(self.findings),
            "compared": list(self.compared),
            "place": self.place.to_json() if self.place else None,
            "least_bytes": self.least_bytes,
            "snapshot": self.snapshot.to_json() if self.snapshot else None,
        }


def explain_failure(
    failure: Failure, *, budget: Budget | None = None, snapshot: MemorySnapshot | None = None
) -> Explanation:
    """Explain a failure of memory.

    Args:
        failure: of a log, or ``failure_of_snapshot``.
        budget: of the job that failed; None: it is not known.
        snapshot: of the process that failed.
    """
    memory = failure.memory
    least = _least_bytes(memory, budget)
    return Explanation(
        failure=failure,
        parts=tuple(_parts(memory)) if memory else (),
        findings=tuple(failure_findings(failure, snapshot)),
        compared=tuple(job_findings(failure, budget, snapshot, least_bytes=least)) if budget else (),
        place=find_place(budget, failure) if budget and memory else None,
        least_bytes=least,
        snapshot=snapshot,
    )


def failure_of_snapshot(snapshot: MemorySnapshot) -> Failure | None:
    """Return the failure that a snapshot's history has; None: the process had not run out of memory."""
    failed = snapshot.failed
    if failed is None:
        return None
    memory = OutOfMemory(
        backend="CUDA",
        gpu=snapshot.device,
        tried_bytes=failed.tried_bytes,
        total_bytes=snapshot.total_bytes,
        free_bytes=failed.free_bytes,
        allocated_bytes=snapshot.allocated_bytes + snapshot.waiting_bytes,
        unallocated_bytes=snapshot.unallocated_bytes,
        allowed_bytes=snapshot.allowed_bytes,
    )
    return Failure(kind="gpu", line=0, text="memory snapshot", memory=memory, phase=failed.phase, place=failed.place)


def _parts(memory: OutOfMemory) -> Iterator[Part]:
    """Yield what filled the card."""
    total, free, reserved = memory.total_bytes, memory.free_bytes, memory.reserved_bytes
    if memory.allocated_bytes is not None:
        yield Part(name="tensors", bytes=memory.allocated_bytes)
    if memory.unallocated_bytes is not None:
        yield Part(name="unused by tensors", bytes=memory.unallocated_bytes)
    if memory.outside_bytes is not None:
        yield Part(name="outside the allocator", bytes=memory.outside_bytes)
        if memory.beside_bytes:
            yield Part(name="others", bytes=memory.beside_bytes)
    elif total is not None and free is not None and reserved is not None and total - free - reserved > UNSEEN_BYTES:
        yield Part(name="not the allocator's", bytes=total - free - reserved)
    if free is not None:
        yield Part(name="free", bytes=free)


def _least_bytes(memory: OutOfMemory | None, budget: Budget | None) -> int | None:
    if memory is None or memory.allocated_bytes is None or memory.tried_bytes is None:
        return None
    outside = memory.outside_bytes
    if outside is None and budget is not None:
        outside = budget.peak.device_bytes - budget.peak.reserved_bytes
    return None if outside is None else memory.allocated_bytes + memory.tried_bytes + outside
