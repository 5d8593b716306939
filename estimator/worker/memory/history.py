"""History of a traced job: storages as they are allocated and freed, and the phases of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK_BYTES = 512
"""CUDA's allocator rounds sizes up to whole blocks."""
COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "temporary", "communication")
REHEARSED = ("inputs", "other_models")
"""Components of what a rehearsed program copies to the GPU, and of models that it does not train; a traced step makes
its inputs there, and other models are added to it."""


@dataclass(eq=False)
class StorageRecord:
    """One storage between its allocation and its release."""

    number: int
    size: int
    """Bytes, in whole blocks of the allocator."""
    nbytes: int
    """Bytes asked for."""
    shape: tuple[int, ...]
    dtype: str
    module: str
    """Path of the module whose forward or backward pass allocated it; empty outside of modules."""
    stream: int
    """0 is the compute stream; others are numbered in the order of their first use."""
    component: str | None = None
    host: bool = False
    """In a real run it would be in host memory, or on a GPU other than the one that is looked at."""
    used_on: tuple[int, ...] = ()
    """Other streams that use it (``record_stream``): its block returns to its pool once they are done with it."""
    gpu: int = 0
    """Number of its GPU among those of the process."""
    line: str = ""
    """File and line of the program that made it, in a rehearsal."""
    own_line: str = ""
    """Where that is a library's: the line in the program's own folder that led there."""


@dataclass
class Phase:
    """One phase of one step."""

    step: int
    name: str
    start: int
    """Index of its first event."""


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of one step, with the events in it."""

    step: int
    name: str
    start: int
    """Index of its first event."""
    end: int
    """Index of the event after its last."""


@dataclass
class AllocationHistory:
    """Records, events and phases, in order."""

    records: list[StorageRecord] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """``n + 1`` allocates record n; ``-(n + 1)`` frees it."""
    phases: list[Phase] = field(default_factory=list)
    returns: list[tuple[int, int]] = field(default_factory=list)
    """The number of events before the block of a freed record with ``used_on`` returns to its pool, and the record."""


def phase_spans(history: AllocationHistory) -> list[PhaseSpan]:
    """Return the phases of all steps with their events."""
    ends = [phase.start for phase in history.phases[1:]] + [len(history.events)]
    pairs = zip(history.phases, ends)  # noqa: B905 - not in Python 3.9
    return [PhaseSpan(phase.step, phase.name, phase.start, end) for phase, end in pairs]


def block_bytes(nbytes: int) -> int:
    """Return a size in whole blocks of the allocator."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def settled(history: AllocationHistory) -> AllocationHistory:
    """Return the history until the phase ``end``, with releases that follow each other in the order of allocation.

    Nothing that happens after the end is part of a step. The order of releases without an allocation between them does
    not matter to the allocator, and may be that of a hash table (autocast's cache) or of nested deallocators.
    """
    end = next((phase.start for phase in history.phases if phase.name == "end"), len(history.events))
    returns = [each for each in history.returns if each[0] <= end]
    starts = sorted(
        {at for at in (*(phase.start for phase in history.phases), *(at for at, _ in returns), end) if at <= end}
    )
    events: list[int] = []
    released: list[int] = []
    before = 0
    for start in starts:
        for event in history.events[before:start]:
            if event < 0:
                released.append(event)
                continue
            if released:
                events += sorted(released, reverse=True)
                released.clear()
            events.append(event)
        events += sorted(released, reverse=True)
        released.clear()
        before = start
    return AllocationHistory(history.records, events, history.phases, returns)
