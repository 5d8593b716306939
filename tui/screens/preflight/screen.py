"""Preflight: whether all that a job needs is there, check by check, as they come in."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.board import Board
from vramtop.monitor.fit.device_capacity import DeviceCapacity
from vramtop.monitor.preflight.context.check import Check
from vramtop.monitor.preflight.context.check_context import CheckContext

from ...background.latest_only_task import LatestOnlyTask
from ...background.preflight_run import PreflightProgress, PreflightRequest, read_context, run_preflight
from ...draw.text_output import printable
from ...widgets.keys_line import KeysLine
from ...widgets.static_lines import StaticLines
from .preflight_rows import PreflightMark, check_rows, sum_row

_TICK_SECONDS = 1.0


class PreflightScreen(Screen[None]):
    """Makes the checks when it opens, and again on ``r``; who leaves gives up what still runs.

    Args:
        subject: the job, and where it is to run.
        told: gets what was found, on the UI thread, once all of it is there.
        gather: gives what the checks look at; called on a thread of its own.
        checks: all when left out.
    """

    TITLE = "Preflight"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f12", "dismiss", "Back", key_display="Esc"),
        Binding("r", "again", "Again"),
    ]
    DEFAULT_CSS = """
    PreflightScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    PreflightScreen #facts { height: 1; padding: 0 1; color: $foreground 65%; text-overflow: ellipsis; }
    PreflightScreen #checks { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    PreflightScreen #sum { padding: 0 1; text-wrap: wrap; border-top: hkey $foreground 20%; }
    """

    @dataclass
    class Told(Message):
        """It has come further."""

        asked: int
        looked: PreflightProgress

    def __init__(
        self,
        subject: PreflightRequest,
        *,
        told: Callable[[PreflightProgress], None] = lambda _: None,
        gather: Callable[[PreflightRequest], CheckContext] = read_context,
        checks: Sequence[Check] | None = None,
    ) -> None:
        super().__init__()
        self._subject = subject
        self._told = told
        self._gather = gather
        self._checks = checks
        self.looked: PreflightProgress | None = None
        """How far it has come."""
        self._asked = 0
        self._work = LatestOnlyTask("preflight")
        self._gone = threading.Event()

    def compose(self) -> ComposeResult:
        """What is looked at, the checks, and what it comes to."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        with VerticalScroll(id="checks", can_focus=True):
            yield StaticLines(id="rows")
        yield StaticLines(id="sum")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin."""
        self.query_one("#checks").focus()
        self.query_one("#title", StaticLines).show(Content(f"Preflight: {printable(self._subject.job.label)}"))
        self.set_interval(_TICK_SECONDS, self._tick)
        self.action_again()

    def on_unmount(self) -> None:
        """Nobody waits for the checks any more."""
        self._gone.set()
        self._work.interrupt()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def show_board(self, board: Board) -> None:
        """The next time counts with these figures."""
        self._subject = replace(self._subject, board=board)

    def action_again(self) -> None:
        """Make all checks anew; what still runs is given up."""
        self._work.interrupt()
        self._work = LatestOnlyTask("preflight")  # one that hangs holds nobody up
        self._asked += 1
        asked, subject = self._asked, self._subject

        def told(looked: PreflightProgress) -> None:
            if not self._gone.is_set():
                self.post_message(self.Told(asked, looked))

        self._work.submit(lambda: run_preflight(lambda: self._gather(subject), told, self._checks))
        self.query_one("#checks").scroll_home(animate=False)

    @on(Told)
    def take(self, event: Told) -> None:
        """Show how far it has come, unless it was begun anew meanwhile."""
        if event.asked != self._asked:
            return
        self.looked = event.looked
        self._draw()
        if event.looked.done:  # the failures are at the top now
            self.query_one("#checks").scroll_home(animate=False)
            self._told(event.looked)

    def _tick(self) -> None:
        if self.looked is not None and not self.looked.done:
            self._draw()

    def _draw(self) -> None:
        looked = self.looked
        if looked is None or not self.is_mounted or self.size.width == 0:
            return
        width = self.size.width - 3  # a space on both sides, and the scrollbar
        rows = [] if looked.problem is not None else check_rows(looked, width=width, now=time.monotonic())
        self.query_one("#facts", StaticLines).show(Content(_facts(looked)))
        self.query_one("#rows", StaticLines).show(Content("\n").join(rows), layout=True)
        self.query_one("#sum", StaticLines).show(sum_row(looked), layout=True)


def open_preflight(
    opener: Screen[None],
    job: Job | None,
    *,
    rooms: tuple[DeviceCapacity, ...] = (),
    budget: Budget | None = None,
    launch: Sequence[str] | None = None,
) -> None:
    """Open the screen for a job; the opener's ``PreflightMark``, where it has one, shows what comes out.

    Args:
        opener: the screen that the user comes from.
        job: None: the settings make no sense yet, which the user is told.
        rooms: what the chosen GPUs can give; they count where the job is meant for another machine.
        budget: the best that is known of this job.
        launch: the launch line that it was read from; None: there was none.
    """
    if job is None or not (job.model.id or job.model.config):
        opener.notify("There is no job to look at yet: choose a model, and correct what is marked.", severity="warning")
        return
    app, marks = opener.app, opener.query(PreflightMark)
    subject = PreflightRequest(
        job=job,
        rooms=rooms if job.target.gpu else (),
        board=getattr(app, "board", None),
        budget=budget,
        launch=launch,
        python=getattr(app, "python", None),
    )

    def told(looked: PreflightProgress) -> None:
        for mark in marks:
            mark.take(looked, job)

    app.push_screen(PreflightScreen(subject, told=told))


def _facts(looked: PreflightProgress) -> str:
    """Where the job is to run, and under which Python."""
    context = looked.context
    if context is None:
        return ""
    machine, python = context.machine, context.interpreter
    where = "on this machine"
    if machine.is_described:
        where = f"on {len(machine.devices)} × {machine.devices[0].name} elsewhere" if machine.devices else "elsewhere"
    return printable(f"{where} · {python.path} ({python.origin})")
