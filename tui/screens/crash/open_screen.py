"""Opens the crash screen: on a process that ended out of memory, or to ask for a log or a snapshot."""

from collections.abc import Callable, Iterator
from pathlib import Path

from vramtop.estimator.common import InputError
from vramtop.estimator.crash import MemorySnapshot, read_crash_file
from vramtop.monitor.board import ProcessRow

from ..base import BoardApp
from ..step import OpenedFile
from .failure_of_row import failure_of_row
from .screen import CrashScreen

_MAX_BYTES = 256 * 2**20
"""A larger snapshot, which takes ten seconds and more to read, is opened only if the user asks for it."""


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
    app.push_once(CrashScreen(failure, row=row, find_snapshot=_finder(app, row.process.pid)))
    return True


def _finder(app: BoardApp, pid: int) -> Callable[[], OpenedFile | None]:
    """Return a function that reads the snapshot that a process has left in its folder; it returns None for none."""
    folders = [
        attachment.cwd
        for attachment in app.attachments.values()
        if attachment.cwd is not None and any(rank.pid == pid for rank in attachment.ranks)
    ]

    def find() -> OpenedFile | None:
        path = next(_snapshots(folders, pid), None)
        if path is None:
            return None
        content = read_crash_file(str(path))
        if not isinstance(content, MemorySnapshot):  # a damaged one may look like a log
            raise InputError(f"{path}: it is not a memory snapshot")
        return OpenedFile(name=str(path), content=content)

    return find


def _snapshots(folders: list[Path], pid: int) -> Iterator[Path]:
    """Yield the files of ``vramtop run --snapshot-on-oom`` in these folders, by their names."""
    for folder in folders:
        for pattern in (f"vramtop-oom-{pid}.pickle", f"vramtop-oom-rank*-{pid}.pickle"):
            yield from (path for path in folder.glob(pattern) if path.stat().st_size <= _MAX_BYTES)
