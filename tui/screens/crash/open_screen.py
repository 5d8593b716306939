"""Opens the crash screen: on a process that ended out of memory, or to ask for a log or a snapshot."""

from vramtop.monitor.board import ProcessRow

from ..base import BoardApp
from .failure_of_row import failure_of_row
from .screen import CrashScreen


def open_crash(app: BoardApp) -> None:
    """Explain the process under the cursor if it ended out of memory; otherwise ask for a file."""
    row = app.selected_process
    if row is None or not open_crash_on(app, row):
        app.push_once(CrashScreen(row=row if row and row.budget else None))


def open_crash_on(app: BoardApp, row: ProcessRow) -> bool:
    """Explain the end of this process; return False if it did not end out of memory."""
    failure = failure_of_row(row)
    if failure is None:
        return False
    app.push_once(CrashScreen(failure, row=row))
    return True
