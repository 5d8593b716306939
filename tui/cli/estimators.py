"""Estimates, watchlist and pending jobs of a program that follows this machine: dashboard and exporter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.history.corrections import Corrections
from vramtop.monitor.host.available_ram import available_host_memory
from vramtop.monitor.storage.reservations import Reservations

from .crash_report import save_fault

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach


class Estimators:
    """The quick and the accurate estimate of a job, for the GPU type of this machine unless the job names one.

    The estimator is imported with the first job: that takes a fifth of the start-up time.

    Args:
        python: the interpreter that the user named; None: that of each job.
        corrects: correct estimates by the runs that were measured.
        notify: receives a sentence if the history cannot be read or written.
    """

    def __init__(self, python: str | None, *, corrects: bool, notify: Callable[[str], None]) -> None:
        self._python, self._notify = python, notify
        self._corrections = Corrections(notify=notify) if corrects else None
        self.watchlist = Watchlist(  # a recorded machine has no reservations, and its RAM is unknown
            self.quick,
            reserved_bytes=lambda now: Reservations().committed(now) if now.source.is_live else {},
            host_memory=lambda now: available_host_memory() if now.source.is_live else None,
        )

    def quick(
        self,
        job: Job,
        *,
        environ: Mapping[str, str] | None = None,
        python: str | None = None,
        progress: Callable[[str], None] | None = None,
        may_run: bool = False,
    ) -> Budget:
        """Estimate by the closed form; of a program take the kept rehearsal, or with ``may_run`` make one."""
        from vramtop.estimator.estimation import estimate

        del python
        gpu = None if job.target.gpu else self.watchlist.gpu_type
        if may_run:
            from vramtop.estimator.trace.rehearsal import rehearse_job

            found = rehearse_job(job, gpu=gpu, environ=environ, progress=progress, may_run=True, kept=False).budget
        else:
            found = estimate(job, gpu=gpu, environ=environ, progress=progress)
        return self._corrected(found, environ)

    def accurate(self, job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        """Estimate by the most accurate method that is available; this may take seconds."""
        from vramtop.estimator.estimation import estimate
        from vramtop.estimator.trace.worker_pool import keep_idle_workers

        keep_idle_workers()
        gpu = None if job.target.gpu else self.watchlist.gpu_type
        found = estimate(job, method="auto", gpu=gpu, python=self._python or python, environ=environ)
        return self._corrected(found, environ)

    def attach(self, options: argparse.Namespace, *, acts: bool = True) -> AutomaticAttach:
        """Return what attaches to training processes by itself; where that is off, it only says what the others are.

        Args:
            options: of the command line.
            acts: it also measures the runs of this user.
        """
        from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
        from vramtop.monitor.history.run_recorder import RunRecorder

        forget = self._corrections.forget_what_was_read if self._corrections else lambda: None
        recorder = RunRecorder(notify=self._notify, on_kept=forget)
        return AutomaticAttach(
            self.watchlist,
            enabled=options.attach,
            recorder=recorder if acts and options.history else None,
            corrects=options.history,
            on_bug=save_fault,
        )

    def _corrected(self, budget: Budget, environ: Mapping[str, str] | None) -> Budget:
        if self._corrections is None:
            return budget
        here, target = self.watchlist.gpu_type, budget.job.target.gpu
        elsewhere = target is not None and (here is None or target != here.name)
        card = target if elsewhere or here is None else here.name
        return self._corrections.corrected(budget, card=card, here=not elsewhere, environ=environ)


def quick_estimate(job: Job, gpu: Gpu | None = None) -> Budget:
    """Estimate by the closed form, for a GPU type unless the job names one; the estimator is imported only now."""
    from vramtop.estimator.estimation import estimate

    return estimate(job, gpu=None if job.target.gpu else gpu)


def pending_jobs(options: argparse.Namespace) -> list[Job]:
    """Load the jobs of ``--job FILE``.

    Raises:
        InputError: a file is none, or lacks a setting.
    """
    if not options.job:
        return []
    from ..job.read_job import pending_job  # only if there is a job

    return [pending_job(path) for path in options.job]
