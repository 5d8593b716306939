"""Parts of ``vramtop measure``: the GPUs that may be used, one job's measurement, the search, and the report.

Lives here: what the command does beside starting the steps (``estimator.trace.measure``).
Callers: ``commands``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .free_gpus import OpenGpus as OpenGpus
    from .many_jobs import is_list as is_list, loaded_jobs as loaded_jobs
    from .measured_job import (
        MeasuredJob as MeasuredJob,
        Measuring as Measuring,
        measure_job as measure_job,
        predicted as predicted,
        search_micro_batch as search_micro_batch,
    )
    from .measured_report import measured_json as measured_json, measured_lines as measured_lines
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "free_gpus": "OpenGpus",
            "many_jobs": "is_list loaded_jobs",
            "measured_job": "measure_job MeasuredJob Measuring predicted search_micro_batch",
            "measured_report": "measured_json measured_lines",
        },
    )
