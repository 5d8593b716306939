"""Opens the fit check: on a pending job, on the job that was edited last, or on a new one."""

from typing import TYPE_CHECKING

from textual.geometry import Offset

from vramtop.estimator.job import Job, ModelSpec
from vramtop.monitor.storage import RecentModels

from ...draw import printable
from ...widgets import ChoiceMenu
from ..base import BoardApp
from .screen import FitCheckScreen

if TYPE_CHECKING:
    from vramtop.estimator.estimation import QuickEstimator

_MENU_PLACE = Offset(2, 2)


def open_fit_check(app: BoardApp) -> None:
    """Open the fit check; the user chooses the job if there are several."""
    pending, draft = app.watchlist.pending(), app.fit_draft
    drafts = [draft] if draft and draft not in pending else []
    jobs: list[Job | None] = [*pending, *drafts, None]
    if len(jobs) == 1:
        _open(app, None)
        return
    names = [f"{job.label} ({'pending' if job in pending else 'as you left it'})" if job else "new" for job in jobs]

    def choose(index: int | None) -> None:
        if index is not None:
            _open(app, jobs[index])

    app.push_screen(ChoiceMenu([printable(name) for name in names], _MENU_PLACE), choose)


def _open(app: BoardApp, job: Job | None) -> None:
    watchlist = app.watchlist

    def make_quick_estimator(job: Job) -> "QuickEstimator":
        from vramtop.estimator.estimation import quick_estimator  # not before the screen is shown

        return quick_estimator(job, gpu=None if job.target.gpu else watchlist.gpu_type)

    def keep_draft(job: Job) -> None:
        if job.model != ModelSpec():
            app.fit_draft = job

    screen = FitCheckScreen(
        watchlist,
        estimate=watchlist.estimate,
        refine=app.refine,
        quick_estimator=make_quick_estimator,
        initial=job,
        pinned=job if job in watchlist.pending() else None,
        recent=RecentModels(),
        on_close=keep_draft,
    )
    app.push_once(screen)
