"""The files that go with the metrics: Prometheus rules and a Grafana dashboard."""

from importlib.resources import files


def rules_text() -> str:
    """Return the alerting rules for Prometheus, YAML."""
    return (files(__package__) / "vramtop_rules.yml").read_text()


def dashboard_text() -> str:
    """Return the Grafana dashboard, JSON as its import takes it."""
    return (files(__package__) / "grafana_dashboard.json").read_text()
