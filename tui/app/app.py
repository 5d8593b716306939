"""The app: it owns the sampler thread and the latest board, and passes every new board to the visible screens."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from textual.app import SystemCommand
from textual.message import Message

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.monitor.host.terminate import refusal_reason
from vramtop.monitor.snapshot.demand import CurrentDemand, Demand
from vramtop.monitor.sources.sampler import EarlySampler, Sampler
from vramtop.monitor.storage.settings.schema import THEME

from ..background.notices import Notices
from ..background.user_command import UserCommand
from ..draw.text_output import printable
from ..keys import APP_KEYS, shown_key
from ..screens.base import STALE_INTERVALS, BoardApp, BoardFeed, DemandsFigures, ShowsBoard, is_complete
from ..screens.dashboard.screen import DashboardScreen
from ..screens.registry import SCREENS, preload_screens
from ..tty.textual_private import write_to_terminal
from .help import HelpScreen
from .themes import DEFAULT_THEME, ThemedApp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from textual.binding import BindingType
    from textual.notifications import SeverityLevel
    from textual.screen import Screen
    from textual.theme import Theme

    from vramtop.monitor.alerts.alert_watch import Announcement
    from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
    from vramtop.monitor.board.board import Board, PendingRow, ProcessRow
    from vramtop.monitor.board.watchlist import Watchlist
    from vramtop.monitor.snapshot.snapshot import GpuKey, Snapshot
    from vramtop.monitor.sources.sampler import SnapshotSource
    from vramtop.monitor.storage.settings.schema import Value

    from ..background.latest_only_task import EstimateFunction
    from ..background.recorder import Recorder
    from ..background.user_command import CommandQueue
    from ..draw.text_output import ColourDepth

# Messages that other threads post to the app: a new board, or the reason why there is none.


class BoardUpdated(Message):
    """There is a new board: of a new snapshot, or rebuilt from the latest one because the known jobs changed."""

    def __init__(self, board: Board, *, rebuilt: bool = False) -> None:
        super().__init__()
        self.board, self.rebuilt = board, rebuilt

    def can_replace(self, message: Message) -> bool:
        """Replace an earlier board that is still in the queue."""
        return isinstance(message, BoardUpdated)


class SourceFailed(Message):
    """The source could not be read."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


# Options of the app, as the command line and the settings file give them.


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Everything about the app but its source of snapshots and its jobs."""

    interval: float = 1.0
    """Seconds between readings."""
    ascii_only: bool = False
    """Draw with ASCII characters only."""
    colours: ColourDepth = "true"
    """Colours of the terminal."""
    theme: str | None = None
    """Name of the initial theme; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
    notices: Notices = field(default_factory=Notices)
    """Problems found before the app was open; they are shown once it is."""
    settings: dict[str, Value] = field(default_factory=dict)
    """The settings in force by dotted name, such as the view of the process table; absent: the default."""
    save_setting: Callable[[str, Value | None], None] = lambda _, __: None
    """Called with name and value of each setting that the user changes, the theme among them."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""

    banner: str | None = None
    """A notice in the header, for example that a recording is being played."""
    pid: int | None = None
    """A process to attach to at once."""
    estimate: EstimateFunction | None = None
    """A quick estimate; None: that of ``estimation``."""
    refine: EstimateFunction | None = None
    """A better and slower estimate than the watchlist's; None: there is none."""
    signal_alert: Signal = "none"
    """How the user is told of an alert that fires or clears, besides by a notice."""
    on_alert: str | None = None
    """Shell command to run for each alert that fires or clears."""
    signal_fit: Signal = "none"
    """How the user is told that a pending job starts or ceases to fit, besides by a notice."""
    on_fit: str | None = None
    """Shell command to run when a pending job starts to fit."""
    python: str | None = None
    """The interpreter given with ``--python``."""
    attach: AutomaticAttach | None = None
    """Attaches to training processes by itself; None: this is not about this machine."""
    observe_runs: Callable[[Board], None] = lambda _: None
    """Receives each board, on the sampler's thread: measures the runs on it."""
    read_only: bool = False
    """No process can be terminated from here."""
    preload_after: float | None = None
    """Seconds after which screens are imported that no key has asked for; None: never."""
    demand: CurrentDemand = field(default_factory=CurrentDemand)
    """What the screen in front shows beyond memory; the source reads only that."""


# Events of pending jobs that start or cease to fit: a sentence for the user, and a command of theirs.


class FitEvents(msgspec.Struct):
    """Detects when pending jobs start or cease to fit.

    Args:
        command: a shell command to run when a job starts to fit, with VRAMTOP_JOB (its name), VRAMTOP_GPUS (indices,
            in the order of its ranks) and VRAMTOP_GPU_UUIDS in its environment; None: no command.
        report: shows a sentence; called on any thread.
    """

    command: str | None = None
    report: Callable[[str], None] = lambda _: None
    _last_change: dict[str, float] = msgspec.field(default_factory=dict)

    def update(self, pending: Sequence[PendingRow]) -> tuple[str, ...]:
        """Return a sentence for each change since the last call; start the command for each job that now fits."""
        sentences = []
        for row in pending:
            label = row.job.label
            if row.fits_changed_at is None or self._last_change.get(label) == row.fits_changed_at:
                continue
            self._last_change[label] = row.fits_changed_at
            sentences.append(f"{label} fits now" if row.fits else f"{label} no longer fits")
            if row.fits and self.command:
                self._start(row)
        return tuple(sentences)

    def _start(self, row: PendingRow) -> None:
        placement = row.fit.placement if row.fit else ()
        uuids = [room.uuid or "" for room in row.fit.rank_devices] if row.fit else []
        facts = {
            "VRAMTOP_JOB": row.job.label,
            "VRAMTOP_GPUS": ",".join(map(str, placement)),
            "VRAMTOP_GPU_UUIDS": ",".join(uuids),
        }
        UserCommand("--on-fit", self.command or "", self.report).start(facts, thread="on fit")


# Signals to the user beside the screens: a notice, a bell or a desktop notification, and commands of their own.


Signal = Literal["none", "bell", "desktop"]
ALERT_COMMAND_SECONDS = 60.0
"""Longest time that a command for an alert may take."""
_MAX_TOLD = 3
"""Alerts of one moment that a notice has in full."""


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence for a desktop notification by the terminal, which works over SSH too.

    OSC 777 for VTE, urxvt and foot, otherwise OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal). Inside tmux,
    which must allow it (``allow-passthrough``), and GNU screen it is wrapped for the outer terminal.
    """
    words = printable(text).replace(";", ",")
    term = environ.get("TERM", "")
    supports_777 = "VTE_VERSION" in environ or term.startswith(("rxvt", "foot"))
    sequence = f"\x1b]777;notify;vramtop;{words}\x07" if supports_777 else f"\x1b]9;{words}\x07"
    if "TMUX" in environ:
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if "STY" in environ:
        return f"\x1bP{sequence}\x1b\\"
    return sequence


class UserSignals:
    """Tells the user of pending jobs whose verdict changes, and of alerts.

    Args:
        app: shows the notices.
        options: how they are told, and their commands.
    """

    def __init__(self, app: VramtopApp, options: AppOptions) -> None:
        self._app, self._options = app, options
        self._fit_events = FitEvents(command=options.on_fit, report=app.show_notice)
        self._started_at = options.clock()
        self._commands: CommandQueue | None = None

    def close(self) -> None:
        """End the command that runs for an alert."""
        if self._commands is not None:
            self._commands.end()

    def show_pending(self, pending: Sequence[PendingRow]) -> None:
        """Tell of each pending job that starts or ceases to fit."""
        for sentence in self._fit_events.update(pending):
            self._app.notify(sentence, markup=False)
            self._signal(self._options.signal_fit, sentence)

    def tick(self, board_at: float | None, *, interval: float, failure: str | None) -> None:
        """Tell of each alert that fires or clears; called about once a second while readings are not paused.

        Args:
            board_at: arrival of the app's board, by the clock of the options; None: there was none.
            interval: seconds between two readings.
            failure: why there are no readings.
        """
        from vramtop.monitor.alerts.alert_watch import AlertWatch
        from vramtop.monitor.alerts.conditions import Feed
        from vramtop.monitor.alerts.rules import alerts_off

        now, app = self._options.clock(), self._app
        if app.alert_watch is None:  # only now: start-up does not import it
            app.alert_watch = AlertWatch(interval, left_out=alerts_off(app.settings))
        age = now - (self._started_at if board_at is None else board_at)
        feed = Feed(board=app.board, age_seconds=age, interval=interval, failure=failure)
        self._tell(app.alert_watch.tick(feed, now))

    def _tell(self, announcements: Sequence[Announcement]) -> None:
        if not announcements:
            return
        words = [each.sentence for each in announcements[:_MAX_TOLD]]
        if len(announcements) > _MAX_TOLD:
            words.append(f"{len(announcements) - _MAX_TOLD} more: {shown_key('dashboard.alerts')} lists the alerts")
        self._app.notify("\n".join(words), severity=_notice_severity(announcements), markup=False)
        first = announcements[0].sentence
        others = len(announcements) - 1
        self._signal(self._options.signal_alert, first if not others else f"{first} (and {others} more)")
        if self._options.on_alert:
            self._start(self._options.on_alert, announcements)

    def _start(self, command: str, announcements: Sequence[Announcement]) -> None:
        if self._commands is None:
            from ..background.user_command import CommandQueue

            self._commands = CommandQueue(
                UserCommand("--on-alert", command, self._app.show_notice, seconds=ALERT_COMMAND_SECONDS)
            )
        for each in announcements:
            self._commands.add(each.facts())

    def _signal(self, signal: Signal, sentence: str) -> None:
        if signal == "bell":
            self._app.bell()
        elif signal == "desktop":
            write_to_terminal(self._app, desktop_sequence(sentence))


def _notice_severity(announcements: Sequence[Announcement]) -> SeverityLevel:
    """Return the severity of a notice: that of the worst alert that fires."""
    firing = {each.alert.condition.rule.severity for each in announcements if each.state == "firing"}
    return "error" if "critical" in firing else "warning" if "warning" in firing else "information"


class VramtopApp(ThemedApp, BoardApp):
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

    def __init__(
        self, source: SnapshotSource | EarlySampler, watchlist: Watchlist, options: AppOptions | None = None
    ) -> None:
        self._options = options = options or AppOptions()
        super().__init__(colours=options.colours, ascii_only=options.ascii_only)
        self.choose_theme(options.theme)
        self.watchlist = watchlist
        self.board = None
        self.estimate, self.refine, self.python = options.estimate, options.refine, options.python
        self.fit_draft = None
        self.attach = options.attach
        self.attachments = self.attach.known if self.attach else {}
        self._signals = UserSignals(self, options)
        self._board_at: float | None = None
        """Arrival of the latest board, by the clock of the options."""
        self._failure: str | None = None
        self._recorder: Recorder | None = None
        self._is_opening = False
        self._early_sampler = source if isinstance(source, EarlySampler) else None
        self._sampler = (
            source.sampler
            if isinstance(source, EarlySampler)
            else Sampler(source, options.interval, self._build_board, self._report_failure)
        )

    def _show_notice(self, sentence: str) -> None:
        self.notify(sentence, severity="warning", markup=False)

    def show_notice(self, sentence: str) -> None:
        """Show a warning now, or once the app is open; called from other threads."""
        self._options.notices.add(sentence)

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings in force by dotted name, with what was changed in this run; absent: the default."""
        return self._options.settings

    def save_setting(self, name: str, value: Value | None) -> None:
        """Keep what the user has chosen on a screen, for this run and later ones."""
        values = self._options.settings
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
        self._options.save_setting(name, value)

    def _keep_theme(self, theme: Theme) -> None:
        if theme.name != self.settings.get(THEME, DEFAULT_THEME):
            self.save_setting(THEME, theme.name)

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
            alerts=len(self.alert_watch.states.firing) if self.alert_watch else 0,
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
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        for sentence in self._options.notices.show_on(partial(self.call_from_thread, self._show_notice)):
            self._show_notice(sentence)
        self.call_after_refresh(_resume_garbage_collection)
        if self.attach is not None:
            self.attach.on_change = self._post_rebuilt_board
            self.call_after_refresh(self.attach.start)
        self.theme_changed_signal.subscribe(self, self._redraw)
        self.set_interval(1.0, self._watch_feed)
        if self._early_sampler:
            self._take_over(self._early_sampler)
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
        self._signals.close()
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

    def show_gpu(self, key: GpuKey) -> None:
        """Open the GPU screen on this GPU or MIG device."""
        from ..screens.gpu.screen import open_gpu_on

        open_gpu_on(self, key)

    def show_process(self, row: ProcessRow) -> None:
        """Open the attach screen on this process; if it ended out of memory, the screen that explains that."""
        from ..screens.attach.screen import open_attach_on
        from ..screens.crash import open_crash_on

        if not open_crash_on(self, row):
            open_attach_on(self, row.process.pid, row.process.start_time)

    def rebuild_board(self) -> None:
        """Build the board again from the latest snapshot, because the set of known jobs has changed."""
        board = self.watchlist.rebuild_board()
        if board is not None:
            self.board = board
            screen = self.screen
            if is_complete(screen) and isinstance(screen, ShowsBoard):
                screen.show_board(board)

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
            recorded = (
                f"recorded to {self._recorder.path}" if self._recorder.written else ("nothing has been recorded yet")
            )
            self.notify(recorded, markup=False)
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
        yield from super().get_system_commands(screen)

    def _take_over(self, early_sampler: EarlySampler) -> None:
        """Receive the snapshots of a sampler that was started before the app, and its latest result."""
        latest = early_sampler.subscribe(self._build_board, self._report_failure)
        if isinstance(latest, VramtopError):
            self._failure = latest.message
        elif latest is not None:
            self._set_board(latest)
            if self.attach is not None:
                self.attach.observe(latest)
            self._options.observe_runs(latest)

    def _set_board(self, board: Board) -> None:
        if self.board is None or board.snapshot is not self.board.snapshot:  # a rebuilt board is no newer
            self._board_at, self._failure = self._options.clock(), None
        self.board = board
        self._signals.show_pending(board.pending)

    def _build_board(self, snapshot: Snapshot) -> None:
        """Build a board on the sampler's thread: estimates and comparisons are kept off the UI thread."""
        board = self.watchlist.update(snapshot)
        if self.attach is not None:
            self.attach.observe(board)
        self._options.observe_runs(board)
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
        self.call_from_thread(self.notify, error.message, severity="error", markup=False)

    def _dashboards(self) -> Iterable[DashboardScreen]:
        return (screen for screen in self.screen_stack if isinstance(screen, DashboardScreen))

    def _watch_feed(self) -> None:
        if not self._sampler.paused and self._options.banner is None:
            self._signals.tick(self._board_at, interval=self._sampler.interval, failure=self._failure)
        self._show_feed()

    def _show_feed(self) -> None:
        if not self.is_running:  # the screens are being removed
            return
        self.check_size()
        for screen in self._dashboards():
            if is_complete(screen):
                screen.show_feed()

    def _redraw(self, _: Theme) -> None:
        for screen in self._dashboards():
            screen.redraw()


def _resume_garbage_collection() -> None:
    """Collect garbage again: the command line turns it off until the first frame is drawn."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
