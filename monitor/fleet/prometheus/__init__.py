"""Many hosts from one Prometheus: vramtop's own metrics, and those of other GPU exporters for hosts without it.

Lives here: the client of Prometheus' HTTP API, and what makes readings of hosts from the answers.
"""
