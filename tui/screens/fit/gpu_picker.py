"""The choice of GPUs that a job is compared with: those of this machine, or a model of the catalogue and a count."""

from collections.abc import Callable, Iterable

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label

from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CancelledError, InputError, Verdict, VramtopError
from vramtop.estimator.job.gpu_catalogue import catalogue, find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Target
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.attach.chosen_devices import ChosenDevices, chosen_devices
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices, described_devices, device_capacities
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.board.fit_result import FitResult
from vramtop.monitor.snapshot.snapshot import DeviceIndex

from ...job.advice import Advice, EstimateJob, find_advice
from ...job.form.job_form import JobForm
from ...widgets.choice import Choice
from ...widgets.match_list import SearchChoice

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
    GpuPicker.-catalogue #on { width: 4; }
    GpuPicker SearchChoice { width: 1fr; max-width: 46; }
    GpuPicker Input { width: 9; }
    """

    class Changed(Message):
        """The user has chosen other GPUs."""

    def __init__(self, *, chosen: str | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._catalogue = {gpu.name: gpu for gpu in catalogue()}
        self._names = (_HERE, *self._catalogue)
        self._words = (_HERE_WORDS, *(gpu.label for gpu in self._catalogue.values()))
        self._chosen = _catalogue_name(chosen)
        self.set_class(self._chosen != _HERE, "-catalogue")  # names of cards are long
        self._count: int | None = None
        self._board: Board | None = None
        self._choice: DeviceChoice | None = None
        self._limited = ChosenDevices()

    def compose(self) -> ComposeResult:
        """The model and the count."""
        yield Label("on", id="on")
        yield SearchChoice(self._words, self._word(self._chosen), id="gpu-model")
        if self._chosen != _HERE:
            yield from _count_widgets()

    def show_board(self, board: Board) -> None:
        """Take the GPUs of this machine from the latest board."""
        listed = [] if self._board is None else [gpu.uuid for gpu in self._board.snapshot.gpus]
        self._board = board
        if self._choice is not None and listed != [gpu.uuid for gpu in board.snapshot.gpus]:
            self.limit(self._choice)

    def limit(self, choice: DeviceChoice | None) -> tuple[str, ...]:
        """Count this machine's GPUs that a job chooses for itself, or all; return notes about them."""
        self._choice, self._limited = choice, ChosenDevices()
        if choice is None or self._board is None:
            return ()
        try:
            self._limited = chosen_devices(choice, {}, self._board.snapshot.gpus)
        except InputError as error:
            return (f"{error.message}.",)
        return self._limited.notes

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
            return described_devices(gpu, gpu.total_bytes, self._count or ranks)
        if self._board is None:
            return ()
        return device_capacities(self._board.snapshot, _committed(self._board, pinned), self._limited.selection)

    def choose(self, gpu: str | None) -> None:
        """Choose a model by a name in the catalogue; None: the GPUs of this machine."""
        self.query_one("#gpu-model", Choice).value = self._word(_catalogue_name(gpu))

    def with_target(self, job: Job) -> Job:
        """Return the job with its target: the card chosen here, or those GPUs of this machine that the job names."""
        limited = self._chosen == _HERE and self._limited.selection is not None
        devices = [device.uuid for device in self.devices(1) if device.uuid is not None] if limited else []
        return msgspec.structs.replace(job, target=Target(gpu=self._chosen or None, devices=devices))

    @on(Choice.Changed)
    def model_chosen(self, event: Choice.Changed) -> None:
        """Use the chosen model."""
        event.stop()
        chosen = self._names[self._words.index(event.value)]
        if chosen != self._chosen:
            self._chosen = chosen
            if not self.query("#count"):
                self.mount(*_count_widgets())
            self.set_class(chosen != _HERE, "-catalogue")
            for widget in (self.query_one("#times"), self.query_one("#count")):
                widget.display = chosen != _HERE
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


def _count_widgets() -> tuple[Widget, Widget]:
    count = Input(placeholder="per rank", compact=True, type="integer", max_length=5, valid_empty=True, id="count")
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


_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whether budgets fit."""

    devices: tuple[DeviceCapacity, ...] = ()
    host: int | None = None
    """Bytes of RAM; None: not compared."""

    def fit(self, budget: Budget) -> FitResult:
        """Return the GPUs that the job would take, and whether their memory is enough."""
        found = check_fit(budget, self.devices)
        if self.host is None:
            return found
        ranks = max(1, min(budget.job.parallel.processes, count_devices(self.devices)))
        return with_host_memory(found, budget, self.host, ranks=ranks)

    def verdict(self, budget: Budget) -> Verdict:
        """Return only the verdict of ``fit``."""
        return self.fit(budget).verdict

    def tightest(self, budget: Budget) -> DeviceCapacity | None:
        """Return the GPU that would have the least memory left with the job on it; None: there is none."""
        tightest = self.fit(budget).tightest
        return None if tightest is None else tightest.device


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    tightest = capacity.tightest(budget)
    available = None if tightest is None else tightest.available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]


QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""


def advice_on(budget: Budget, capacity: Capacity, quick_estimator: QuickEstimatorFor) -> Advice:
    """Search for advice on the budget's job; the result is empty if the quick estimate has no rule for its model.

    Raises:
        CancelledError: the search was cancelled (see ``CancelToken``).
    """
    if not capacity.devices:
        return Advice(budget=budget)
    try:
        quick = quick_estimator(budget.job)
        return find_advice(budget, capacity.verdict, quick, gpus=count_devices(capacity.devices))
    except CancelledError:
        raise
    except VramtopError:
        return Advice(budget=budget)
