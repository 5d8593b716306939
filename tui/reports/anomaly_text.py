"""Anomalies of a GPU as lines of plain text."""

from collections.abc import Iterable, Iterator

from vramtop.monitor.anomalies.anomaly import Anomaly

from ..draw.palette import colour_of
from ..draw.text_output import TextOutput


def anomaly_lines(anomalies: Iterable[Anomaly], output: TextOutput) -> Iterator[str]:
    """Yield the sentence of each anomaly with a mark, and below it what to do."""
    indent = "     "
    for anomaly in anomalies:
        sentence = output.wrapped(f"! {anomaly.sentence}", indent=indent, further=f"{indent}  ")
        yield from (output.paint(line, colour_of("warning")) for line in sentence)
        yield from output.wrapped(anomaly.advice, indent=f"{indent}  ")
