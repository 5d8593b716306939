"""Rows of the pending jobs: whether each would fit now, placed one after the other, without the flicker of readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib

from .board import PendingRow
from .budget_cache import job_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.common.errors import Verdict
    from vramtop.estimator.job.job import Job

    from ..snapshot.snapshot import DeviceIndex, Snapshot
    from .capacity import DeviceCapacity
    from .fit_result import FitResult


_MIN_CONTRARY_READINGS = 3
"""Consecutive readings that change whether a pending job fits: processes come and go."""


class PendingFits:
    """Checks the pending jobs at each snapshot and remembers which of them fit. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._fits: dict[bytes, _DebouncedFit] = {}

    def rows(
        self,
        snapshot: Snapshot,
        committed: Mapping[DeviceIndex, int],
        jobs: Sequence[tuple[Job, Budget | str]],
        host: int | None,
        growth: Mapping[DeviceIndex, str],
    ) -> tuple[PendingRow, ...]:
        """Return the row of each pending job; a job that fits takes its memory from those behind it.

        Args:
            snapshot: the machine now.
            committed: bytes by device that running jobs will yet allocate or that are reserved.
            jobs: pending jobs in order, each with its budget or the reason that there is none.
            host: bytes of RAM that jobs can use; None: unknown.
            growth: what will take the free memory of a device, in a sentence.
        """
        before, self._fits = self._fits, {}
        if not jobs:
            return ()
        from .capacity import commit, device_capacities  # not before there is a pending job

        devices = device_capacities(snapshot, committed)
        devices = tuple(replace(each, growth=growth.get(each.device_index)) for each in devices)
        rows = []
        for job, budget in jobs:
            problem = _problem(budget, devices)
            if isinstance(budget, str) or problem:
                rows.append(PendingRow(job=job, budget=None if isinstance(budget, str) else budget, problem=problem))
                continue
            fit = self._fits[job_key(job)] = before.get(job_key(job)) or _DebouncedFit()
            chosen = [each for each in devices if not job.target.devices or each.uuid in job.target.devices]
            result = _check(job, budget, chosen, host, fit.verdict)
            fit.verdict = result.verdict
            fit.add(result.verdict == "fits", snapshot.time)
            changed_at = fit.changed_at
            rows.append(
                PendingRow(job=job, budget=budget, fit=result, fits=fit.fits is True, fits_changed_at=changed_at)
            )
            if result.verdict in ("fits", "tight"):
                devices = commit(devices, result.bytes_by_device)
        return tuple(rows)


class _DebouncedFit(msgspec.Struct):
    """Debounced verdict of a pending job: it changes only after several readings in a row."""

    verdict: Verdict | None = None
    """Verdict at the reading before."""
    fits: bool | None = None
    changed_at: float | None = None
    """Unix seconds."""
    _contrary_readings: int = 0
    _last_time: float | None = None

    def add(self, fits: bool, time: float) -> None:
        if time == self._last_time:  # the same reading again
            return
        self._last_time = time
        if self.fits is None:
            self.fits = fits
        self._contrary_readings = self._contrary_readings + 1 if fits != self.fits else 0
        if self._contrary_readings >= _MIN_CONTRARY_READINGS:
            self.fits, self.changed_at, self._contrary_readings = fits, time, 0


def _problem(budget: Budget | str, devices: Sequence[DeviceCapacity]) -> str | None:
    """Return why the fit of a job cannot be checked; None: it can."""
    if isinstance(budget, str):
        return budget
    if devices:
        return None
    return f"needs {format_gib(budget.ranks.highest.device_bytes)} GiB, and no GPU is visible here"


def _check(
    job: Job, budget: Budget, devices: Sequence[DeviceCapacity], host: int | None, previous: Verdict | None
) -> FitResult:
    """Return whether a job fits; the verdict stays while less than is displayed would change it."""
    from .fit import check_fit, with_host_memory

    def check(slack: int) -> FitResult:
        room = (None if each.free_bytes is None else each.free_bytes + slack for each in devices)
        result = check_fit(budget, [replace(each, free_bytes=free) for each, free in zip(devices, room, strict=True)])
        if host is None:
            return result
        return with_host_memory(result, budget, host + slack, ranks=job.parallel.processes)

    result = check(0)
    if previous in (None, result.verdict):
        return result
    others = (check(slack) for slack in (UNSEEN_BYTES, -UNSEEN_BYTES))
    return next((other for other in others if other.verdict == previous), result)
