"""Estimates corrected by measured runs; ``--no-history`` turns that off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import UNTRACED, estimate

from ..draw.text_output import printable
from .progress import Progress

if TYPE_CHECKING:
    import argparse

    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.attachment import Attachment
    from vramtop.monitor.history.corrections import Corrections
    from vramtop.monitor.snapshot.snapshot import GpuReading

    from ..job.loaded_job import LoadedJob

Correct = Callable[[Budget], Budget]


def estimate_job(
    options: argparse.Namespace,
    loaded: LoadedJob,
    gpu: Gpu | None,
    memory_bytes: int | None,
    *,
    here: bool = True,
    kept: bool = True,
) -> Budget:
    """Estimate a job by the method of the command line, with a line about what takes long; corrected by measured runs.

    A program runs only if the user agrees, also one that was read and has no estimate.

    Args:
        options: of the command line.
        loaded: the job.
        gpu: the GPU that it is estimated for.
        memory_bytes: its memory.
        here: the GPU is one of this machine.
        kept: a kept rehearsal may be taken, if the job is a program.
    """
    job = loaded.job
    at_once = options.method == "auto" and loaded.is_partly_read
    if at_once:
        options.method = "formula"  # a trace knows no more of what was not read
    if job.program is None:
        try:
            with Progress(quiet=options.json) as progress:
                budget = estimate(
                    job,
                    method=options.method,
                    gpu=gpu,
                    memory_bytes=memory_bytes,
                    python=options.python,
                    progress=partial(_with_figure, progress, job, gpu) if progress.is_shown else None,
                )
        except VramtopError as error:
            if at_once and isinstance(error, CannotTellError):
                options.method = "traced"  # there may be no rule for the model
                return estimate_job(options, loaded, gpu, memory_bytes, here=here, kept=kept)
            if loaded.program is None or loaded.typed:
                raise
            unread = replace(loaded, job=loaded.program, unread=error.message)
            return estimate_job(options, unread, gpu, memory_bytes, here=here, kept=kept)
    else:
        from .rehearsing import not_rehearsed, rehearsal_of, usual_need

        need = usual_need(loaded, gpu)
        found = rehearsal_of(options, job, gpu, memory_bytes, known=(*loaded.why_unread, *need), kept=kept)
        if found is None:
            if loaded.unread is not None:
                loaded = replace(loaded, unread="\n".join((loaded.unread, *need)))
            raise not_rehearsed(options, loaded, gpu, memory_bytes)
        budget = found
    if options.names_python:  # why its step was not traced is a warning for whoever has named the Python to trace
        reasons = tuple(each for each in budget.assumptions if each.startswith(UNTRACED))
        others = tuple(each for each in budget.assumptions if each not in reasons)
        budget = replace(budget, assumptions=others, warnings=(*budget.warnings, *reasons))
    return correction(options, job, gpu, here=here)(budget)


def _with_figure(progress: Progress, job: Job, gpu: Gpu | None, text: str) -> None:
    """Show what is being done, after what the closed form says of the job."""
    with suppress(VramtopError):
        text = f"about {format_gib(estimate(job, method='formula', gpu=gpu).peak.device_bytes)} GiB by formula; {text}"
    progress(text)


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
    from vramtop.monitor.history.corrections import Corrections

    return Corrections(notify=lambda sentence: print(f"vramtop: {printable(sentence)}", file=sys.stderr))
