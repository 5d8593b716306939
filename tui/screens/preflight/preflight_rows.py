"""Preflight progress as text: a row for each check, a summary, and a one-line mark for other screens."""

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.job import Job
from vramtop.monitor.preflight.context import Check, CheckResult

from ...draw import CHECK_RUNNING, CHECK_UNKNOWN, CHECKS, MUTED, Mark, printable, shorten
from ...keys import shown_key
from ...reports import MARK_WIDTH, count_outcomes, outcome_lines, outcome_mark, summary_line
from ...widgets import StaticLines

if TYPE_CHECKING:  # it imports all the checks, which a screen that shows only the mark does not need
    from ...background import PreflightProgress


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
        return Content.assemble(_painted(CHECKS["failure"], "nothing is checked: "), printable(progress.problem))
    if progress.done:
        outcomes = progress.worst_first
        return _painted(outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"], summary_line(outcomes))
    if progress.context is None:
        return Content.styled("reading the machine", MUTED)
    so_far = count_outcomes(tuple(progress.outcomes.values()), of=("failure", "warning"))
    words = f"{len(progress.outcomes)} of {len(progress.checks)} checks done"
    return Content.styled(f"{words}; so far {so_far}" if so_far else words, MUTED)


def mark_line(progress: "PreflightProgress | None", *, stale: bool = False) -> Content:
    """Return preflight in a few words, with the key for more: ``preflight: ✗ 2 failures, 1 warning · F12``.

    Args:
        progress: the outcomes; None: preflight has not run.
        stale: the settings have changed since.
    """
    key = shown_key("fit.preflight")
    if progress is None:
        return Content.styled(f"preflight: not run · {key}", MUTED)
    if progress.problem is not None:
        result: Content = _painted(CHECK_UNKNOWN, "? nothing is checked")
    else:
        outcomes = progress.worst_first
        mark = outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"]
        words = (
            count_outcomes(outcomes, of=("failure", "warning"))
            or count_outcomes(outcomes, of=("pass",))
            or "nothing to check"
        )
        result = _painted(mark, f"{mark.letter} {words}")
    old = " (with other settings)" if stale else ""
    return Content.assemble(("preflight: ", MUTED), result, (f"{old} · {key}", MUTED))


class PreflightMark(StaticLines):
    """Preflight in one line of a screen that has a ``preflight`` action; a click runs that action.

    Args:
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "PreflightMark { height: 1; pointer: pointer; text-overflow: ellipsis; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._progress: PreflightProgress | None = None
        self._checked_job: Job | None = None

    def on_mount(self) -> None:
        """Show that preflight has not run."""
        self.show_job(None)

    def show_progress(self, progress: "PreflightProgress", job: Job) -> None:
        """Show the outcomes for this job."""
        self._progress, self._checked_job = progress, job
        self.show_job(job)

    def show_job(self, job: Job | None) -> None:
        """Mark the outcomes as stale if the screen now shows another job than the checked one."""
        self.show(mark_line(self._progress, stale=job != self._checked_job))

    async def on_click(self) -> None:
        """Open the preflight screen."""
        await self.screen.run_action("preflight")


def _row(outcome: CheckResult, name_width: int, width: int) -> list[Content]:
    mark, margin = outcome_mark(outcome), MARK_WIDTH + name_width + 4
    found, advice = outcome_lines(outcome, max(20, width - margin), printable)
    head = Content.assemble(_painted(mark, _head(mark)), f"  {outcome.name:<{name_width}}  ", found[0])
    if outcome.status == "skipped":
        head = Content.assemble(_painted(mark, _head(mark)), (f"  {outcome.name:<{name_width}}  {found[0]}", MUTED))
    rest = [Content.styled(" " * margin + line, MUTED if outcome.status == "skipped" else "") for line in found[1:]]
    return [head, *rest, *(Content.styled(" " * margin + line, "italic") for line in advice)]


def _running_row(check: Check, progress: "PreflightProgress", name_width: int, width: int, now: float) -> Content:
    """Return the row of a running check: what it waits for, and its time limit."""
    state = "for the machine to be read"
    if progress.context is not None:
        state = (
            f"{max(0.0, now - progress.started_at):.0f} of {check.timeout_seconds:.0f} s: waits for {check.waits_for}"
        )
    text = shorten(state, max(0, width - MARK_WIDTH - name_width - 4))
    name = f"  {check.name:<{name_width}}  "
    return Content.assemble(_painted(CHECK_RUNNING, _head(CHECK_RUNNING)), name, (text, MUTED))


def _head(mark: Mark) -> str:
    return f"{mark.letter} {mark.word}".ljust(MARK_WIDTH)


def _painted(mark: Mark, words: str) -> Content:
    return Content.styled(words, f"bold {mark.colour}" if mark.word.isupper() else mark.colour)
