"""The JSON of an explained failure, key by key (``vramtop explain --json``); its schema is made from these types."""

from typing import Annotated, Any, TypedDict

from ..budget import FieldsOf, PhaseName
from .explanation import PartName
from .predicted_place import PredictedPlace
from .records import FailureKind, OutOfMemory
from .snapshot import MemorySnapshotJson


class FailureJson(TypedDict):
    """One failure of memory in a log, or the one that a memory snapshot shows."""

    kind: FailureKind
    """`gpu`: torch's allocator raised, with its figures; `gpu library`: CUDA, cuBLAS, cuDNN or NCCL had no GPU memory;
    `host`: an allocation of CPU RAM failed; `killed`: a process was killed."""
    line: int
    """Number of its line in the log, from 1; 0: of a memory snapshot."""
    text: str
    """The line, shortened."""
    sure: bool
    """false: a process was killed by SIGKILL, which may have other reasons than memory."""
    rank: int | None
    """Rank of the process; null: the log does not say it."""
    memory: Annotated[dict[str, Any], FieldsOf(OutOfMemory)] | None
    """Figures of torch's message; null: the failure comes without."""
    phase: PhaseName | None
    """Part of the step in which it happened, by its traceback; null: unknown."""
    place: str | None
    """Innermost line of the traceback outside torch's own files: `file:line function`; null: unknown."""
    tried_host_bytes: int | None
    """CPU RAM that was asked for; null: unknown, or the failure is not of CPU RAM."""
    steps: int | None
    """Steps that a progress bar had counted before; null: none was seen."""


class ExplanationJson(TypedDict):
    """Explanation of a failure of memory."""

    failure: FailureJson
    """The failure that is explained."""
    parts: dict[PartName, int]
    """Bytes that filled the GPU, by what held them; all parts together are the GPU. Empty: the failure comes without
    figures."""
    findings: list[str]
    """Sentences that follow from the failure alone, the most important first."""
    compared: list[str]
    """Sentences that compare the failure with the job's budget; empty without a job."""
    place: Annotated[dict[str, Any], FieldsOf(PredictedPlace)] | None
    """Point of the predicted step at which the allocation failed; null: no job, or unknown."""
    least_bytes: int | None
    """Bytes that the process needed at least, as NVML counts it; null: unknown."""
    snapshot: MemorySnapshotJson | None
    """Contents of the memory snapshot; null: the failure is from a log."""
