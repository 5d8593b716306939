"""Parts of ``vramtop measure``: the GPUs that may be used, one job's measurement, the search, the suite, the report.

Lives here: what the command does beside starting the steps (``estimator.trace.measure``).
Callers: ``commands``; of the file of a suite's results, also the accuracy table.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .free_gpus import FixedGpus as FixedGpus, OpenGpus as OpenGpus, OutsideBytes as OutsideBytes
    from .measured_job import (
        MeasuredJob as MeasuredJob,
        Measuring as Measuring,
        measure_job as measure_job,
        predicted as predicted,
        search_micro_batch as search_micro_batch,
    )
    from .measured_report import measured_json as measured_json, measured_lines as measured_lines
    from .suite import open_suite as open_suite
    from .suite_results import SuiteResults as SuiteResults
    from .suite_table import chosen_parts as chosen_parts, read_suite as read_suite
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "free_gpus": "FixedGpus OpenGpus OutsideBytes",
            "measured_job": "measure_job MeasuredJob Measuring predicted search_micro_batch",
            "measured_report": "measured_json measured_lines",
            "suite": "open_suite",
            "suite_results": "SuiteResults",
            "suite_table": "chosen_parts read_suite",
        },
    )
