"""The table of the exporter's metrics."""

from vramtop.monitor.export.metrics.metric_table import TABLE

from .markdown import code, codes, table


def metrics_table() -> str:
    """Return the table."""
    rows = [(code(each.name), each.type, codes(each.all_labels), each.help) for each in TABLE]
    return table(("metric", "type", "labels", "meaning"), rows)


def states_table() -> str:
    """Return the states of the statesets."""
    rows = [(code(each.name), codes(each.states)) for each in TABLE if each.states]
    return table(("stateset", "its states"), rows)
