"""Preflight as text: a row for each check, and a summary."""

from textual.content import Content

from vramtop.monitor.preflight.check_result import Check, CheckResult

from ...background.preflight_run import PreflightProgress
from ...draw.labels import MUTED, shorten
from ...draw.palette import CHECK_RUNNING, CHECKS, Mark
from ...draw.text_output import printable
from ...reports.preflight_text import MARK_WIDTH, count_outcomes, outcome_lines, outcome_mark, summary_line
from .mark import painted


def check_rows(progress: "PreflightProgress", *, width: int, now: float) -> list[Content]:
    """Return a row for each check: in order while some still run, failures first when all are done.

    Args:
        progress: the outcomes so far.
        width: cells of a line.
        now: the current ``time.monotonic``.
    """
    name_width = max((len(check.name) for check in progress.checks), default=0)
    if progress.done:
        return [line for outcome in progress.worst_first for line in _row(outcome, name_width, width)]
    rows: list[Content] = []
    for check in progress.checks:
        outcome = progress.outcomes.get(check.name)
        if outcome is None:
            rows.append(_running_row(check, progress, name_width, width, now))
        else:
            rows += _row(outcome, name_width, width)
    return rows


def summary_row(progress: "PreflightProgress") -> Content:
    """Return the last line: the summary, or how many checks are done."""
    if progress.problem is not None:
        return Content.assemble(painted(CHECKS["failure"], "cannot check: "), printable(progress.problem))
    if progress.done:
        outcomes = progress.worst_first
        return painted(outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"], summary_line(outcomes))
    if progress.context is None:
        return Content.styled("reading the machine", MUTED)
    so_far = count_outcomes(tuple(progress.outcomes.values()), of=("failure", "warning"))
    words = f"{len(progress.outcomes)} of {len(progress.checks)} checks done"
    return Content.styled(f"{words}; so far {so_far}" if so_far else words, MUTED)


def _row(outcome: CheckResult, name_width: int, width: int) -> list[Content]:
    mark, margin = outcome_mark(outcome), MARK_WIDTH + name_width + 4
    found, advice = outcome_lines(outcome, max(20, width - margin), printable)
    head = Content.assemble(painted(mark, _head(mark)), f"  {outcome.name:<{name_width}}  ", found[0])
    if outcome.status == "skipped":
        head = Content.assemble(painted(mark, _head(mark)), (f"  {outcome.name:<{name_width}}  {found[0]}", MUTED))
    rest = [Content.styled(" " * margin + line, MUTED if outcome.status == "skipped" else "") for line in found[1:]]
    return [head, *rest, *(Content.styled(" " * margin + line, "italic") for line in advice)]


def _running_row(check: Check, progress: "PreflightProgress", name_width: int, width: int, now: float) -> Content:
    """Return the row of a running check: what it waits for, and its time limit."""
    state = "waits for the machine's reading"
    if progress.context is not None:
        state = (
            f"{max(0.0, now - progress.started_at):.0f} of {check.timeout_seconds:.0f} s: waits for {check.waits_for}"
        )
    text = shorten(state, max(0, width - MARK_WIDTH - name_width - 4))
    name = f"  {check.name:<{name_width}}  "
    return Content.assemble(painted(CHECK_RUNNING, _head(CHECK_RUNNING)), name, (text, MUTED))


def _head(mark: Mark) -> str:
    return f"{mark.letter} {mark.word}".ljust(MARK_WIDTH)
