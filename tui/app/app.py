"""The app: it owns the sampler thread and the latest board, and passes every new board to the visible screens."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.message import Message

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.monitor.board.budget_cache import job_key
from vramtop.monitor.host.terminate import refusal_reason
from vramtop.monitor.snapshot.demand import Demand
from vramtop.monitor.sources.sampler import EarlySampler, Sampler
from vramtop.monitor.storage.settings.schema import THEME

from ..keys import APP_KEYS, shown_key
from ..screens.base import STALE_INTERVALS, BoardApp, BoardFeed, DemandsFigures, ShowsBoard, ShowsFeed, is_complete
from ..screens.dashboard.gpu_rows import GpuRows
from ..screens.dashboard.process_table import ProcessTable
from ..screens.dashboard.screen import DashboardScreen
from ..screens.registry import SCREENS, preload_screens
from .help import HelpScreen
from .options import AppOptions
from .themes import DEFAULT_THEME, THEMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.binding import BindingType
    from textual.screen import Screen
    from textual.theme import Theme

    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.board.watchlist import Watchlist
    from vramtop.monitor.snapshot.snapshot import Snapshot
    from vramtop.monitor.sources.sampler import SnapshotSource
    from vramtop.monitor.storage.settings.schema import Value

    from ..background.recorder import Recorder


@dataclass
class BoardUpdated(Message):
    """There is a new board: of a new snapshot, or rebuilt from the latest one because the known jobs changed."""

    board: Board
    rebuilt: bool = False

    def can_replace(self, message: Message) -> bool:
        """Replace an earlier board that is still in the queue."""
        return isinstance(message, BoardUpdated)


@dataclass
class SourceFailed(Message):
    """The source could not be read."""

    sentence: str


class VramtopApp(BoardApp):
    """The dashboard and the screens that open from it.

    Args:
        source: where snapshots come from; read on a thread of its own, which may run already.
        watchlist: knows the jobs, and builds boards from snapshots.
        options: everything else.
    """

    TITLE = "vramtop"
    CSS_PATH = "vramtop.tcss"
    BINDINGS: ClassVar[list[BindingType]] = APP_KEYS
    stop_seconds = 0.1
    """Quitting waits this long for the sampler: a driver call may hang."""
    _current_theme: Theme | None = None

    def __init__(
        self, source: SnapshotSource | EarlySampler, watchlist: Watchlist, options: AppOptions | None = None
    ) -> None:
        self._options = options = options or AppOptions()
        super().__init__(colours=options.colours, ascii_only=options.ascii_only)
        self._choose_theme(options.theme)
        self.watchlist, self.settings = watchlist, options.settings
        self.board = None
        self.estimate, self.refine, self.python = options.estimate, options.refine, options.python
        self.fit_draft = None
        self.attach = options.attach
        self.attachments = self.attach.known if self.attach else {}
        self._fits_changed: dict[bytes, float] = {}
        """When the verdict of each pending job last changed, by its label."""
        self._board_at: float | None = None
        """Arrival of the latest board, by the clock of the options."""
        self._failure: str | None = None
        self._recorder: Recorder | None = None
        self._early_sampler = source if isinstance(source, EarlySampler) else None
        self._sampler = (
            source.sampler
            if isinstance(source, EarlySampler)
            else Sampler(source, options.interval, self._build_board, self._report_failure)
        )

    @property
    def available_themes(self) -> dict[str, Theme]:
        """The themes by name: vramtop's, then Textual's. Read before ``__init__`` could register any."""
        return {**{theme.name: theme for theme in THEMES}, **super().available_themes}

    @property
    def current_theme(self) -> Theme:
        """The chosen theme; Textual asks for it with every line that it draws."""
        if self._current_theme is None or self._current_theme.name != self.theme:
            self._current_theme = super().current_theme
        return self._current_theme

    def _choose_theme(self, name: str | None) -> None:
        """Use the theme of this name; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
        wanted = self.get_theme(name or os.environ.get("TEXTUAL_THEME") or DEFAULT_THEME)
        self.theme = DEFAULT_THEME if wanted is None else wanted.name

    def save_setting(self, name: str, value: Value | None) -> None:
        """Keep what the user has chosen on a screen, for this run and later ones."""
        values = self._options.settings
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
        self._options.save_setting(name, value)

    @property
    def feed(self) -> BoardFeed:
        """Interval, age and state of the readings."""
        age = None if self._board_at is None else self._options.clock() - self._board_at
        is_stale = age is not None and age > STALE_INTERVALS * self._sampler.interval
        return BoardFeed(
            interval=self._sampler.interval,
            age_seconds=age if is_stale else None,
            paused=self._sampler.paused,
            recording=self._recorder.path.name if self._recorder else None,
            failure=self._failure,
            banner=self._options.banner,
        )

    @property
    def termination_refusal(self) -> str | None:
        """Why no process can be terminated from here, in one sentence; None: they can be."""
        if self._options.read_only:
            return "vramtop was started with --read-only, or dashboard.read_only is set, so it does not end processes."
        return refusal_reason(self.board.snapshot.source) if self.board else "No processes have been read yet."

    @property
    def selected_process(self) -> ProcessRow | None:
        """The process under the dashboard's cursor."""
        return next((screen.selected_process for screen in self._dashboards()), None)

    def get_default_screen(self) -> Screen[None]:
        """Return the dashboard."""
        return DashboardScreen()

    def on_mount(self) -> None:
        """Start the sampler, or take over the one that runs already; show what was found before the app was open."""
        warn = partial(self.notify, severity="warning", markup=False)
        for sentence in self._options.notices.show_on(partial(self.call_from_thread, warn)):
            warn(sentence)
        if (name := self._options.theme) and self.get_theme(name) is None:
            palette = f"the command palette ({shown_key('app.palette')})"
            warn(f"There is no theme {name}; {palette} lists the themes.")
        self.call_after_refresh(_resume_garbage_collection)
        if self.attach is not None:
            self.attach.on_change = self._post_rebuilt_board
            self.call_after_refresh(self.attach.start)
        self.theme_changed_signal.subscribe(self, self._redraw)
        self.set_interval(1.0, self._show_feed)
        if self._early_sampler:
            latest = self._early_sampler.subscribe(self._build_board, self._report_failure)
            if isinstance(latest, VramtopError):
                self._failure = latest.message
            elif latest is not None:
                self._set_board(latest)
                if self.attach is not None:
                    self.attach.observe(latest)
        else:
            self._sampler.start()
        if self._options.preload_after is not None:
            self.set_timer(self._options.preload_after, preload_screens)
        if self._options.pid is not None:
            from ..screens.attach.screen import open_attach_on

            open_attach_on(self, self._options.pid)

    def on_unmount(self) -> None:
        """Stop the sampler, without waiting for a driver call that hangs."""
        self._sampler.stop(self.stop_seconds)
        if self.attach is not None:
            self.attach.close()
        self.close_recording()

    def close_recording(self) -> None:
        """Complete the recording, if there is one."""
        if self._recorder:
            self._recorder.stop()

    def on_board_updated(self, message: BoardUpdated) -> None:
        """Show the board on every visible screen."""
        if not self.is_running:  # the screens are being removed
            return
        if message.rebuilt and self.board and message.board.snapshot.time < self.board.snapshot.time:
            return  # it was overtaken
        self._set_board(message.board)
        for screen in reversed(self.screen_stack):
            if is_complete(screen) and isinstance(screen, ShowsBoard):
                screen.show_board(message.board)
            if not screen.is_modal:
                break
        self.update_demand()

    def update_demand(self) -> None:
        """Have the next reading contain what the screen in front shows now."""
        front = next((screen for screen in reversed(self.screen_stack) if not screen.is_modal), None)
        complete = front is not None and is_complete(front)
        demand = front.demand if complete and isinstance(front, DemandsFigures) else Demand()
        if self._options.demand.show(demand):
            self._sampler.read_soon()

    def on_source_failed(self, message: SourceFailed) -> None:
        """Show the reason on the dashboard; the rest of the app continues."""
        self._failure = message.sentence
        if self.is_running:
            self._show_feed()

    @on(GpuRows.Opened)
    def _open_gpu(self, event: GpuRows.Opened) -> None:
        from ..screens.gpu.screen import open_gpu_on

        open_gpu_on(self, event.row.reading.key)

    @on(ProcessTable.Opened)
    def _open_process(self, event: ProcessTable.Opened) -> None:
        self.show_process(event.row)

    def show_process(self, row: ProcessRow) -> None:
        """Open the attach screen on this process; if it ended out of memory, the screen that explains that."""
        from ..screens.attach.screen import open_attach_on
        from ..screens.crash import open_crash_on

        if not open_crash_on(self, row):
            open_attach_on(self, row.process.pid, row.process.start_time)

    def action_open_screen(self, name: str) -> None:
        """Open a screen of the registry."""
        next(screen for screen in SCREENS if screen.name == name).open_from(self)

    def action_help(self) -> None:
        """Open the help, at the keys of the screen that the user is on."""
        titles = [str(screen.TITLE) for screen in reversed(self.screen_stack)]
        self.push_screen(HelpScreen(titles, self.BINDINGS))

    def action_pause(self) -> None:
        """Pause the readings, or resume them."""
        if self._sampler.paused:
            self._sampler.resume()
        else:
            self._sampler.pause()
        self._show_feed()

    def action_record(self) -> None:
        """Start recording to a new file in the working directory, or stop."""
        if self._recorder:
            self._recorder.stop()
            path = self._recorder.path
            self.notify(
                f"recorded to {path}" if self._recorder.written else "nothing has been recorded yet", markup=False
            )
            self._recorder = None
        else:
            from ..background.recorder import Recorder

            path = Path(time.strftime("vramtop-%Y%m%d-%H%M%S.jsonl.gz")).absolute()
            self._recorder = Recorder(path, self._report_recording_failure)
            self.notify(f"recording to {path}", markup=False)
        self._show_feed()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the commands of the command palette."""
        is_dashboard = isinstance(screen, DashboardScreen)
        for spec in SCREENS:
            if spec.from_any_screen or is_dashboard:
                yield SystemCommand(spec.title, spec.command_help, lambda spec=spec: spec.open_from(self))
        yield SystemCommand("Pause", "Pause or resume the readings", self.action_pause)
        yield SystemCommand("Record", "Start or stop recording to a file", self.action_record)
        yield SystemCommand("ASCII", "Draw with ASCII only, or with Unicode", self.action_toggle_ascii)
        yield SystemCommand("Help", "Show the keys and how to read the bars", self.action_help)
        if isinstance(screen, DashboardScreen):
            yield from screen.commands()
        for theme in THEMES:
            words = theme.name.removeprefix("vramtop-").capitalize()
            yield SystemCommand(f"{words} theme", f"Draw in {theme.name}", partial(self._choose_theme, theme.name))
        others = super().get_system_commands(screen)  # what covers figures, Escape does not close; ? shows the keys
        yield from (each for each in others if each.title not in ("Keys", "Maximize", "Minimize"))

    def _set_board(self, board: Board) -> None:
        if self.board is None or board.snapshot is not self.board.snapshot:  # a rebuilt board is no newer
            self._board_at, self._failure = self._options.clock(), None
        self.board = board
        for row in board.pending:  # of one that starts or ceases to fit the user is told once
            key, label, changed_at = job_key(row.job), row.job.label, row.fits_changed_at
            if changed_at is not None and self._fits_changed.get(key) != changed_at:
                self._fits_changed[key] = changed_at
                self.notify(f"{label} fits now" if row.fits else f"{label} no longer fits", markup=False)

    def _build_board(self, snapshot: Snapshot) -> None:
        """Build a board on the sampler's thread: estimates and comparisons are kept off the UI thread."""
        board = self.watchlist.update(snapshot)
        if self.attach is not None:
            self.attach.observe(board)
        if recorder := self._recorder:
            recorder.add(replace(snapshot, watched=self.watchlist.runs(), pending=self.watchlist.pending()))
        self.post_message(BoardUpdated(board))

    def _post_rebuilt_board(self) -> None:
        """Show what was attached to since the last reading; called on the thread that attaches."""
        board = self.watchlist.rebuild_board()
        if board is not None:
            self.post_message(BoardUpdated(board, rebuilt=True))

    def _report_failure(self, error: VramtopError) -> None:
        self.post_message(SourceFailed(error.message))

    def _report_recording_failure(self, error: VramtopError) -> None:
        self._recorder = None
        self.call_later(self.notify, error.message, severity="error", markup=False)  # from any thread

    def _dashboards(self) -> Iterable[DashboardScreen]:
        return (screen for screen in self.screen_stack if isinstance(screen, DashboardScreen))

    def _show_feed(self) -> None:
        if not self.is_running:  # the screens are being removed
            return
        self.check_size()
        for screen in self.screen_stack:
            if isinstance(screen, ShowsFeed) and is_complete(screen):
                screen.show_feed()

    def _redraw(self, theme: Theme) -> None:
        if theme.name != self.settings.get(THEME, DEFAULT_THEME):
            self.save_setting(THEME, theme.name)
        for screen in self._dashboards():
            screen.redraw()


def _resume_garbage_collection() -> None:
    """Collect garbage again: the command line turns it off until the first frame is drawn."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
