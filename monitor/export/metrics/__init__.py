"""The metrics of a board: their table, the samples of each part, and their text.

Lives here: what is exported, whatever way it takes. Callers: the ways out in ``export``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .latest_board import LatestBoard as LatestBoard
    from .metric_table import TABLE as TABLE, Metric as Metric
    from .metrics_text import MetricsText as MetricsText
    from .samples import all_samples as all_samples
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "latest_board": "LatestBoard",
            "metric_table": "Metric TABLE",
            "metrics_text": "MetricsText",
            "samples": "all_samples",
        },
    )
