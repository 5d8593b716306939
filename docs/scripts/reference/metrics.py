"""The tables of the exporter's metrics and of the alerts."""

from collections.abc import Sequence

from vramtop.monitor.alerts.alert_watch import RULES
from vramtop.monitor.export.metrics import TABLE

from .markdown import code, codes, table

_COMMON_LABELS = {
    "process": ("uuid", "index", "mig", "job_name", "user", "pid"),
    "device": ("uuid", "index", "mig"),
    "GPU": ("uuid", "index"),
}


def metrics_table() -> str:
    """Return the table."""
    rows = [(code(each.name), each.type, _labels(each.all_labels), each.help) for each in TABLE]
    return table(("metric", "type", "labels", "meaning"), rows)


def _labels(names: Sequence[str]) -> str:
    """Return labels, those that name a GPU, a MIG device or a process as one word."""
    for word, own in _COMMON_LABELS.items():
        if tuple(names[: len(own)]) == own:
            return ", ".join(filter(None, (word, codes(names[len(own) :]))))
    return codes(names)


def states_table() -> str:
    """Return the states of the statesets."""
    rows = [(code(each.name), codes(each.states)) for each in TABLE if each.states]
    return table(("stateset", "its states"), rows)


def alerts_table() -> str:
    """Return the rules of the alerts, with their word in the settings."""
    rows = [
        (code(rule.name), rule.condition, _time(rule.fires_after), _time(rule.clears_after), rule.severity, code(word))
        for word, rule in RULES.items()
    ]
    return table(("alert", "condition", "fires after", "clears after", "severity", "in settings"), rows)


def _time(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
