"""Preflight in one line of another screen, with the key for more."""

from textual.content import Content

from vramtop.estimator.job.job import Job

from ...background.preflight_run import PreflightProgress
from ...draw.labels import MUTED
from ...draw.palette import CHECK_UNKNOWN, CHECKS, Mark
from ...keys import shown_key
from ...reports.preflight_text import count_outcomes, outcome_mark
from ...widgets.static_lines import StaticLines


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
        result: Content = painted(CHECK_UNKNOWN, "? cannot check")
    else:
        outcomes = progress.worst_first
        mark = outcome_mark(outcomes[0]) if outcomes else CHECKS["skipped"]
        words = (
            count_outcomes(outcomes, of=("failure", "warning"))
            or count_outcomes(outcomes, of=("pass",))
            or "nothing to check"
        )
        result = painted(mark, f"{mark.letter} {words}")
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


def painted(mark: Mark, words: str) -> Content:
    """Return words in the colour of a mark, bold if it needs attention."""
    return Content.styled(words, f"bold {mark.colour}" if mark.word.isupper() else mark.colour)
