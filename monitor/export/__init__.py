"""Export: the board as Prometheus metrics, over HTTP.

Lives here: the server, the rules and the Grafana dashboard that go with the
metrics, and in ``metrics`` and ``samples`` what is exported. Callers:
``vramtop export``. prometheus-client is imported where it is used.
"""
