"""The measurement: what was predicted of one run, and what was seen of it. Without paths, names or secrets."""

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..budget import Budget, Components, Method, PhaseName, Span
from ..job.job import Job

RunState = Literal["steady", "ended", "short", "growing", "out_of_memory"]
DeviceSource = Literal["probe", "accounting", "readings", "measure"]
"""Source of the memory of the process: torch's counters and a reading of NVML (``probe``), the driver's accounting,
readings of NVML alone, which miss a peak between two of them, or ``vramtop measure``."""
AllocatorSource = Literal["probe", "measure"]


class Observed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The highest memory that was seen of the rank with the highest peak, in bytes; None: nobody knew it."""

    allocated_bytes: int | None = None
    """``torch.cuda.max_memory_allocated`` since the process started."""
    reserved_bytes: int | None = None
    """``torch.cuda.max_memory_reserved``."""
    device_bytes: int | None = None
    """Memory of the process in NVML."""
    allocator_source: AllocatorSource | None = None
    """Source of the allocator's figures."""
    device_source: DeviceSource | None = None
    """Source of the memory of the process."""

    def joined(self, other: "Observed") -> "Observed":
        """Return the higher figures of two observations of one run."""
        first, second = (self, other) if (self.device_bytes or 0) >= (other.device_bytes or 0) else (other, self)
        return Observed(
            allocated_bytes=_most(self.allocated_bytes, other.allocated_bytes),
            reserved_bytes=_most(self.reserved_bytes, other.reserved_bytes),
            device_bytes=first.device_bytes,
            allocator_source=first.allocator_source or second.allocator_source,
            device_source=first.device_source,
        )


class Predicted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The peak that one method predicted, as it was before any correction; sizes are bytes."""

    method: Method
    """Method of the estimate."""
    version: str
    """Version of vramtop."""
    phase: PhaseName
    """Part of the run in which the peak is."""
    components: Components
    """Bytes by purpose at the peak."""
    outside_bytes: int
    """Bytes among ``components`` that never pass through torch's allocator."""
    allocated_bytes: int
    """``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int
    """``torch.cuda.max_memory_reserved``."""
    device_bytes: int
    """Memory of the process in NVML."""
    device_range: Span
    """Range of ``device_bytes``."""
    allocated_range: Span | None = None
    """Range of ``allocated_bytes``; None: unknown."""
    reserved_range: Span | None = None
    """Range of ``reserved_bytes``; None: unknown."""

    @classmethod
    def of(cls, budget: Budget, version: str) -> "Predicted":
        """Return what a budget predicts, without its correction; the peak of the rank with the highest one.

        Args:
            budget: a budget.
            version: of vramtop.
        """
        learned, peak = budget.learned, budget.peak
        phase = budget.phase(peak.phase)
        outside = phase.outside_bytes if phase else peak.components.context
        if learned is not None:
            peak, outside = learned.uncorrected, learned.uncorrected_outside_bytes
        return cls(
            method=budget.method,
            version=version,
            phase=peak.phase,
            components=peak.components,
            outside_bytes=outside,
            allocated_bytes=peak.allocated_bytes,
            reserved_bytes=peak.reserved_bytes,
            device_bytes=peak.device_bytes,
            device_range=peak.device_range,
            allocated_range=peak.allocated_range,
            reserved_range=peak.reserved_range,
        )


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run: its job, its GPU, what was predicted, and what was seen. What is unknown is left out of its JSON."""

    run: str
    """Digest that identifies the run: the same from every vramtop that follows it."""
    job: Job
    """What is kept of the job, without names of the user's: its batch, its length and its parallel sizes."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    settings: str
    """Digest of the settings on which a step depends."""
    predicted: tuple[Predicted, ...]
    """Prediction of each method that estimated the job."""
    observed: Observed
    """The highest memory that was seen."""
    state: RunState
    """State of the run whose peaks these are: at its final level of memory, still running (``steady``) or over
    (``ended``); one that ended before it reached that level (``short``); one that leaked (``growing``), or that failed
    (``out_of_memory``)."""
    card: str | None = None
    """The GPU's name, as NVML gives it."""
    card_bytes: int | None = None
    """Memory of the GPU in bytes."""
    driver: str | None = None
    """Version of the driver."""
    machine: str = ""
    """Digest that identifies the machine; absent: unknown."""
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Versions of libraries in the run, by name: torch, transformers, ...; absent: unknown."""
    command: str | None = None
    """Digest of the command line."""
    allocator: str = ""
    """The allocator's settings (``PYTORCH_CUDA_ALLOC_CONF``); absent: its defaults."""
    time: float
    """Unix seconds at which the figures were last seen."""

    @property
    def is_complete(self) -> bool:
        """True if its figures are the peaks of a run that reached its final level and did not leak."""
        return self.state in ("steady", "ended")


def merged(old: Measurement, new: Measurement) -> Measurement:
    """Return one record of two observations of the same run: the newer one, with the higher figures of both.

    A run that has ended stays ended, and one that has leaked keeps that state.
    """
    first, last = (old, new) if old.time <= new.time else (new, old)
    predicted = {each.method: each for each in (*first.predicted, *last.predicted)}
    state = last.state
    for lasting in ("growing", "out_of_memory", "ended"):
        if lasting in (first.state, last.state):
            state = lasting
            break
    return msgspec.structs.replace(
        last,
        predicted=tuple(predicted.values()),
        observed=first.observed.joined(last.observed),
        state=state,
        versions={**first.versions, **last.versions},
        command=last.command or first.command,
        card=last.card or first.card,
        driver=last.driver or first.driver,
    )


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that stand for these values and do not tell them."""
    text = "\0".join(str(part) for part in parts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _most(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)
