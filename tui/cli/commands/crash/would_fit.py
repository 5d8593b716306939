"""Suggestions for a run that ran out of memory: those of ``vramtop fit``, on the GPU as it was."""

import argparse
from collections.abc import Callable

from vramtop.estimator.budget import Budget
from vramtop.estimator.crash import Explanation
from vramtop.monitor.board.fit import check_fit

from ....job import LoadedJob, budget_of_what_ran, failed_gpu
from ...fitting import Advice, Machine, advise


def would_fit(
    explanation: Explanation,
    loaded: LoadedJob,
    budget: Budget,
    options: argparse.Namespace,
    *,
    progress: Callable[[str], None],
    correct: Callable[[Budget], Budget],
) -> Advice | None:
    """Return the changes with which the job would have fitted beside what others held; None: the GPU is not known.

    A run that needed more than its budget's upper bound needs as much more with every change.

    Args:
        explanation: of the failure.
        loaded: the job.
        budget: of the job, corrected by measured runs if some are near it.
        options: of the command line.
        progress: called with what is being done.
        correct: corrects a budget by measured runs.
    """
    device, ran = failed_gpu(explanation, budget), budget_of_what_ran(explanation, budget)
    if device is None:
        return None
    return advise(
        loaded.job,
        ran,
        lambda changed: check_fit(changed, (device,)).verdict,
        Machine(gpu=None, memory_bytes=device.total_bytes, gpus=device.count, python=options.python),
        method=options.method if ran is budget else "formula",  # a trace does not know what ran beyond it
        progress=progress,
        correct=correct,
    )
