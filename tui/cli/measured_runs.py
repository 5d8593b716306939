"""What ``--no-history`` turns off: estimates corrected by the runs that were measured, and keeping such runs."""

import argparse
import sys
from collections.abc import Callable

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Gpu, Job
from vramtop.monitor.history import Corrections

from ..draw import printable

Correct = Callable[[Budget], Budget]


def correction(options: argparse.Namespace, job: Job, gpu: Gpu | None, *, here: bool) -> Correct:
    """Return what corrects budgets by the measured runs of this user; with ``--no-history`` what leaves them.

    Args:
        options: of the command line.
        job: which may name the GPU that it is planned for.
        gpu: the GPU that is estimated for; None: unknown, or this machine's.
        here: the job would run on this machine.
    """
    if options.no_history:
        return lambda budget: budget
    found = Corrections(notify=lambda sentence: print(f"vramtop: {printable(sentence)}", file=sys.stderr))
    card = gpu.name if gpu is not None else job.target.gpu
    return lambda budget: found.corrected(budget, card=card, here=here)
