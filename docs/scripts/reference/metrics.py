"""The list of the exporter's metrics."""

from vramtop.monitor.export.metrics import TABLE

from .markdown import bullets, code, codes

_COMMON_LABELS = {
    "process": ("uuid", "index", "mig", "job_name", "user", "pid"),
    "device": ("uuid", "index", "mig"),
    "GPU": ("uuid", "index"),
    "machine": (),
}
_HEADINGS = {
    "machine": "## Machine and pending jobs",
    "GPU": "## GPU",
    "device": "## MIG device",
    "process": "## Process of a known job",
}


def metrics_list() -> str:
    """Return the metrics by what they are of; of a gauge without its type, and of statesets with their states."""
    lines: dict[str, list[str]] = {name: [] for name in _HEADINGS}
    for each in TABLE:
        of, own = next(
            (word, each.all_labels[len(labels) :])
            for word, labels in _COMMON_LABELS.items()
            if tuple(each.all_labels[: len(labels)]) == labels
        )
        kind = "" if each.type == "gauge" else each.type
        about = "; ".join(filter(None, (kind, codes(label for label in own if label != each.name))))
        states = f" States: {codes(each.states)}." if each.states else ""
        lines[of].append(f"{code(each.name)}{f' ({about})' if about else ''}: {each.help}{states}")
    return "\n\n".join(part for name, heading in _HEADINGS.items() for part in (heading, bullets(lines[name])))
