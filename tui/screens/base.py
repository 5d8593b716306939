"""The part of the app that screens use: the latest board, the state of the readings, and opening screens."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input

from ..draw.labels import format_duration, shorten, tag
from ..draw.text_output import printable
from ..tty.terminal_app import TerminalApp
from ..widgets.choice import ChoiceMenu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from textual.geometry import Offset
    from textual.widget import Widget

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.attachment import Attachment
    from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.board.watchlist import Watchlist
    from vramtop.monitor.snapshot.demand import Demand
    from vramtop.monitor.snapshot.snapshot import GpuKey, ProcessKey
    from vramtop.monitor.storage.settings.schema import Value

    from ..background.job_estimates import EstimateFunction


STALE_INTERVALS = 3
"""Readings older than this number of intervals are stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFeed:
    """Interval, age and state of the readings."""

    interval: float
    """Seconds between readings."""
    age_seconds: float | None = None
    """Age of the latest reading; None while it is as recent as it should be."""
    paused: bool = False
    failure: str | None = None
    """Why there are no new readings."""
    recording: str | None = None
    """Name of the file that is being recorded."""
    banner: str | None = None
    """A notice in the header, for example that a recording is being played."""


def feed_signs(feed: BoardFeed) -> list[Content]:
    """Return what a header says of the readings: paused, old; nothing where all is as usual."""
    signs = []
    if feed.paused:
        signs.append(tag("paused"))
    if feed.age_seconds is not None:
        signs.append(tag(f"! figures are {format_duration(feed.age_seconds)} old"))
    return signs


_Result = TypeVar("_Result")
_Job = TypeVar("_Job")


@runtime_checkable
class ShowsBoard(Protocol):
    """A screen that receives every new board, and the latest one when it becomes active again."""

    def show_board(self, board: Board) -> None:
        """Show this board; called on the UI thread, about once an interval."""


@runtime_checkable
class ShowsFeed(Protocol):
    """A screen that says how old its figures are."""

    def show_feed(self) -> None:
        """Show how old the readings are; called every second, even when none arrive."""


@runtime_checkable
class DemandsFigures(Protocol):
    """A screen that shows figures which are read only on demand."""

    @property
    def demand(self) -> Demand:
        """The figures that it shows now; asked for with every board, and by ``BoardApp.update_demand``."""


@runtime_checkable
class ShowsGpus(Protocol):
    """A screen with GPUs, one of which is under the cursor."""

    @property
    def selected_gpu(self) -> GpuKey | None:
        """The GPU or MIG device under the cursor, or that of the process under it; None: there is none."""


class BoardApp(TerminalApp):
    """The part of the app that screens may use; ``app.VramtopApp`` implements it."""

    view_only: bool = False
    """Nothing is changed from here."""
    watchlist: Watchlist
    board: Board | None
    """The latest board; None until the first reading."""
    estimate: EstimateFunction | None
    """A quick estimate; None: that of ``estimation``."""
    refine: EstimateFunction | None
    """A better and slower estimate; None: there is none."""
    python: str | None
    """The interpreter that the user gave with ``--python``."""
    fit_draft: Job | None
    """The job that was edited last in the fit check."""
    attach: AutomaticAttach | None
    """Attaches to training processes by itself; None: this is not about this machine."""
    attachments: MutableMapping[ProcessKey, Attachment]
    """Jobs read from followed processes: an ended process can no longer be read."""

    settings: Mapping[str, Value]
    """The settings in force by dotted name, with what was changed in this run; absent: the default."""
    _is_opening = False
    """A screen is being opened."""

    def push_once(self, screen: Screen[None]) -> None:
        """Open a screen, unless another one is being opened: a repeated key opens one screen."""

        async def push() -> None:
            try:
                await self.push_screen(screen)
            finally:
                self._is_opening = False
            if self.board and isinstance(screen, ShowsBoard) and is_complete(screen):
                screen.show_board(self.board)
            self.update_demand()

        if not self._is_opening:
            self._is_opening = True
            self.run_worker(push(), name="open screen")

    def rebuild_board(self) -> None:
        """Build the board again from the latest snapshot, because the set of known jobs has changed."""
        board = self.watchlist.rebuild_board()
        if board is not None:
            self.board = board
            screen = self.screen
            if is_complete(screen) and isinstance(screen, ShowsBoard):
                screen.show_board(board)

    @abstractmethod
    def save_setting(self, name: str, value: Value | None) -> None:
        """Keep what the user has chosen on a screen, for this run and later ones; None: the default again."""

    @property
    @abstractmethod
    def feed(self) -> BoardFeed:
        """Interval, age and state of the readings."""

    @property
    @abstractmethod
    def termination_refusal(self) -> str | None:
        """Why no process can be terminated from here, in one sentence; None: they can be."""

    @property
    @abstractmethod
    def selected_process(self) -> ProcessRow | None:
        """The process under the dashboard's cursor."""

    @abstractmethod
    def update_demand(self) -> None:
        """Have the next reading contain what the screen in front shows now: it has been scrolled, or changed."""

    def choose(
        self, jobs: Sequence[_Job], names: Sequence[str], on_chosen: Callable[[_Job], object], place: Offset
    ) -> None:
        """Call ``on_chosen`` with the only job, or with the one whose name the user chooses in a menu at ``place``."""
        if len(jobs) == 1:
            on_chosen(jobs[0])
            return

        def choose(index: int | None) -> None:
            if index is not None:
                on_chosen(jobs[index])

        shown = [shorten(printable(name), self.size.width - 8) for name in names]
        self.push_screen(ChoiceMenu(shown, place), choose)


def is_complete(screen: Screen[Any]) -> bool:
    """Return True if a screen has all of its widgets: it is neither being opened nor being closed.

    A reading, or the answer of a thread, may arrive in between. A child is mounted once it has its own children.
    """
    if not screen.is_attached or screen not in screen.app.screen_stack or not screen.children:
        return False
    return all(child.is_mounted for child in screen.children)


def is_ascii_only(widget: Widget) -> bool:
    """Return True if the widget's app draws with ASCII characters only."""
    return isinstance(widget.app, TerminalApp) and widget.app.ascii_only


def is_view_only(widget: Widget) -> bool:
    """Return True if the widget's app changes nothing."""
    return isinstance(widget.app, BoardApp) and widget.app.view_only


class DrawnScreen(Screen[_Result], Generic[_Result]):
    """A screen whose contents are drawn for its size."""

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def redraw(self) -> None:
        """Draw, if the screen has its widgets and a size."""
        if is_complete(self) and self.size.width:
            self.draw()

    def draw(self) -> None:
        """Draw everything that may have changed."""
        raise NotImplementedError


class FilterField(Input):
    """A line for the words of a filter, which is hidden while there is none."""

    DEFAULT_CSS = "FilterField { height: 1; display: none; }"

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="filter", placeholder=placeholder, compact=True)

    def open(self) -> None:
        """Type words."""
        self.display = True
        self.focus()
        self.screen.refresh_bindings()

    def close(self, focused: Widget) -> None:
        """Forget the words, and give the focus to this widget."""
        self.value, self.display = "", False
        focused.focus()
        self.screen.refresh_bindings()
