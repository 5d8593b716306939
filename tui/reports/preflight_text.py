"""The outcome of preflight as text."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from textwrap import wrap
from typing import Literal

from vramtop.monitor.preflight.check import CheckResult, CheckStatus

from ..draw.palette import CHECK_UNKNOWN, CHECKS, Mark
from ..draw.text_output import TextOutput

MARK_WIDTH = max(len(mark.word) for mark in (*CHECKS.values(), CHECK_UNKNOWN)) + 2
"""Cells of sign and word together."""


def preflight_lines(label: str, outcomes: Sequence[CheckResult], output: TextOutput) -> Iterator[str]:
    """Yield a headline, a row for each check with advice below it, and a summary."""
    yield output.paint(f"{label}: preflight", None, bold=True)
    yield ""
    name_width = max((len(outcome.name) for outcome in outcomes), default=0)
    for outcome in outcomes:
        mark = outcome_mark(outcome)
        head = output.paint(f"{mark.letter} {mark.word}".ljust(MARK_WIDTH), mark.colour, bold=mark.word.isupper())
        margin = MARK_WIDTH + name_width + 4
        text, advice = outcome_lines(outcome, output.width - margin, output.text)
        yield f"{head}  {outcome.name:<{name_width}}  {text[0]}"
        yield from (" " * margin + line for line in (*text[1:], *advice))
    yield ""
    yield output.text(summary_line(outcomes))


def outcome_lines(outcome: CheckResult, width: int, drawable: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """Return what was found, and what to do, both wrapped to this width.

    Args:
        outcome: of a check.
        width: in cells.
        drawable: turns a text into what the output can show.
    """
    found = wrap(drawable(outcome.found), width, break_on_hyphens=False) or [""]
    if not outcome.advice:
        return found, []
    return found, wrap(drawable(f"to do: {outcome.advice}"), width, subsequent_indent="  ", break_on_hyphens=False)


def outcome_mark(outcome: CheckResult) -> Mark:
    """Return the mark of an outcome."""
    return CHECK_UNKNOWN if outcome.unknown else CHECKS[outcome.status]


def summary_line(outcomes: Sequence[CheckResult]) -> str:
    """Return the number of outcomes by status, and the conclusion."""
    if any(outcome.status == "failure" for outcome in outcomes):
        conclusion = "the job will fail"
    elif any(outcome.unknown and outcome.decisive for outcome in outcomes):
        conclusion = "it is unknown whether the job can start"
    else:
        conclusion = "no check found a problem that would stop the job"
    return f"{count_outcomes(outcomes)}: {conclusion}"


_NOUNS: dict[CheckStatus | Literal["unknown"], tuple[str, str]] = {
    "failure": ("failure", "failures"),
    "warning": ("warning", "warnings"),
    "unknown": ("unknown", "unknown"),
    "pass": ("passed", "passed"),
    "skipped": ("skipped", "skipped"),
}


def count_outcomes(outcomes: Sequence[CheckResult], of: Container[CheckStatus] = tuple(CHECKS)) -> str:
    """Return the number of outcomes as they are marked: ``1 failure, 2 unknown, 7 passed``; empty if there is none."""
    counts = Counter("unknown" if outcome.unknown else outcome.status for outcome in outcomes if outcome.status in of)
    return ", ".join(f"{counts[word]} {nouns[counts[word] != 1]}" for word, nouns in _NOUNS.items() if counts[word])
