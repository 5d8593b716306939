"""The metrics of a board: their table, the samples of each part, and the registry that makes them at each scrape.

Lives here: what is exported, whatever way it takes. Callers: the ways out in ``export``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .collector import metrics_registry as metrics_registry
    from .latest_board import LatestBoard as LatestBoard
    from .metric_table import TABLE as TABLE, Metric as Metric
    from .samples import all_samples as all_samples
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "collector": "metrics_registry",
            "latest_board": "LatestBoard",
            "metric_table": "Metric TABLE",
            "samples": "all_samples",
        },
    )
