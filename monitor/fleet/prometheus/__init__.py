"""Many hosts from one Prometheus: vramtop's own metrics, and those of other GPU exporters for hosts without it.

Lives here: the client of Prometheus' HTTP API, and what makes readings of hosts from the answers.
Callers: the dashboard, ``--once`` and ``fit`` over a Prometheus.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .client import Credentials as Credentials, PrometheusClient as PrometheusClient
    from .prometheus_fleet import PrometheusFleet as PrometheusFleet
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "client": "Credentials PrometheusClient",
            "prometheus_fleet": "PrometheusFleet",
        },
    )
