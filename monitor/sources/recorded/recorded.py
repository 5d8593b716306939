"""Summary of a recording: its GPUs, its runs, and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .memory_series import MemorySeries

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget
    from vramtop.estimator.causes import Divergence
    from vramtop.estimator.job import Job

    from ...board import GroupKey, ProcessRow
    from ...board.divergence import Comparison
    from ...snapshot import Source
    from .events import Event


@dataclass(slots=True, kw_only=True)
class RecordedGpu:
    """A GPU or MIG device."""

    label: str
    order: tuple[int, ...]
    name: str | None
    uuid: str | None
    total_bytes: int | None
    used: MemorySeries = field(default_factory=MemorySeries)
    """Memory in use, the driver's own left out where it is known."""
    expected: MemorySeries = field(default_factory=MemorySeries)
    """Memory of its known jobs in their steady state, as their budgets predict it."""
    unknown_reason: str | None = None
    """Why its memory was not known at some time."""


@dataclass(slots=True, kw_only=True)
class RecordedProcess:
    """A process on one GPU."""

    row: ProcessRow
    """Its last row."""
    used: MemorySeries = field(default_factory=MemorySeries)
    worst: ProcessRow | None = None
    """Its last row with a status that needed attention."""


@dataclass(slots=True, kw_only=True)
class RecordedRun:
    """A run, or the processes of one program whose job is not known."""

    key: GroupKey
    processes: tuple[RecordedProcess, ...]
    """By rank."""
    job: Job | None = None
    budget: Budget | None = None
    problem: str | None = None
    """Why the known job has no budget."""
    missing: tuple[str, ...] = ()
    """Job keys that the budget guesses."""
    ended_at: float | None = None
    divergence: Divergence | None = None
    """What would explain the difference between its rank with the highest memory and its budget."""

    @property
    def highest(self) -> RecordedProcess | None:
        """The process that held the most on its GPU."""
        known = (process for process in self.processes if process.used)
        return max(known, key=lambda process: process.used.high_bytes or 0, default=None)

    @property
    def peak_bytes(self) -> int | None:
        """The most that one of its processes held: seen, or known to torch's counters or the driver's accounting."""
        sizes = [process.used.high_bytes for process in self.processes]
        peaks = [comparison.peak_usage for comparison in self._comparisons() if comparison.peak_usage]
        known = [size for size in (*sizes, *(peak.size_bytes for peak in peaks)) if size is not None]
        return max(known, default=None)

    @property
    def needs_attention(self) -> Comparison | None:
        """The comparison of its rank with the highest memory that diverged last; None: none did."""
        worst = [process.worst for process in self.processes if process.worst is not None]
        last = max(worst, key=lambda row: row.process.used_bytes or 0, default=None)
        return last.comparison if last else None

    def _comparisons(self) -> list[Comparison]:
        return [process.row.comparison for process in self.processes if process.row.comparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The file and where it comes from."""

    name: str
    """Name of the file."""
    source: Source
    begin: float
    """Unix seconds of the first reading."""
    end: float
    readings: int
    interval_seconds: float | None
    """The usual time between two readings; None: there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """All that a report shows of a recording."""

    recording: Recording
    gpus: tuple[RecordedGpu, ...]
    runs: tuple[RecordedRun, ...]
    """Runs with a known job first, in the order in which they were seen; then programs, the largest first."""
    events: tuple[Event, ...]
    """By time."""
    events_left_out: int
    faults: tuple[str, ...]
    """Faults of the machine as a whole, each once."""
    pending: tuple[str, ...]
    """Labels of the jobs that were pending at the end, each with its verdict there."""
