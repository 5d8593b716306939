"""Estimates corrected by measured runs, and keeping such runs; ``--no-history`` turns both off."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import UNTRACED, estimate

from ..draw.text_output import printable
from .progress import Progress

if TYPE_CHECKING:
    import argparse

    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.attachment import Attachment
    from vramtop.monitor.board.divergence import Comparison
    from vramtop.monitor.history.history import Corrections
    from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading

Correct = Callable[[Budget], Budget]


def estimate_job(
    options: argparse.Namespace,
    job: Job,
    gpu: Gpu | None,
    memory_bytes: int | None,
    *,
    here: bool = True,
    kept: bool = True,
) -> Budget:
    """Estimate a job by the method of the command line, with a line about what takes long; corrected by measured runs.

    A program runs with ``--rehearse`` alone.

    Args:
        options: of the command line.
        job: the job.
        gpu: the GPU that it is estimated for.
        memory_bytes: its memory.
        here: the GPU is one of this machine.
        kept: a kept rehearsal may be taken, if the job is a program.
    """
    with Progress(quiet=options.json) as progress:
        if job.program is not None:
            from vramtop.estimator.trace.rehearsal import rehearse_job

            asked = getattr(options, "rehearse", False)
            budget = rehearse_job(
                job, gpu=gpu, memory_bytes=memory_bytes, progress=progress, may_run=asked, kept=kept
            ).budget
        else:
            budget = estimate(
                job,
                method=options.method,
                gpu=gpu,
                memory_bytes=memory_bytes,
                python=options.python,
                progress=progress,
            )
    return correction(options, job, gpu, here=here)(_with_reason(budget) if options.names_python else budget)


def _with_reason(budget: Budget) -> Budget:
    """Return the budget with a warning of why its step was not traced, for a user who has named the Python to trace."""
    reasons = tuple(each for each in budget.assumptions if each.startswith(UNTRACED))
    others = tuple(each for each in budget.assumptions if each not in reasons)
    return replace(budget, assumptions=others, warnings=(*budget.warnings, *reasons))


def correction(options: argparse.Namespace, job: Job, gpu: Gpu | None, *, here: bool) -> Correct:
    """Return what corrects budgets by the measured runs of this user; with ``--no-history`` what leaves them.

    Args:
        options: of the command line.
        job: which may name the GPU that it is planned for.
        gpu: the GPU that is estimated for; None: unknown, so that no run counts unless the job names one.
        here: the job would run on this machine.
    """
    card = gpu.name if gpu is not None else job.target.gpu
    if not options.history or card is None:
        return lambda budget: budget
    found = _corrections()
    return lambda budget: found.corrected(budget, card=card, here=here)


def keep_reading(
    attachment: Attachment,
    budget: Budget,
    comparison: Comparison,
    gpu: GpuReading,
    process: GpuProcess,
    *,
    driver: str | None,
) -> None:
    """Keep one reading of a run of this user, if it is known to be steady: it tells its steps through the probe.

    A history that cannot be written is a sentence on standard error.
    """
    from vramtop.monitor.history.history import History, is_own, measurement_of_run, run_identity

    first = min((rank.pid for rank in attachment.ranks), default=attachment.pid)
    identity = run_identity(first)
    own = all(is_own(rank.pid) for rank in attachment.ranks)
    if budget.job.program is not None or comparison.phase != "steady" or identity is None or not own:
        return
    try:
        measurement = measurement_of_run(
            budget.job,
            budget,
            gpu,
            process,
            usage=comparison.peak_usage,
            run=identity,
            state="steady",
            time=time.time(),
            driver=driver,
            facts=attachment,
        )
        warning = History().add(measurement)
    except CannotTellError as error:
        warning = error.message
    if warning:
        print(f"vramtop: {printable(warning)}", file=sys.stderr)


def corrected_run(
    options: argparse.Namespace, budget: Budget, attachment: Attachment, gpu: GpuReading | None
) -> Budget:
    """Return the budget of a running job corrected by measured runs, its own earlier ones among them."""
    if not options.history:
        return budget
    return _corrections().corrected(
        budget,
        card=gpu.name if gpu else None,
        versions=attachment.versions,
        environ=attachment.estimate_environ,
    )


def _corrections() -> Corrections:
    from vramtop.monitor.history.history import Corrections

    return Corrections(notify=lambda sentence: print(f"vramtop: {printable(sentence)}", file=sys.stderr))
