"""Measured steps: the job's real steps in a process of their own, on GPUs or on the CPU, and what memory they take.

Lives here: starting and ending that process (``worker.measure`` runs in it), its figures, tiny jobs for the CPU, and
the search for the largest micro-batch that runs. The caller knows which GPUs are free, and what NVML shows meanwhile.
Callers: the command ``measure``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .figures import MeasuredStep as MeasuredStep
    from .json_types import MeasuredStepJson as MeasuredStepJson
    from .largest_batch import BatchSearch as BatchSearch, find_largest_batch as find_largest_batch
    from .real_step import (
        Place as Place,
        rank_count as rank_count,
        run_in_worker as run_in_worker,
        run_real_step as run_real_step,
    )
    from .tiny_job import tiny_job as tiny_job
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "figures": "MeasuredStep",
            "json_types": "MeasuredStepJson",
            "largest_batch": "BatchSearch find_largest_batch",
            "real_step": "Place rank_count run_in_worker run_real_step",
            "tiny_job": "tiny_job",
        },
    )
