"""Export: the board as Prometheus metrics, over HTTP.

Lives here: the server with TLS and basic authentication, the rules and the Grafana dashboard that go with the
metrics, and in ``metrics`` and ``samples`` what is exported. Callers:
``vramtop export``. prometheus-client is imported where it is used.
"""
