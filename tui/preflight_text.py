"""What preflight found, as text for a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

from vramtop.monitor.preflight.check import Outcome, Status

from .palette import CHECK_UNKNOWN, CHECKS, Mark
from .terminal import Terminal

_COUNTED: dict[Status, tuple[str, str]] = {
    "failure": ("failure", "failures"),
    "warning": ("warning", "warnings"),
    "pass": ("passed", "passed"),
    "skipped": ("skipped", "skipped"),
}


def preflight_lines(label: str, outcomes: Sequence[Outcome], terminal: Terminal) -> Iterator[str]:
    """Headline, a row for each check with what to do below it, and a last line with the sum."""
    yield terminal.paint(f"{label}: preflight", None, bold=True)
    yield ""
    name_width = max((len(outcome.name) for outcome in outcomes), default=0)
    status_width = max(len(mark.word) for mark in (*CHECKS.values(), CHECK_UNKNOWN)) + 2
    for outcome in outcomes:
        mark = mark_of(outcome)
        head = terminal.paint(f"{mark.letter} {mark.word}".ljust(status_width), mark.colour, bold=mark.word.isupper())
        margin = status_width + name_width + 4
        text = wrap(terminal.text(outcome.found), terminal.width - margin, break_on_hyphens=False) or [""]
        yield f"{head}  {outcome.name:<{name_width}}  {text[0]}"
        yield from (" " * margin + line for line in text[1:])
        if outcome.advice:
            words, width = terminal.text(f"to do: {outcome.advice}"), terminal.width - margin
            advice = wrap(words, width, subsequent_indent="  ", break_on_hyphens=False)
            yield from (" " * margin + line for line in advice)
    yield ""
    yield terminal.text(sum_line(outcomes))


def mark_of(outcome: Outcome) -> Mark:
    """How an outcome is shown."""
    return CHECK_UNKNOWN if outcome.unknown else CHECKS[outcome.status]


def sum_line(outcomes: Sequence[Outcome]) -> str:
    """How many of each, and what that comes to."""
    counts = Counter(outcome.status for outcome in outcomes)
    parts = [f"{counts[status]} {words[counts[status] != 1]}" for status, words in _COUNTED.items() if counts[status]]
    if counts["failure"]:
        end = "the job will not run like this"
    elif any(outcome.unknown and outcome.decisive for outcome in outcomes):
        end = "whether the job can start cannot be told"
    else:
        end = "nothing that was looked at stands in the way"
    return f"{', '.join(parts)}: {end}"
