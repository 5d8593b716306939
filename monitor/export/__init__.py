"""Export: the board as Prometheus metrics, over HTTP, in a file for node_exporter, or by OpenTelemetry.

Lives here: the ways out (the server with TLS and basic authentication, the file, OpenTelemetry), the rules and the
Grafana dashboard that go with the metrics, and in ``metrics`` and ``samples`` what is exported. Callers:
``vramtop export``. prometheus-client and the OpenTelemetry SDK are imported where they are used.
"""
