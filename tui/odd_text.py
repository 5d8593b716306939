"""What is odd on a GPU, in lines of plain text."""

import textwrap
from collections.abc import Iterable, Iterator

from vramtop.monitor.oddity import Oddity

from .terminal import Terminal

ODD_COLOUR = "#f59e0b"


def odd_lines(odd: Iterable[Oddity], terminal: Terminal, *, indent: str = "     ") -> Iterator[str]:
    """Each oddity: its sentence with a mark, and below it what to do."""
    for oddity in odd:
        for at, line in enumerate(_wrapped(oddity.sentence, terminal, indent)):
            yield indent + terminal.paint(f"{'  ' if at else '! '}{line}", ODD_COLOUR)
        yield from (f"{indent}  {terminal.text(line)}" for line in _wrapped(oddity.advice, terminal, indent))


def _wrapped(text: str, terminal: Terminal, indent: str) -> list[str]:
    """Lines of the terminal's width; a size stays with its unit."""
    lines = textwrap.wrap(text.replace(" GiB", "\xa0GiB"), terminal.width - len(indent) - 2, break_long_words=False)
    return [line.replace("\xa0", " ") for line in lines]
