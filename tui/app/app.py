"""The app: it owns the source's thread, the newest board and the screens; widgets only ever read boards."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.geometry import Offset

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.host.terminate import refusal_reason
from vramtop.monitor.sources.early_sampler import EarlySampler
from vramtop.monitor.sources.sampler import Sampler

from ..draw.text_output import printable
from ..screens.base import BoardApp, FeedStatus, ShowsBoard
from ..screens.dashboard.header_text import STALE_INTERVALS
from ..screens.dashboard.screen import DashboardScreen
from .app_messages import BoardUpdated, SourceFailed
from .fit_events import FitEvents, Signal, desktop_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.screen import Screen
    from textual.theme import Theme

    from vramtop.estimator.budget.budget import Budget
    from vramtop.estimator.estimation import QuickEstimator
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.attach.attachment import Attachment
    from vramtop.monitor.board.board import Board, ProcessRow
    from vramtop.monitor.board.watchlist import Watchlist
    from vramtop.monitor.snapshot.snapshot import ProcessKey, Snapshot
    from vramtop.monitor.sources.source import SnapshotSource

    from ..background.job_estimates import Estimate
    from ..background.recorder import Recorder
    from ..draw.capabilities import ColourDepth

_STOP_SECONDS = 0.1
"""How long quitting waits for the source; a driver's call may hang."""


class VramtopApp(BoardApp):
    """The dashboard and all that opens from it.

    Args:
        source: where snapshots come from; read on a thread of its own, which may have begun already.
        watchlist: knows the jobs, and turns snapshots into boards.
        interval: seconds between readings.
        ascii_only: draw with ASCII characters only.
        colours: how many the terminal has.
        banner: one line that says what sets this run apart, such as a recording being played.
        pid: a process to attach to at once.
        estimate: a quick estimate that takes no screen long; the closed form as of anywhere when left out.
        refine: a better and slower estimate than the watchlist's; None: there is none.
        complaints: what could not be read before, said once the dashboard is open.
        signal_fit: how the user is told that a job that waits begins or ceases to fit.
        on_fit: a command to run when one begins to fit.
        python: the interpreter that ``--python`` names; None: none.
        read_only: no process can be ended from here.
        theme: name of the theme to begin with; Textual's own choice when left out, or when there is none of that name.
        keep_theme: told of each theme that the user chooses.
        clock: seconds that never run backwards.
    """

    TITLE = "vramtop"
    CSS_PATH = "vramtop.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("space", "pause", "Pause", show=False),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(
        self,
        source: SnapshotSource | EarlySampler,
        watchlist: Watchlist,
        *,
        interval: float = 1.0,
        ascii_only: bool = False,
        colours: ColourDepth = "true",
        banner: str | None = None,
        pid: int | None = None,
        estimate: Estimate | None = None,
        refine: Estimate | None = None,
        complaints: list[str] | None = None,
        signal_fit: Signal = "none",
        on_fit: str | None = None,
        python: str | None = None,
        read_only: bool = False,
        theme: str | None = None,
        keep_theme: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(colours=colours, ascii_only=ascii_only)
        self.watchlist = watchlist
        self.board: Board | None = None
        """The newest figures; None until the first reading."""
        self.python = python
        """The interpreter that the user named for jobs."""
        self._read_only = read_only
        self._keep_theme = keep_theme
        if theme in self.available_themes:
            self.theme = theme
        self._banner = banner
        self._pid = pid
        self._estimate = estimate
        self._refine = refine
        self._complaints = [] if complaints is None else complaints
        self._fit_events = FitEvents(signal=signal_fit, command=on_fit, say=self.say)
        self._clock = clock
        self._arrived: float | None = None
        self._failure: str | None = None
        self._recorder: Recorder | None = None
        self._opening = False
        self._draft: Job | None = None
        """The job that was looked at last in the fit check."""
        self._attached: dict[ProcessKey, Attachment] = {}
        """What was read of processes that are followed: of one that has ended nothing more can be read."""
        self._head_start = source if isinstance(source, EarlySampler) else None
        if isinstance(source, EarlySampler):
            self._sampler = source.sampler
        else:
            self._sampler = Sampler(source, interval, self._take_in, self._say_failed)

    @property
    def feed(self) -> FeedStatus:
        """How the figures come in."""
        age = None if self._arrived is None else self._clock() - self._arrived
        stale = age is not None and age > STALE_INTERVALS * self._sampler.interval
        return FeedStatus(
            interval=self._sampler.interval,
            age_seconds=age if stale else None,
            paused=self._sampler.paused,
            recording=self._recorder.path.name if self._recorder else None,
            failure=self._failure,
            banner=self._banner,
        )

    @property
    def no_ending(self) -> str | None:
        """Why no process can be ended from here, in one sentence; None: they can."""
        if self._read_only:
            return "vramtop was started with --read-only: it ends no process."
        return refusal_reason(self.board.snapshot.source) if self.board else "No process has been read yet."

    def get_default_screen(self) -> Screen[None]:
        """The dashboard."""
        return DashboardScreen()

    def on_mount(self) -> None:
        """Start reading."""
        self.call_after_refresh(_end_start)
        self.theme_changed_signal.subscribe(self, self._redraw)
        self.set_interval(1.0, self._tick)
        if self._head_start:
            self._catch_up(self._head_start)
        else:
            self._sampler.start()
        for sentence in self._complaints:
            self.notify(sentence, severity="warning", markup=False)
        if self._pid is not None:
            self.action_attach(self._pid)

    def on_unmount(self) -> None:
        """Let the source go, without waiting for a driver that hangs."""
        self._sampler.stop(_STOP_SECONDS)
        self.close_recording()

    def close_recording(self) -> None:
        """What was recorded is complete from here on."""
        if self._recorder:
            self._recorder.stop()

    def on_board_updated(self, message: BoardUpdated) -> None:
        """Show the figures on what can be seen."""
        if not self.is_running:  # the screens are being taken down
            return
        self._know(message.board)
        for screen in reversed(self.screen_stack):
            if screen.is_mounted and isinstance(screen, ShowsBoard):
                screen.show_board(message.board)
            if not screen.is_modal:
                break

    def on_source_failed(self, message: SourceFailed) -> None:
        """Say it where the figures would be; the rest of the app goes on."""
        self._failure = message.sentence
        if self.is_running:
            self._tick()

    def show_process(self, row: ProcessRow) -> None:
        """Open the attach screen on a process: what can be read of it, and how it stands."""
        self._open_attach(row.process.pid, row.process.start_time)

    def renew_board(self) -> None:
        """Draw the newest figures again, because what is followed has changed."""
        board = self.watchlist.rebuild_board()
        if board is not None:
            self.board = board
            screen = self.screen
            if isinstance(screen, ShowsBoard):
                screen.show_board(board)

    @property
    def card_bytes(self) -> int | None:
        """The memory of the largest GPU or MIG device here; None where none is known."""
        places = [place for gpu in self.board.gpus for place in gpu.devices or (gpu,)] if self.board else []
        return max((place.reading.total_bytes for place in places if place.reading.total_bytes), default=None)

    def show_step(self, budget: Budget, card_bytes: int | None) -> None:
        """Open the drawing of a job's training step; a traced budget that it brings is the job's from then on."""
        from ..screens.step.screen import StepScreen

        deeper = self._refine

        def refine() -> Budget:
            assert deeper is not None  # noqa: S101 - passed on only where there is one
            better = deeper(budget.job)
            self.watchlist.set_budget(better)
            return better

        screen = StepScreen(
            budget, card_bytes=card_bytes, refine=refine if deeper else None, ascii_only=self.ascii_only
        )
        self._open(screen)

    def action_fit_check(self) -> None:
        """Open the fit check: on a job that waits, on the job that was looked at last, or on a new one."""
        from ..widgets.choice import ChoiceMenu

        waiting, draft = self.watchlist.pending(), self._draft
        jobs: list[Job | None] = [*waiting, *([draft] if draft and draft not in waiting else []), None]
        if len(jobs) == 1:
            self._open_fit_check(None)
            return
        names = [f"{job.label} ({'waits' if job in waiting else 'as you left it'})" if job else "new" for job in jobs]

        def choose(at: int | None) -> None:
            if at is not None:
                self._open_fit_check(jobs[at])

        self.push_screen(ChoiceMenu([printable(name) for name in names], Offset(2, 2)), choose)

    def action_attach(self, pid: int | None = None) -> None:
        """Attach to a running process; where none is named, show the newest run, or ask where there is none."""
        runs = self.board.runs if self.board else ()
        if pid is None and runs and runs[-1].pids:
            self._open_attach(*runs[-1].pids[0])
        else:
            self._open_attach(pid, None)

    def action_help(self) -> None:
        """Open the help."""
        from .help import HelpScreen

        self.push_screen(HelpScreen(fit_first=self.screen.TITLE in ("Fit check", "What if")))

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        if self._sampler.paused:
            self._sampler.resume()
        else:
            self._sampler.pause()
        self._tick()

    def action_record(self) -> None:
        """Start recording to a new file in the working directory, or stop."""
        if self._recorder:
            self._recorder.stop()
            self.notify(f"recorded to {self._recorder.path}", markup=False)
            self._recorder = None
        else:
            path = Path(time.strftime("vramtop-%Y%m%d-%H%M%S.jsonl.gz")).absolute()
            from ..background.recorder import Recorder

            self._recorder = Recorder(path, self._say_not_recorded)
            self.notify(f"recording to {path}", markup=False)
        self._tick()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        yield SystemCommand("Fit check", "Would a job fit on these GPUs?", self.action_fit_check)
        yield SystemCommand("Attach", "Hold a running job against its budget", self.action_attach)
        yield SystemCommand("Pause", "Stop reading figures, or go on", self.action_pause)
        yield SystemCommand("Record", "Record to a file, or stop recording", self.action_record)
        yield SystemCommand("ASCII", "Draw with ASCII characters only, or with all", self.action_toggle_ascii)
        yield SystemCommand("Help", "Keys, and how to read the bars", self.action_help)
        if isinstance(screen, DashboardScreen):
            yield from screen.commands()
        yield from super().get_system_commands(screen)

    def _open_fit_check(self, job: Job | None) -> None:
        from ..screens.fit.screen import FitCheckScreen

        screen = FitCheckScreen(
            self.watchlist,
            estimate=self.watchlist.estimate,
            refine=self._refine,
            vary=self._vary,
            initial=job,
            pinned=job if job in self.watchlist.pending() else None,
            leave=self._keep_draft,
        )
        self._open(screen)

    def _vary(self, job: Job) -> QuickEstimator:
        """Quick estimates for searches, meant for the same card as all others."""
        from vramtop.estimator.estimation import quick_estimator

        return quick_estimator(job, gpu=None if job.target.gpu else self.watchlist.gpu_type)

    def _keep_draft(self, job: Job) -> None:
        """What is typed is not lost by Escape."""
        from vramtop.estimator.job.job import ModelSpec

        self._draft = job if job.model != ModelSpec() else self._draft

    def _open_attach(self, pid: int | None, start_time: float | None) -> None:
        from vramtop.estimator.estimation import estimate  # not at start-up, of which it would take a fifth

        from ..screens.attach.screen import AttachScreen

        screen = AttachScreen(
            self.watchlist,
            estimate=self._estimate or estimate,
            refine=self._refine,
            attached=self._attached,
            board=self.board,
            pid=pid,
            start_time=start_time,
        )
        self._open(screen)

    def _open(self, screen: Screen[None]) -> None:
        async def show() -> None:
            try:
                await self.push_screen(screen)
            finally:
                self._opening = False
            if self.board and isinstance(screen, ShowsBoard):
                screen.show_board(self.board)

        if not self._opening:  # a key that repeats opens one screen
            self._opening = True
            self.run_worker(show(), name="open screen")

    def _catch_up(self, head_start: EarlySampler) -> None:
        """Take over from who began to read before there was an app; what is known already is drawn at once."""
        newest = head_start.subscribe(self._take_in, self._say_failed)
        if isinstance(newest, VramtopError):
            self._failure = newest.message
        elif newest is not None:
            self._know(newest)

    def _know(self, board: Board) -> None:
        self.board = board
        self._arrived = self._clock()
        self._failure = None
        for sentence in self._fit_events.update(board.pending):
            self._signal(sentence)

    def _take_in(self, snapshot: Snapshot) -> None:
        """On the source's thread: estimates and comparisons happen here, off the UI thread."""
        board = self.watchlist.update(snapshot)
        if recorder := self._recorder:
            recorder.add(replace(snapshot, watched=self.watchlist.runs(), pending=self.watchlist.pending()))
        self.post_message(BoardUpdated(board))

    def _say_failed(self, error: VramtopError) -> None:
        self.post_message(SourceFailed(error.message))

    def _signal(self, sentence: str) -> None:
        """A job that waits has turned."""
        self.notify(sentence, markup=False)
        if self._fit_events.signal == "bell":
            self.bell()
        elif self._fit_events.signal == "desktop" and self._driver is not None:
            self._driver.write(desktop_sequence(sentence))

    def say(self, sentence: str) -> None:
        """Show a sentence, now or once the dashboard is open; from any other thread."""
        if self.is_running:
            self.call_from_thread(self.notify, sentence, severity="warning", markup=False)
        else:
            self._complaints.append(sentence)

    def _say_not_recorded(self, error: VramtopError) -> None:
        """On the recorder's thread."""
        self._recorder = None
        self.call_from_thread(self.notify, error.message, severity="error", markup=False)

    def _tick(self) -> None:
        if not self.is_running:  # the screens are being taken down
            return
        self.check_size()
        for screen in self.screen_stack:
            if isinstance(screen, DashboardScreen) and screen.is_mounted:
                screen.show_feed()

    def _redraw(self, theme: Theme) -> None:
        self._keep_theme(theme.name)
        for screen in self.screen_stack:
            if isinstance(screen, DashboardScreen):
                screen.redraw()


def _end_start() -> None:
    """The command line collects no garbage until the first frame is drawn; what is there by then, stays."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
