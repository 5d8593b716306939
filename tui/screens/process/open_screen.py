"""Opens the process screen on the process that the screen in front shows."""

from vramtop.monitor.snapshot import ProcessKey

from ..base import BoardApp, ShowsProcess
from .screen import ProcessInfoScreen


def open_process(app: BoardApp) -> None:
    """Show the process under the cursor of the dashboard or of the attach screen."""
    front = app.screen
    if isinstance(front, ShowsProcess):
        key = front.shown_process
    else:
        key = app.selected_process.process.key if app.selected_process else None
    show_process_details(app, key)


def show_process_details(app: BoardApp, key: ProcessKey | None) -> None:
    """Show a process; None: there is none, and a notification says so."""
    if key is None:
        app.notify("There is no process under the cursor.", severity="warning")
    else:
        app.push_once(ProcessInfoScreen(key))
