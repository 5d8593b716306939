"""What is odd on a GPU, in lines of plain text."""

from collections.abc import Iterable, Iterator

from vramtop.monitor.anomalies.anomaly import Anomaly

from ..draw.text_output import TextOutput

ANOMALY_COLOUR = "#c96c04"


def anomaly_lines(odd: Iterable[Anomaly], terminal: TextOutput, *, indent: str = "     ") -> Iterator[str]:
    """Each anomaly: its sentence with a mark, and below it what to do."""
    for anomaly in odd:
        sentence = terminal.wrapped(f"! {anomaly.sentence}", indent=indent, further=f"{indent}  ")
        yield from (terminal.paint(line, ANOMALY_COLOUR) for line in sentence)
        yield from terminal.wrapped(anomaly.advice, indent=f"{indent}  ")
