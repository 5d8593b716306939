"""Export: the board as Prometheus metrics, over HTTP, in a file for node_exporter, or by OpenTelemetry.

Lives here: the table of metrics, the samples of a board, the server with TLS and basic authentication, the rules and
the Grafana dashboard that go with them. Callers: ``vramtop export``. prometheus-client and the OpenTelemetry SDK are
imported where they are used.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .collector import metrics_registry as metrics_registry
    from .credentials import Credentials as Credentials, read_credentials as read_credentials
    from .latest_board import LatestBoard as LatestBoard
    from .listen_address import ListenAddress as ListenAddress
    from .metric_table import TABLE as TABLE, Metric as Metric
    from .otlp import start_otlp as start_otlp
    from .ready_files import dashboard_text as dashboard_text, rules_text as rules_text
    from .server import MetricsServer as MetricsServer
    from .textfile import TextFile as TextFile
    from .tls import TlsFiles as TlsFiles
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "collector": "metrics_registry",
            "credentials": "Credentials read_credentials",
            "latest_board": "LatestBoard",
            "listen_address": "ListenAddress",
            "metric_table": "Metric TABLE",
            "otlp": "start_otlp",
            "ready_files": "dashboard_text rules_text",
            "server": "MetricsServer",
            "textfile": "TextFile",
            "tls": "TlsFiles",
        },
    )
