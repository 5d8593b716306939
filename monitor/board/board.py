"""The board: each GPU, process, run and pending job beside its budget at one moment. Immutable."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.records import replace

from ..host.plain_text import gpu_list
from ..snapshot.mig_devices import MigDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vramtop.estimator.budget import Budget, Components
    from vramtop.estimator.job.job import Job

    from ..anomalies.anomaly import Anomaly
    from ..host.known_programs import ProcessKind
    from ..snapshot.snapshot import DeviceIndex, GpuKey, GpuProcess, GpuReading, HistoryKey, ProcessKey, Snapshot
    from .comparison import Comparison
    from .fit_result import FitResult
    from .run_phases import PhaseStart

NoBudgetReason = Literal[
    "reading…", "no access", "left alone", "not attached", "not training", "job not read", "needs model", "unreadable",
    "no budget", "starting", "ended", "too many", "server", "notebook", "desktop", "helper", "too long", "too slow",
]  # fmt: skip
"""Why a process has no budget, in a word or two for a column of 12 characters."""
BEING_READ: NoBudgetReason = "reading…"
"""The run of the process is not read yet; this is its note in the readings of other hosts, too."""
LEFT_ALONE: NoBudgetReason = "left alone"
"""The user has dismissed its run."""
NOT_ATTACHED: NoBudgetReason = "not attached"
"""Nothing is attached to by itself (``--no-attach``)."""


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
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


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
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


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
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


class PendingRow(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def sentence(self) -> str | None:
        """Reason for the verdict, with the sizes that were assumed; if there is no verdict, the reason for that."""
        if self.fit is None or not self.job.assumed_sizes:
            return self.problem if self.fit is None else self.fit.sentence
        return f"{self.fit.sentence}; assumes {' and '.join(self.job.assumed_sizes)}"


class AttachProgress(msgspec.Struct, frozen=True):
    """How far the automatic attaching is."""

    read: int
    """Runs that have been read."""
    total: int
    """Runs that may be read, as far as the tree of processes tells."""


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
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


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known at one moment."""

    snapshot: Snapshot
    gpus: tuple[GpuRow, ...]
    pending: tuple[PendingRow, ...]
    runs: tuple[RunRow, ...] = ()
    ended: tuple[ProcessRow, ...] = ()
    """Processes without a budget that have ended within the last minute."""
    anomalies: tuple[Anomaly, ...] = ()
    """Anomalies by GPU: helper processes with a CUDA context, two ranks on one GPU, forgotten processes."""
    committed: Mapping[DeviceIndex, int] = msgspec.field(default_factory=dict)
    """Free bytes by device that running jobs will yet allocate, or that are reserved."""
    hidden: Hidden | None = None
    """What is not displayed; None: everything is."""
    attach_progress: AttachProgress | None = None
    """How many runs were read by themselves; None: none is."""
    sums: str | None = None
    """Sums over many hosts, in words; None: the board is of one machine."""

    @property
    def displayed_gpus(self) -> tuple[GpuRow, ...]:
        """Every GPU, each followed by its MIG devices; jobs in MIG devices are not shown for the whole GPU."""
        every: list[GpuRow] = []
        for gpu in self.gpus:
            plain = (replace(row, job=None, budget=None, comparison=None, problem=None) for row in gpu.rows)
            every += [replace(gpu, rows=tuple(plain)) if gpu.devices else gpu, *gpu.devices]
        return tuple(gpu for gpu in every if self.displays_gpu(gpu.reading))

    def displays(self, row: ProcessRow) -> bool:
        """Return True if a process is displayed."""
        return self.hidden is None or row.key not in self.hidden.rows

    def displays_gpu(self, reading: GpuReading) -> bool:
        """Return True if a GPU or MIG device is displayed."""
        return self.hidden is None or reading.key not in self.hidden.gpus

    @property
    def ended_processes(self) -> tuple[ProcessRow, ...]:
        """The processes of runs that have ended and were not dismissed yet, and others that have just ended."""
        return (*(row for run in self.runs for row in run.rows if row.ended_at is not None), *self.ended)

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """Every process that is on a GPU now."""
        return tuple(row for gpu in self.gpus for row in gpu.rows)

    def run_of(self, process: ProcessKey) -> RunRow | None:
        """Return the run that a process belongs to; None if it belongs to none that is known."""
        return next((run for run in self.runs if process in run.pids), None)


class MissingReason(msgspec.Struct, frozen=True):
    """A reason, in a few words and as a sentence."""

    short: str
    sentence: str


NOT_ON_GPU_YET = MissingReason("on no GPU yet", "It does not hold GPU memory yet.")
_ENDED = MissingReason("ended", "It has ended.")


def missing_reason(
    board: Board | None, keys: Sequence[ProcessKey], is_running: Callable[[ProcessKey], bool]
) -> MissingReason:
    """Return why none of these processes is on a GPU.

    Args:
        board: the latest board.
        keys: the processes.
        is_running: returns True if a process of this machine still runs.
    """
    if board is None:
        return NOT_ON_GPU_YET
    if board.snapshot.source.is_live and not any(map(is_running, keys)):
        return _ENDED
    unread = [gpu.reading.label for gpu in board.gpus if gpu.reading.processes is None]
    if unread:
        return MissingReason("GPU n/a", f"Its memory is not known: GPU {gpu_list(unread)} cannot be read.")
    return NOT_ON_GPU_YET


_MISSED_READINGS = 3
"""Readings that may be missed: one that takes long is no hang."""
_LEAST_STALE_SECONDS = 10.0
"""With short intervals: a driver that initialises a GPU takes some seconds."""


def stale_after_seconds(interval: float) -> float:
    """Return the age from which a board is too old for the exporter.

    Args:
        interval: seconds between two readings.
    """
    return max(_LEAST_STALE_SECONDS, _MISSED_READINGS * interval)
