"""The board: each GPU, process, run and pending job beside its budget at one moment. Immutable."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from ..snapshot import MigDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.estimator.budget import Budget, Components
    from vramtop.estimator.job import Job

    from ..anomalies import Anomaly
    from ..host.kinds import ProcessKind
    from ..snapshot import DeviceIndex, GpuKey, GpuProcess, GpuReading, HistoryKey, ProcessKey, Snapshot
    from .divergence import Comparison, PhaseStart
    from .fit import FitResult


NoBudgetReason = Literal[
    "reading…", "no access", "left alone", "not attached", "not training", "job not read", "needs model", "unreadable",
    "no budget", "starting", "ended", "too many", "server", "notebook", "desktop", "helper", "too long", "too slow",
]  # fmt: skip
"""Why a process has no budget, in a word or two for a column of 12 characters."""
REASONS_IN_WORDS: Mapping[NoBudgetReason, str] = {
    "job not read": "its command line, files and environment do not say what it trains",
    "needs model": "its model could not be read",
    "unreadable": "its files could not be read",
    "too long": "its command line or its environment is too long to read",
    "too slow": "reading it took too long",
}
"""Some of these where there is room for more words."""
BEING_READ: NoBudgetReason = "reading…"
"""The run of the process is not read yet; this is its note in the readings of other hosts, too."""
LEFT_ALONE: NoBudgetReason = "left alone"
"""The user wants the process left alone."""
NOT_ATTACHED: NoBudgetReason = "not attached"
"""Nothing is attached to by itself (``--no-attach``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process on one GPU, with the budget of its job if the job is known."""

    gpu: GpuReading
    """GPU or MIG device whose memory the process holds."""
    process: GpuProcess
    elapsed_seconds: float | None
    is_live: bool = True
    """It is a process of this machine now, not of a recording."""
    kind: ProcessKind = "unknown"
    """What the process is, by its command line."""
    program_name: str | None = None
    """Name of its program if that is known, such as ``vLLM``; ``kind_label`` puts both in words."""
    may_have_job: bool = True
    """Reading it may tell what it trains, or how much memory it takes."""
    job: Job | None = None
    budget: Budget | None = None
    comparison: Comparison | None = None
    problem: str | None = None
    """Why the known job of this process has no budget."""
    missing: tuple[str, ...] = ()
    """Job keys that its budget guesses, because they could not be read (``training.micro_batch``)."""
    no_budget_reason: NoBudgetReason | None = None
    """Why a process without a budget has none; None: it has one, or nobody says."""
    phase_starts: tuple[PhaseStart, ...] = ()
    """Phases of its run whose starts were seen."""
    ended_at: float | None = None
    """Unix seconds of the first reading without it; ``process`` and ``gpu`` are then those of the last one with it."""

    @property
    def key(self) -> HistoryKey:
        """Key of its history."""
        return (self.gpu.key, *self.process.key)

    @property
    def full_seconds(self) -> float | None:
        """Time until its GPU is full, if it goes on growing as it does; None: it does not grow, or unknown."""
        trend, free = self.comparison.trend if self.comparison else None, self.gpu.free_bytes
        return None if trend is None or free is None else trend.seconds_until(free)

    @property
    def has_guessed_budget(self) -> bool:
        """True if settings that its budget depends on are missing: the budget is drawn as uncertain."""
        return self.budget is not None and bool(self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU, or one of its MIG devices, with the budgets of all known jobs that run on it."""

    reading: GpuReading
    rows: tuple[ProcessRow, ...]
    """Its processes, largest first."""
    devices: tuple[GpuRow, ...] = ()
    """Its MIG devices: in MIG mode all programs run in these."""

    @property
    def unattributed_bytes(self) -> int | None:
        """Used memory that belongs to no process.

        For a GPU in MIG mode, without the unattributed memory of its devices. None if unknown, and for a MIG device
        that shares its memory with one that is already counted.
        """
        if isinstance(self.reading, MigDevice) and self.reading.shares_memory_of:
            return None
        rest = self.reading.remaining_bytes
        if rest is None or not self.devices:
            return rest
        return max(0, rest - sum(device.unattributed_bytes or 0 for device in self.devices))

    @property
    def rows_with_budget(self) -> tuple[ProcessRow, ...]:
        """The processes whose job has a budget."""
        return tuple(row for row in self.rows if row.budget)

    @property
    def has_guessed_budget(self) -> bool:
        """True if one of its budgets is a guess: their sum is drawn as uncertain."""
        return any(row.has_guessed_budget for row in self.rows)

    @property
    def expected_bytes(self) -> int | None:
        """Memory of its known jobs together in their steady state; None if no job is known here."""
        return self._sum(lambda budget: budget.steady_device_bytes)

    @property
    def low_bytes(self) -> int | None:
        """Lower bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.low_bytes)

    @property
    def high_bytes(self) -> int | None:
        """Upper bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.shown_high_bytes)

    @property
    def components(self) -> Components | None:
        """Sum of the budgets' peaks by component; None if no job is known here."""
        budgets = [row.budget for row in self.rows if row.budget]
        if not budgets:
            return None
        from vramtop.estimator.budget import Components  # not before there is a budget

        names = [f.name for f in fields(Components)]
        return Components(**{name: sum(getattr(b.peak.components, name) for b in budgets) for name in names})

    def _sum(self, figure: Callable[[Budget], int]) -> int | None:
        budgets = [row.budget for row in self.rows if row.budget]
        return sum(figure(budget) for budget in budgets) if budgets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A job that runs, or that has ended and was not dismissed yet."""

    job: Job
    pids: tuple[ProcessKey, ...]
    """Its ranks on this machine."""
    rows: tuple[ProcessRow, ...]
    """One per process and GPU, by rank; an ended process keeps its last figures."""
    budget: Budget | None = None
    problem: str | None = None
    """Why there is no budget."""
    missing: tuple[str, ...] = ()
    """Job keys that could not be read, and that the budget guesses; the user is asked for them."""
    ended_at: float | None = None
    """Unix seconds of the first reading after all of its processes had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRow:
    """A pending job, and whether it would fit now."""

    job: Job
    budget: Budget | None = None
    fit: FitResult | None = None
    problem: str | None = None
    """Why there is no budget, or no GPU to fit."""
    fits: bool = False
    """True if its verdict has been "fits" over the last few readings."""
    fits_changed_at: float | None = None
    """Unix seconds when ``fits`` last changed; None: not since the job was first seen as pending."""


@dataclass(frozen=True, slots=True)
class AttachProgress:
    """How far the automatic attaching is."""

    read: int
    """Runs that have been read."""
    total: int
    """Runs that may be read, as far as the tree of processes tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What is not displayed, because the command line asks for a part only."""

    by: str
    """The options, such as ``--user ann``."""
    rows: frozenset[HistoryKey] = frozenset()
    """Keys of the rows of processes that are not displayed."""
    gpus: frozenset[GpuKey] = frozenset()
    """Keys of the GPUs and MIG devices that are not displayed."""
    labels: tuple[str, ...] = ()
    """Labels of these GPUs and MIG devices."""
    processes: int = 0
    """Number of hidden processes that are on a GPU now."""
    used_bytes: int = 0
    """GPU memory of the hidden processes that are on a GPU now, as far as it is known."""
    missing: tuple[str, ...] = ()
    """GPUs that were named and that this machine does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything that is known at one moment."""

    snapshot: Snapshot
    gpus: tuple[GpuRow, ...]
    pending: tuple[PendingRow, ...]
    runs: tuple[RunRow, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    """Anomalies by GPU: helper processes with a CUDA context, two ranks on one GPU, forgotten processes."""
    committed: Mapping[DeviceIndex, int] = field(default_factory=dict)
    """Free bytes by device that running jobs will yet allocate, or that are reserved."""
    hidden: Hidden | None = None
    """What is not displayed; None: everything is."""
    attach_progress: AttachProgress | None = None
    """How many runs were read by themselves; None: none is."""

    @property
    def displayed_gpus(self) -> tuple[GpuRow, ...]:
        """Every GPU, each followed by its MIG devices; jobs in MIG devices are not shown for the whole GPU."""
        every = (each for gpu in self.gpus for each in (_without_jobs(gpu) if gpu.devices else gpu, *gpu.devices))
        return tuple(gpu for gpu in every if self.displays_gpu(gpu.reading))

    def displays(self, row: ProcessRow) -> bool:
        """Return True if a process is displayed."""
        return self.hidden is None or row.key not in self.hidden.rows

    def displays_gpu(self, reading: GpuReading) -> bool:
        """Return True if a GPU or MIG device is displayed."""
        return self.hidden is None or reading.key not in self.hidden.gpus

    @property
    def ended_processes(self) -> tuple[ProcessRow, ...]:
        """The processes of runs that have ended and were not dismissed yet."""
        return tuple(row for run in self.runs for row in run.rows if row.ended_at is not None)

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """Every process that is on a GPU now."""
        return tuple(row for gpu in self.gpus for row in gpu.rows)

    def run_of(self, process: ProcessKey) -> RunRow | None:
        """Return the run that a process belongs to; None if it belongs to none that is known."""
        return next((run for run in self.runs if process in run.pids), None)


def _without_jobs(gpu: GpuRow) -> GpuRow:
    rows = (replace(row, job=None, budget=None, comparison=None, problem=None) for row in gpu.rows)
    return replace(gpu, rows=tuple(rows))
