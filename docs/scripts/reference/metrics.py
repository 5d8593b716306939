"""The list of the exporter's metrics, and the table of the alerts."""

from collections.abc import Sequence

from vramtop.monitor.alerts.alert_watch import RULES
from vramtop.monitor.export.metrics import TABLE

from .markdown import bullets, code, codes, table

_COMMON_LABELS = {
    "process": ("uuid", "index", "mig", "job_name", "user", "pid"),
    "device": ("uuid", "index", "mig"),
    "GPU": ("uuid", "index"),
}


def metrics_list() -> str:
    """Return the list of the metrics; of a gauge without its type, and of statesets with their states."""
    return bullets(
        f"{code(each.name)} ({'; '.join(filter(None, (_type(each.type), _labels(each.all_labels))))}): {each.help}"
        f"{f' States: {codes(each.states)}.' if each.states else ''}".replace(" ()", "")
        for each in TABLE
    )


def _type(name: str) -> str:
    return "" if name == "gauge" else name


def _labels(names: Sequence[str]) -> str:
    """Return labels, those that name a GPU, a MIG device or a process as one word."""
    for word, own in _COMMON_LABELS.items():
        if tuple(names[: len(own)]) == own:
            return ", ".join(filter(None, (word, codes(names[len(own) :]))))
    return codes(names)


def alerts_table() -> str:
    """Return the rules of the alerts, with their word in the settings."""
    rows = [
        (code(rule.name), rule.condition, _time(rule.fires_after), _time(rule.clears_after), rule.severity, code(word))
        for word, rule in RULES.items()
    ]
    return table(("alert", "condition", "fires after", "clears after", "severity", "in settings"), rows)


def _time(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
