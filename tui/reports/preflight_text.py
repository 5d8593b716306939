"""What preflight found, as text for a terminal."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from textwrap import wrap

from vramtop.monitor.preflight.context.check import CheckResult, CheckStatus

from ..draw.palette import CHECK_UNKNOWN, CHECKS, Mark
from ..draw.text_output import TextOutput

_COUNTED: dict[CheckStatus, tuple[str, str]] = {
    "failure": ("failure", "failures"),
    "warning": ("warning", "warnings"),
    "pass": ("passed", "passed"),
    "skipped": ("skipped", "skipped"),
}

MARK_WIDTH = max(len(mark.word) for mark in (*CHECKS.values(), CHECK_UNKNOWN)) + 2
"""Of sign and word together."""


def preflight_lines(label: str, outcomes: Sequence[CheckResult], terminal: TextOutput) -> Iterator[str]:
    """Headline, a row for each check with what to do below it, and a last line with the sum."""
    yield terminal.paint(f"{label}: preflight", None, bold=True)
    yield ""
    name_width = max((len(outcome.name) for outcome in outcomes), default=0)
    for outcome in outcomes:
        mark = outcome_mark(outcome)
        head = terminal.paint(f"{mark.letter} {mark.word}".ljust(MARK_WIDTH), mark.colour, bold=mark.word.isupper())
        margin = MARK_WIDTH + name_width + 4
        text, advice = outcome_lines(outcome, terminal.width - margin, terminal.text)
        yield f"{head}  {outcome.name:<{name_width}}  {text[0]}"
        yield from (" " * margin + line for line in (*text[1:], *advice))
    yield ""
    yield terminal.text(summary_line(outcomes))


def outcome_lines(outcome: CheckResult, width: int, drawable: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """What was found, and what to do, each in lines of this width.

    Args:
        outcome: what a check says.
        width: in cells.
        drawable: the text as it can be shown.
    """
    found = wrap(drawable(outcome.found), width, break_on_hyphens=False) or [""]
    if not outcome.advice:
        return found, []
    return found, wrap(drawable(f"to do: {outcome.advice}"), width, subsequent_indent="  ", break_on_hyphens=False)


def outcome_mark(outcome: CheckResult) -> Mark:
    """How an outcome is shown."""
    return CHECK_UNKNOWN if outcome.unknown else CHECKS[outcome.status]


def summary_line(outcomes: Sequence[CheckResult]) -> str:
    """How many of each, and what that comes to."""
    if any(outcome.status == "failure" for outcome in outcomes):
        end = "the job will not run like this"
    elif any(outcome.unknown and outcome.decisive for outcome in outcomes):
        end = "whether the job can start cannot be told"
    else:
        end = "nothing that was looked at stands in the way"
    return f"{count_outcomes(outcomes)}: {end}"


def count_outcomes(outcomes: Sequence[CheckResult], of: Container[CheckStatus] = tuple(_COUNTED)) -> str:
    """How many of each: ``1 failure, 2 warnings, 7 passed``; empty where there is none."""
    counts = Counter(outcome.status for outcome in outcomes if outcome.status in of)
    return ", ".join(
        f"{counts[status]} {words[counts[status] != 1]}" for status, words in _COUNTED.items() if counts[status]
    )
