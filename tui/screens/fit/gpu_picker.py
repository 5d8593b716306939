"""Which GPUs a job is held against: these ones, or cards of the catalogue that are not here."""

from dataclasses import dataclass

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label, Select

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.gpu_catalogue import catalogue, find_gpu
from vramtop.estimator.job.job import Job, Target
from vramtop.monitor.board.board import Board
from vramtop.monitor.fit.device_capacity import DeviceCapacity, device_capacities
from vramtop.monitor.snapshot.snapshot import DeviceIndex

_HERE = ""


class GpuPicker(Horizontal):
    """A choice of cards and their number; posts ``Picked`` when another one is made.

    Args:
        chosen: the card to begin with, by a name that the catalogue knows; None: the GPUs that are here.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    GpuPicker { width: 1fr; height: 1; }
    GpuPicker Label { padding: 0 1; }
    GpuPicker Select { width: 30; }
    GpuPicker Input { width: 18; }
    """

    @dataclass
    class Picked(Message):
        """Other GPUs count now."""

    def __init__(self, *, chosen: str | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._cards = {card.name: card for card in catalogue()}
        self._chosen = _card_name(chosen)
        self._count: int | None = None
        self._board: Board | None = None

    def compose(self) -> ComposeResult:
        """The card and how many of it."""
        options = [("these GPUs", _HERE), *((card.label, card.name) for card in self._cards.values())]
        yield Label("on")
        yield Select(options, value=self._chosen, allow_blank=False, compact=True, id="card")
        yield Label("×", id="times")
        yield Input(placeholder="as many as ranks", compact=True, type="integer", max_length=5, id="count")

    def on_mount(self) -> None:
        """Ask for a number only where it counts."""
        self._show_count()

    def show_board(self, board: Board) -> None:
        """These are the GPUs that are here."""
        self._board = board

    @property
    def elsewhere(self) -> int | None:
        """How many cards of the catalogue are meant; None: as many as ranks, or these GPUs."""
        return self._count if self._chosen != _HERE else None

    def rooms(self, ranks: int, *, pinned: Job | None = None) -> tuple[DeviceCapacity, ...]:
        """What the chosen GPUs can give; an empty card of the catalogue has all but the driver's part.

        Args:
            ranks: of the job.
            pinned: a job that waits: what waits behind it takes nothing from it. None: all that wait come first.
        """
        card = self._cards.get(self._chosen)
        if card is not None:
            free_bytes = card.total_bytes - (card.reserved_bytes or 0)
            return tuple(
                DeviceCapacity(
                    index=index, uuid=None, name=card.label, total_bytes=card.total_bytes, free_bytes=free_bytes
                )
                for index in range(self._count or ranks)
            )
        if self._board is None:
            return ()
        return device_capacities(self._board.snapshot, _committed(self._board, pinned))

    def choose(self, card: str | None) -> None:
        """Choose a card by a name that the catalogue knows; None: the GPUs that are here."""
        self.query_one("#card", Select).value = _card_name(card)

    def aimed(self, job: Job) -> Job:
        """The job, meant for the chosen card."""
        return msgspec.structs.replace(job, target=Target(gpu=self._chosen or None))

    @on(Select.Changed, "#card")
    def card_chosen(self, event: Select.Changed) -> None:
        """Hold the job against these from now on."""
        event.stop()
        if event.value != self._chosen:
            self._chosen = str(event.value)
            self._show_count()
            self.post_message(self.Picked())

    @on(Input.Changed, "#count")
    def count_typed(self, event: Input.Changed) -> None:
        """So many cards; nothing typed: as many as the job has ranks."""
        event.stop()
        count = int(event.value) if event.value.isdecimal() and int(event.value) else None
        if count != self._count:
            self._count = count
            self.post_message(self.Picked())

    def _show_count(self) -> None:
        for widget in (self.query_one("#times"), self.query_one("#count")):
            widget.display = self._chosen != _HERE


def _card_name(written: str | None) -> str:
    try:
        return find_gpu(written).name if written else _HERE
    except InputError:
        return _HERE


def _committed(board: Board, pinned: Job | None) -> dict[DeviceIndex, int]:
    """What is spoken for, and what jobs that wait and fit were given before this one."""
    committed = dict(board.committed)
    for row in board.pending:
        if row.job == pinned:
            break
        if row.fit is not None and row.fit.verdict in ("fits", "tight"):
            for room, size in row.fit.bytes_by_device:
                committed[room.device_index] = committed.get(room.device_index, 0) + size
    return committed
