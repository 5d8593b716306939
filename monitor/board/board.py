"""How everything stands at one moment: each GPU, process, run and waiting job beside its budget. Immutable."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ..snapshot.mig_devices import MigDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vramtop.estimator.budget.budget import Budget, Components
    from vramtop.estimator.job.job import Job

    from ..anomalies.anomaly import Anomaly
    from ..snapshot.snapshot import DeviceIndex, GpuProcess, GpuReading, HistoryKey, ProcessKey, Snapshot
    from .divergence_status import Comparison
    from .fit_check import FitResult
    from .run_phases import PhaseStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process on one GPU, with its job's budget where one is known."""

    gpu: GpuReading
    """The GPU, or the MIG device, whose memory it takes."""
    process: GpuProcess
    elapsed_seconds: float | None
    job: Job | None = None
    budget: Budget | None = None
    comparison: Comparison | None = None
    problem: str | None = None
    """Why the job that is known to run here has no budget."""
    phase_starts: tuple[PhaseStart, ...] = ()
    """The phases of its run, as far as their begins were seen."""
    ended_at: float | None = None
    """Unix seconds of the first reading without it; ``process`` and ``gpu`` are then those of the last one with it."""

    @property
    def key(self) -> HistoryKey:
        """Under it the history is kept."""
        return (self.gpu.key, *self.process.key)


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
        """What belongs to no process: of a GPU in MIG mode without what is left over on its devices, where it counts.

        None where that is not known, and of a device whose memory another one stands for.
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
        """What its known jobs will hold together; None when no job is known here."""
        return self._sum(lambda budget: budget.steady_device_bytes)

    @property
    def low_bytes(self) -> int | None:
        """Lower bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.low_bytes)

    @property
    def high_bytes(self) -> int | None:
        """Upper bound of ``expected_bytes``."""
        return self._sum(lambda budget: budget.peak.high_bytes)

    @property
    def components(self) -> Components | None:
        """The budgets' peaks by component, added up; None when no job is known here."""
        budgets = [row.budget for row in self.rows if row.budget]
        if not budgets:
            return None
        from vramtop.estimator.budget.budget import Components  # not before there is a budget

        names = [f.name for f in fields(Components)]
        return Components(**{name: sum(getattr(b.peak.components, name) for b in budgets) for name in names})

    def _sum(self, figure: Callable[[Budget], int]) -> int | None:
        budgets = [row.budget for row in self.rows if row.budget]
        return sum(figure(budget) for budget in budgets) if budgets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A job that runs, or has run and was not dismissed yet."""

    job: Job
    pids: tuple[ProcessKey, ...]
    """Its ranks on this machine."""
    rows: tuple[ProcessRow, ...]
    """One for each of its processes on each GPU, by rank; those that have ended stay, as they were last."""
    budget: Budget | None = None
    problem: str | None = None
    """Why there is no budget."""
    ended_at: float | None = None
    """Unix seconds of the first reading after all of its processes had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRow:
    """A job that waits, and whether it would fit now."""

    job: Job
    budget: Budget | None = None
    fit: FitResult | None = None
    problem: str | None = None
    """Why there is no budget."""
    fits: bool = False
    """Whether it fits for sure, over the last few readings."""
    fits_changed_at: float | None = None
    """Unix seconds when ``fits`` last changed; None: it has not since the job was first seen to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything that is known at one moment."""

    snapshot: Snapshot
    gpus: tuple[GpuRow, ...]
    pending: tuple[PendingRow, ...]
    runs: tuple[RunRow, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    """What is odd, by GPU: helpers with a context, ranks on one GPU, forgotten processes."""
    committed: Mapping[DeviceIndex, int] = field(default_factory=dict)
    """Bytes by place that are free and spoken for: running jobs will take them, or they were promised."""

    @property
    def displayed_gpus(self) -> tuple[GpuRow, ...]:
        """Every GPU, and under it its MIG devices; jobs that run in these are theirs alone."""
        return tuple(each for gpu in self.gpus for each in (_as_card(gpu), *gpu.devices))

    @property
    def ended_processes(self) -> tuple[ProcessRow, ...]:
        """The processes of runs that have ended and were not dismissed yet."""
        return tuple(row for run in self.runs for row in run.rows if row.ended_at is not None)

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """Every process that is on a GPU now."""
        return tuple(row for gpu in self.gpus for row in gpu.rows)


def _as_card(gpu: GpuRow) -> GpuRow:
    """A GPU in MIG mode as a whole: what is held, and by whom, without budgets, which are of its devices."""
    if not gpu.devices:
        return gpu
    rows = (replace(row, job=None, budget=None, comparison=None, problem=None) for row in gpu.rows)
    return replace(gpu, rows=tuple(rows))


def commitments(gpus: Iterable[GpuRow]) -> dict[DeviceIndex, int]:
    """What running jobs have not yet taken of their budgets, unless they are steady with less: bytes by place."""
    committed: dict[DeviceIndex, int] = {}
    for gpu in gpus:
        for row in gpu.rows_with_budget:
            steady = row.comparison is not None and row.comparison.phase == "steady"
            if row.budget and row.process.used_bytes is not None and not steady:
                rest = row.budget.steady_device_bytes - row.process.used_bytes
                place = row.process.device_index_on(gpu.reading.index)
                committed[place] = committed.get(place, 0) + max(0, rest)
    return committed
