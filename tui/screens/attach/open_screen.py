"""Opens the attach screen: on the latest run, on a given process, or to ask for a process."""

from vramtop.estimator.estimation import estimate

from ..base import BoardApp
from .screen import AttachScreen


def open_attach(app: BoardApp) -> None:
    """Show the latest run, or ask for a process if no run is followed."""
    runs = app.board.runs if app.board else ()
    pid, start_time = runs[-1].pids[0] if runs and runs[-1].pids else (None, None)
    open_attach_on(app, pid, start_time)


def open_attach_on(app: BoardApp, pid: int | None, start_time: float | None = None) -> None:
    """Open the screen on this process; None: ask for one."""
    screen = AttachScreen(
        app.watchlist,
        estimate=app.estimate or estimate,
        estimate_changed=estimate,
        refine=app.refine,
        attached=app.attachments,
        board=app.board,
        pid=pid,
        start_time=start_time,
    )
    app.push_once(screen)
