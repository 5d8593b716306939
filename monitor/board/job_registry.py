"""Registry of the known jobs: those that run, with their processes, and those that are pending."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramtop.estimator.job import Job

    from ..snapshot import ProcessKey, Snapshot, WatchedJob


@dataclass(slots=True)
class JobRegistry:
    """Running and pending jobs, in the order in which they were added. Not safe for concurrent use."""

    runs: tuple[WatchedJob, ...] = ()
    pending: tuple[Job, ...] = ()
    _dismissed: set[tuple[ProcessKey, ...]] = field(default_factory=set)
    """Process keys of recorded runs that are hidden."""

    def add_run(self, run: WatchedJob) -> None:
        """Add a run; it replaces the runs that share a process with it, in the place of the first of them."""
        self._dismissed.discard(run.pids)
        at = next((at for at, known in enumerate(self.runs) if _overlap(known, run)), len(self.runs))
        others = [known for known in self.runs[at:] if not _overlap(known, run)]
        self.runs = (*self.runs[:at], run, *others)

    def dismiss_runs(self, pids: Iterable[ProcessKey]) -> None:
        """Remove the runs of these processes, whether they have ended or not."""
        pids = tuple(pids)
        self._dismissed.add(pids)
        self.runs = tuple(run for run in self.runs if set(pids).isdisjoint(run.pids))

    def add_pending(self, job: Job) -> bool:
        """Append a pending job; returns False if it is known already."""
        if job in self.pending:
            return False
        self.pending = (*self.pending, job)
        return True

    def remove_pending(self, job: Job) -> bool:
        """Remove a pending job; returns False if it is not known."""
        if job not in self.pending:
            return False
        self.pending = tuple(known for known in self.pending if known != job)
        return True

    def runs_with(self, snapshot: Snapshot) -> tuple[WatchedJob, ...]:
        """Return the known runs and those of a recorded snapshot that are neither known nor dismissed."""
        self._dismissed &= {run.pids for run in snapshot.watched}
        recorded = (
            run
            for run in snapshot.watched
            if run.pids not in self._dismissed and not any(_overlap(run, known) for known in self.runs)
        )
        return (*self.runs, *recorded)

    def pending_with(self, snapshot: Snapshot) -> tuple[Job, ...]:
        """Return the pending jobs of a recorded snapshot that are not known, and the known ones."""
        return (*(job for job in snapshot.pending if job not in self.pending), *self.pending)


def _overlap(one: WatchedJob, other: WatchedJob) -> bool:
    return not set(one.pids).isdisjoint(other.pids)
