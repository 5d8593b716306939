"""Anomalies: processes that hold memory without working, leftovers of dead jobs, and jobs that hinder each other.

Lives here: the rules that find anomalies in a snapshot, and the detector that applies them over time.
Callers: ``board`` and the commands that print one reading.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .anomaly import Anomaly as Anomaly
    from .detector import AnomalyDetector as AnomalyDetector
    from .json_types import AnomalyJson as AnomalyJson
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "anomaly": "Anomaly",
            "detector": "AnomalyDetector",
            "json_types": "AnomalyJson",
        },
    )
