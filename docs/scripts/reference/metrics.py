"""The tables of the exporter's metrics and of the alerts."""

from vramtop.monitor.alerts.alert_watch import RULES_BY_WORD
from vramtop.monitor.export.metrics import TABLE

from .markdown import code, codes, table


def metrics_table() -> str:
    """Return the table."""
    rows = [(code(each.name), each.type, codes(each.all_labels), each.help) for each in TABLE]
    return table(("metric", "type", "labels", "meaning"), rows)


def states_table() -> str:
    """Return the states of the statesets."""
    rows = [(code(each.name), codes(each.states)) for each in TABLE if each.states]
    return table(("stateset", "its states"), rows)


def alerts_table() -> str:
    """Return the rules of the alerts, with their word in the settings."""
    rows = [
        (code(rule.name), rule.condition, _time(rule.fires_after), _time(rule.clears_after), rule.severity, code(word))
        for word, rules in RULES_BY_WORD.items()
        for rule in rules
    ]
    return table(("alert", "condition", "fires after", "clears after", "severity", "in settings"), rows)


def _time(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
