"""The state of the fit check apart from its widgets: the edited job, where it was read, and its pinned version."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import Job, settles
from vramtop.monitor.board import Board, Watchlist
from vramtop.monitor.board.fit import DeviceCapacity

from .undo_history import UndoHistory
from .verdict_pane import Advice, Capacity, capacity_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.monitor.host import HostRam

    from ...job import LoadedJob, OpenedJob


class FitSession:
    """One fit check, from the initial job to the last edit.

    Args:
        watchlist: receives the job when it is pinned as pending.
        initial: the job to start from.
        pinned: the pending job that is being edited; None: the job is not pending.
    """

    def __init__(self, watchlist: Watchlist, initial: Job, pinned: Job | None) -> None:
        self._watchlist = watchlist
        self._host: HostRam | None = None
        self.initial = initial
        self.history = UndoHistory(initial)
        self.pinned = pinned
        """The pending version of the job: pinning again replaces it."""
        self.opened: OpenedJob | None = None
        """The file, launch line or model that the user opened last."""
        self.capacity = Capacity()
        """The GPUs and the RAM that the job is compared with."""

    @property
    def file(self) -> Path | None:
        """The job file that the job was read from; None: there was none."""
        return self.opened.loaded.file if self.opened else None

    @property
    def launch(self) -> list[str] | None:
        """Words of the launch line that the job was read from; None: there was none."""
        if self.opened is None or not self.opened.loaded.is_launch_line:
            return None
        return shlex.split(self.opened.text)

    def open(self, opened: "OpenedJob") -> None:
        """Replace the job by one that was read from a file, a launch line or a model."""
        self.opened, self.pinned = opened, None
        self.history.record(opened.loaded.job)

    @property
    def read_again(self) -> "Callable[[Mapping[str, Any]], LoadedJob] | None":
        """Reads what was opened again with the user's values by job key, not for the UI thread; None: nothing was."""
        from ...job import load_again  # not before something was opened

        opened = self.opened
        return None if opened is None else lambda edits: load_again(opened.text, opened.loaded, edits)

    def pin(self, job: Job, budget: Budget) -> None:
        """Make the job pending, in place of the version that was pinned before."""
        if self.pinned is not None and self.pinned != job:
            self._watchlist.remove_pending(self.pinned)
        self.pinned = job
        self._watchlist.add_pending(job)
        if budget.method != "formula" and settles(budget.job, job):
            self._watchlist.set_budget(budget)

    def changes_text(self, job: Job, gpus: int | None) -> str:
        """Return the changed settings, as flags of vramtop and as edits of the file that was opened."""
        from ...job import changed_settings_text

        loaded, text = (self.opened.loaded, self.opened.text) if self.opened else (None, "")
        return changed_settings_text(job, loaded, text, gpus=gpus)

    def set_board(self, board: Board) -> None:
        """Take the RAM of this machine from the latest board."""
        self._host = self._watchlist.host_memory(board.snapshot)

    def set_devices(self, devices: tuple[DeviceCapacity, ...], budget: Budget | None, advice: Advice | None) -> bool:
        """Compare the job with these GPUs; return True if the budget's advice is out of date now."""
        is_local = budget is None or budget.job.target.gpu is None
        before, self.capacity = self.capacity, Capacity(devices=devices, host=self._host if is_local else None)
        if budget is None:
            return False
        offered = advice.suggestions if advice else ()
        return capacity_fingerprint(offered, budget, before) != capacity_fingerprint(offered, budget, self.capacity)
