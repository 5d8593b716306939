"""Opens the preflight screen on a pending job of the dashboard."""

from textual.geometry import Offset

from vramtop.estimator.job import Job

from ...keys import shown_key
from ..base import BoardApp
from .screen import open_preflight


def open_pending_preflight(app: BoardApp) -> None:
    """Check the pending job; the user chooses it if there are several."""
    pending = app.board.pending if app.board else ()

    def check(job: Job) -> None:
        open_preflight(app.screen, job, budget=next(row.budget for row in pending if row.job == job))

    if pending:
        bottom = max((widget.region.bottom for widget in app.screen.query("#pending")), default=2)
        app.choose_job([row.job for row in pending], check, Offset(1, bottom))
    else:
        key = shown_key("dashboard.fit_check")
        app.notify(f"No job is pending; press {key} for the fit check, which has preflight, too.", severity="warning")
