"""Export: the board as Prometheus metrics, over HTTP, in a file for node_exporter, or by OpenTelemetry.

Lives here: the ways out (the server with TLS and basic authentication, the file, OpenTelemetry), the rules and the
Grafana dashboard that go with the metrics, and in ``metrics`` what is exported. Callers: ``vramtop export``.
prometheus-client and the OpenTelemetry SDK are imported where they are used.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .connections import Connections as Connections
    from .credentials import read_credentials as read_credentials
    from .host_names import HostNames as HostNames
    from .listen_address import ListenAddress as ListenAddress
    from .metrics import LatestBoard as LatestBoard, MetricsText as MetricsText
    from .otlp import start_otlp as start_otlp
    from .ready_files import dashboard_text as dashboard_text, rules_text as rules_text
    from .server import MetricsServer as MetricsServer
    from .textfile import TextFile as TextFile
    from .tls import TlsFiles as TlsFiles
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "connections": "Connections",
            "credentials": "read_credentials",
            "host_names": "HostNames",
            "listen_address": "ListenAddress",
            "metrics": "LatestBoard MetricsText",
            "otlp": "start_otlp",
            "ready_files": "dashboard_text rules_text",
            "server": "MetricsServer",
            "textfile": "TextFile",
            "tls": "TlsFiles",
        },
    )
