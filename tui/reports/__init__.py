"""Reports as lines of text: budgets, preflight, doctor, anomalies, divergence.

Lives here: what commands print and screens quote; no Textual.
Callers: ``screens`` and ``cli``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .anomaly_text import anomaly_lines as anomaly_lines
    from .assumed_text import assumed_lines as assumed_lines
    from .budget_text import (
        budget_lines as budget_lines,
        closing_lines as closing_lines,
        fit_lines as fit_lines,
        need_text as need_text,
        tensor_rows as tensor_rows,
    )
    from .crash_text import explanation_lines as explanation_lines, snapshot_lines as snapshot_lines
    from .divergence_text import divergence_content as divergence_content
    from .doctor_text import doctor_lines as doctor_lines
    from .fleet_fit_text import (
        fleet_fit_lines as fleet_fit_lines,
        fleet_fit_sentence as fleet_fit_sentence,
        host_reason as host_reason,
        taken_gpus_text as taken_gpus_text,
    )
    from .history_text import history_lines as history_lines
    from .preflight_text import (
        MARK_WIDTH as MARK_WIDTH,
        count_outcomes as count_outcomes,
        outcome_lines as outcome_lines,
        outcome_mark as outcome_mark,
        preflight_lines as preflight_lines,
        summary_line as summary_line,
    )
    from .run_text import RunReport as RunReport, run_lines as run_lines
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "anomaly_text": "anomaly_lines",
            "assumed_text": "assumed_lines",
            "budget_text": "budget_lines closing_lines fit_lines need_text tensor_rows",
            "crash_text": "explanation_lines snapshot_lines",
            "divergence_text": "divergence_content",
            "doctor_text": "doctor_lines",
            "fleet_fit_text": "fleet_fit_lines fleet_fit_sentence host_reason taken_gpus_text",
            "history_text": "history_lines",
            "preflight_text": "count_outcomes MARK_WIDTH outcome_lines outcome_mark preflight_lines summary_line",
            "run_text": "run_lines RunReport",
        },
    )
