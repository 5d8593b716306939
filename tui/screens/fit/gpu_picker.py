"""The choice of GPUs a job is compared with: those of this machine, or a number of one model in the catalogue."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.gpu_catalogue import catalogue, find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.resolved_job import settles
from vramtop.estimator.job.settings import Target
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.fit import DeviceCapacity, device_capacities
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import DeviceIndex

from ...job.form.job_form import JobForm
from ...widgets.choice import Choice
from ...widgets.match_list import SearchChoice
from .verdict_pane import Advice, Capacity, capacity_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.monitor.host.available_ram import HostRam

    from ...job.dialogs import OpenedJob
    from ...job.load_job import LoadedJob

_HERE = ""
_HERE_WORDS = "these GPUs"


class GpuPicker(Horizontal):
    """A model of GPU and a count; posts ``Changed`` when the user chooses another.

    Args:
        chosen: the model at first, by a name in the catalogue; None: the GPUs of this machine.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    GpuPicker { width: 1fr; height: 1; padding: 0 1; }
    GpuPicker Label { padding: 0 1; }
    GpuPicker #on { width: 24; }
    GpuPicker SearchChoice { width: 1fr; max-width: 46; }
    GpuPicker Input { width: 9; }
    """

    @dataclass
    class Changed(Message):
        """The user has chosen other GPUs."""

    def __init__(self, *, chosen: str | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._catalogue = {gpu.name: gpu for gpu in catalogue()}
        self._names = (_HERE, *self._catalogue)
        self._words = (_HERE_WORDS, *(gpu.label for gpu in self._catalogue.values()))
        self._chosen = _catalogue_name(chosen)
        self._count: int | None = None
        self._board: Board | None = None

    def compose(self) -> ComposeResult:
        """The model and the count."""
        yield Label("on", id="on")
        yield SearchChoice(self._words, self._word(self._chosen), id="gpu-model")
        if self._chosen != _HERE:
            yield from _count_widgets()

    def show_board(self, board: Board) -> None:
        """Take the GPUs of this machine from the latest board."""
        self._board = board

    @property
    def catalogue_count(self) -> int | None:
        """The typed count of GPUs of a catalogue model; None: one per rank, or the GPUs of this machine."""
        return self._count if self._chosen != _HERE else None

    def devices(self, ranks: int, *, pinned: Job | None = None) -> tuple[DeviceCapacity, ...]:
        """Return the chosen GPUs; one of the catalogue is empty but for the memory that the driver reserves.

        Args:
            ranks: number of ranks of the job.
            pinned: the pending job: memory is kept for the jobs before it, not for those after it. None: memory is
                kept for all pending jobs.
        """
        gpu = self._catalogue.get(self._chosen)
        if gpu is not None:
            free_bytes = gpu.total_bytes - (gpu.reserved_bytes or 0)
            alike = DeviceCapacity(
                index=0,
                uuid=None,
                name=gpu.label,
                total_bytes=gpu.total_bytes,
                free_bytes=free_bytes,
                count=self._count or ranks,
            )
            return (alike,)
        if self._board is None:
            return ()
        return device_capacities(self._board.snapshot, _committed(self._board, pinned))

    def choose(self, gpu: str | None) -> None:
        """Choose a model by a name in the catalogue; None: the GPUs of this machine."""
        self.query_one("#gpu-model", Choice).value = self._word(_catalogue_name(gpu))

    def with_target(self, job: Job) -> Job:
        """Return the job with the chosen model as its target."""
        return msgspec.structs.replace(job, target=Target(gpu=self._chosen or None))

    @on(Choice.Changed)
    def model_chosen(self, event: Choice.Changed) -> None:
        """Use the chosen model."""
        event.stop()
        chosen = self._names[self._words.index(event.value)]
        if chosen != self._chosen:
            self._chosen = chosen
            self._show_count()
            self.post_message(self.Changed())

    @on(Input.Changed, "#count")
    def count_typed(self, event: Input.Changed) -> None:
        """Use the typed count; without one, a GPU per rank."""
        event.stop()
        count = int(event.value) if event.value.isdecimal() and int(event.value) else None
        if count != self._count:
            self._count = count
            self.post_message(self.Changed())

    @property
    def number(self) -> int:
        """Number of the chosen GPUs; of a catalogue model without a count, 1."""
        here = len(self._board.gpus) if self._board else 1
        return here if self._chosen == _HERE else self._count or 1

    def _word(self, name: str) -> str:
        return self._words[self._names.index(name)]

    def on_descendant_focus(self) -> None:
        """Post that the focus is here, as the form does for its fields."""
        self.post_message(JobForm.FieldFocused("target.gpu"))

    def _show_count(self) -> None:
        """Show the count if a model of the catalogue is chosen."""
        if not self.query("#count"):
            self.mount(*_count_widgets())
        for widget in (self.query_one("#times"), self.query_one("#count")):
            widget.display = self._chosen != _HERE


def _count_widgets() -> tuple[Widget, Widget]:
    count = Input(placeholder="per rank", compact=True, type="integer", max_length=5, id="count")
    return Label("×", id="times"), count


def _catalogue_name(written: str | None) -> str:
    try:
        return find_gpu(written).name if written else _HERE
    except InputError:
        return _HERE


def _committed(board: Board, pinned: Job | None) -> dict[DeviceIndex, int]:
    """Return the committed bytes, with those of pending jobs that fit and come before this one."""
    committed = dict(board.committed)
    for row in board.pending:
        if row.job == pinned:
            break
        if row.fit is not None and row.fit.verdict in ("fits", "tight"):
            for device, size in row.fit.bytes_by_device:
                committed[device.device_index] = committed.get(device.device_index, 0) + size
    return committed


# Earlier versions of the edited job; consecutive edits of one field are one step.


_Version = tuple[Job, frozenset[str]]

_MAX_STEPS = 100


class UndoHistory:
    """The versions of a job, and the way back.

    Args:
        job: the first version.
    """

    def __init__(self, job: Job) -> None:
        self._current: _Version = (job, frozenset())
        self._earlier: list[_Version] = []
        self._field: str | None = None

    @property
    def current(self) -> Job:
        """The latest version."""
        return self._current[0]

    @property
    def edited(self) -> frozenset[str]:
        """Keys of the fields that the user had edited in the latest version."""
        return self._current[1]

    @property
    def can_undo(self) -> bool:
        """True if there is an earlier version."""
        return bool(self._earlier)

    def record(self, job: Job, field: str | None = None, *, edited: frozenset[str] = frozenset()) -> bool:
        """Record a new version, and return True if it is the first that can be undone.

        Args:
            job: the job as it is now.
            field: key of the edited field; None: a step of its own, whatever came before.
            edited: keys of all fields that the user has edited.
        """
        if job == self.current:
            return False
        could_undo = self.can_undo
        if field is None or field != self._field:
            self._earlier = [*self._earlier, self._current][-_MAX_STEPS:]
        self._current, self._field = (job, edited), field
        return self.can_undo and not could_undo

    def amend(self, job: Job) -> None:
        """Replace the latest version by one that follows from the same edit."""
        self._current = (job, self.edited)

    def undo(self) -> Job | None:
        """Go back one step and return that version; None if there is none."""
        if not self._earlier:
            return None
        self._current, self._field = self._earlier.pop(), None
        return self.current


# The state of the fit check apart from its widgets: the edited job, where it was read, and its pinned version.


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
        from ...job.load_job import load_again  # not before something was opened

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
        from ...job.load_job import changed_settings_text

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
