"""What preflight has found so far: a row for each check, the sum, and the sum in few words for other screens."""

from typing import TYPE_CHECKING

from textual.content import Content

from vramtop.estimator.job.job import Job
from vramtop.monitor.preflight.context.check import Check, CheckResult

from ...draw.labels import MUTED, shorten
from ...draw.palette import CHECK_RUNNING, CHECK_UNKNOWN, CHECKS, Mark
from ...draw.text_output import printable
from ...reports.preflight_text import MARK_WIDTH, count_outcomes, outcome_lines, outcome_mark, summary_line
from ...widgets.static_lines import StaticLines

if TYPE_CHECKING:  # it brings all the checks, which a screen with nothing but the mark has no need of
    from ...background.preflight_run import PreflightProgress


def check_rows(looked: "PreflightProgress", *, width: int, now: float) -> list[Content]:
    """A row for each check: in their order while some still run, failures first once all are in.

    Args:
        looked: how far it has come.
        width: cells of a line.
        now: by ``time.monotonic``.
    """
    name_width = max((len(check.name) for check in looked.checks), default=0)
    if looked.done:
        return [line for outcome in looked.worst_first for line in _row(outcome, name_width, width)]
    rows: list[Content] = []
    for check in looked.checks:
        outcome = looked.outcomes.get(check.name)
        waits = [_waiting(check, looked, name_width, width, now)] if outcome is None else []
        rows += waits if outcome is None else _row(outcome, name_width, width)
    return rows


def sum_row(looked: "PreflightProgress") -> Content:
    """The last line: what it comes to, or how far it has come."""
    if looked.problem is not None:
        return Content.assemble(_painted(CHECKS["failure"], "nothing is checked: "), printable(looked.problem))
    if looked.done:
        outcomes = looked.worst_first
        return _painted(outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"], summary_line(outcomes))
    if looked.context is None:
        return Content.styled("reading the machine", MUTED)
    so_far = count_outcomes(tuple(looked.outcomes.values()), of=("failure", "warning"))
    words = f"{len(looked.outcomes)} of {len(looked.checks)} checks done"
    return Content.styled(f"{words}; so far {so_far}" if so_far else words, MUTED)


def mark_line(looked: "PreflightProgress | None", *, stale: bool = False, key: str = "F12") -> Content:
    """Preflight in a few words, and the key that shows more: ``preflight: ✗ 2 failures, 1 warning · F12``.

    Args:
        looked: all of it; None: nobody has asked for it.
        stale: it was with other settings.
        key: what opens the screen.
    """
    if looked is None:
        return Content.styled(f"preflight: not looked at yet · {key}", MUTED)
    if looked.problem is not None:
        said: Content = _painted(CHECK_UNKNOWN, "? nothing is checked")
    else:
        outcomes = looked.worst_first
        mark = outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"]
        words = (
            count_outcomes(outcomes, of=("failure", "warning"))
            or count_outcomes(outcomes, of=("pass",))
            or "nothing to check"
        )
        said = _painted(mark, f"{mark.letter} {words}")
    old = " (with other settings)" if stale else ""
    return Content.assemble(("preflight: ", MUTED), said, (f"{old} · {key}", MUTED))


class PreflightMark(StaticLines):
    """Preflight in one line of another screen, which has a ``preflight`` action; a click is that action.

    Args:
        key: what that screen's action is bound to.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = "PreflightMark { height: 1; pointer: pointer; text-overflow: ellipsis; }"

    def __init__(self, *, key: str = "F12", id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._key = key
        self._looked: PreflightProgress | None = None
        self._of: Job | None = None

    def on_mount(self) -> None:
        """Nobody has asked for it yet."""
        self.show_job(None)

    def take(self, looked: "PreflightProgress", job: Job) -> None:
        """This was found for the job."""
        self._looked, self._of = looked, job
        self.show_job(job)

    def show_job(self, job: Job | None) -> None:
        """The screen shows this job now: what was found for another one is marked as such."""
        self.show(mark_line(self._looked, stale=job != self._of, key=self._key))

    async def on_click(self) -> None:
        """Show more."""
        await self.screen.run_action("preflight")


def _row(outcome: CheckResult, name_width: int, width: int) -> list[Content]:
    mark, margin = outcome_mark(outcome), MARK_WIDTH + name_width + 4
    found, advice = outcome_lines(outcome, max(20, width - margin), printable)
    head = Content.assemble(_painted(mark, _head(mark)), f"  {outcome.name:<{name_width}}  ", found[0])
    if outcome.status == "skipped":
        head = Content.assemble(_painted(mark, _head(mark)), (f"  {outcome.name:<{name_width}}  {found[0]}", MUTED))
    rest = [Content.styled(" " * margin + line, MUTED if outcome.status == "skipped" else "") for line in found[1:]]
    return [head, *rest, *(Content.styled(" " * margin + line, "italic") for line in advice)]


def _waiting(check: Check, looked: "PreflightProgress", name_width: int, width: int, now: float) -> Content:
    """A check that still runs: for what it waits, and for how long it may."""
    waits = "for the machine to be read"
    if looked.context is not None:
        waits = f"{max(0.0, now - looked.begun_at):.0f} of {check.timeout_seconds:.0f} s: waits for {check.waits_for}"
    text = shorten(waits, max(0, width - MARK_WIDTH - name_width - 4))
    name = f"  {check.name:<{name_width}}  "
    return Content.assemble(_painted(CHECK_RUNNING, _head(CHECK_RUNNING)), name, (text, MUTED))


def _head(mark: Mark) -> str:
    return f"{mark.letter} {mark.word}".ljust(MARK_WIDTH)


def _painted(mark: Mark, words: str) -> Content:
    return Content.styled(words, f"bold {mark.colour}" if mark.word.isupper() else mark.colour)
