"""What would have fitted where a run ran out of memory: the suggestions of ``vramtop fit``, on the GPU as it was."""

import argparse
from collections.abc import Callable

from vramtop.estimator.advice import shifted
from vramtop.estimator.budget import Budget
from vramtop.estimator.crash import Explanation
from vramtop.monitor.board.fit import DeviceCapacity, check_fit

from ....job import LoadedJob
from ...fitting import Advice, Machine, advise
from ...option_values import estimate_method


def would_fit(
    explanation: Explanation,
    loaded: LoadedJob,
    budget: Budget,
    options: argparse.Namespace,
    progress: Callable[[str], None],
) -> Advice | None:
    """Return the changes with which the job would have fitted beside what others held; None: the GPU is not known.

    A run that needed more than its budget's upper bound needs as much more with every change.
    """
    memory = explanation.failure.memory
    if memory is None or memory.total_bytes is None:
        return None
    gpus = budget.job.parallel.world_size
    usable = memory.total_bytes - (memory.beside_bytes or 0)
    device = DeviceCapacity(
        index=memory.gpu or 0,
        uuid=None,
        name="the GPU that ran out of memory",
        total_bytes=memory.total_bytes,
        free_bytes=usable,
        reserved_bytes=0,
        count=gpus,
    )
    least = explanation.least_bytes
    if least is not None and least > budget.peak.high_bytes:
        budget = shifted(budget, least - budget.peak.device_bytes)
    return advise(
        loaded.job,
        budget,
        lambda changed: check_fit(changed, (device,)).verdict,
        Machine(gpu=None, memory_bytes=memory.total_bytes, gpus=gpus, python=options.python),
        method=estimate_method(options),
        progress=progress,
    )
