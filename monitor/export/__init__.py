"""Export: the board as Prometheus metrics, over HTTP or in a file for node_exporter.

Lives here: the ways out (the server with TLS and basic authentication, the file), the rules and the Grafana
dashboard that go with the metrics, and in ``metrics`` and ``samples`` what is exported. Callers:
``vramtop export``. prometheus-client is imported where it is used.
"""
