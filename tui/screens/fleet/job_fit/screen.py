"""The fit screen over the fleet: which hosts can take a job now, once the running jobs have ended, or empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Label

from ....draw import MUTED, SEPARATOR, VERDICTS, alarm, badge, format_duration, printable, shorten
from ....job import LaunchInput
from ....keys import shown_key
from ....reports import fleet_fit_sentence
from ....widgets import KeysLine, StaticLines
from ..details import FleetDetailScreen
from ..header_text import header_line, notice_lines
from ..screen import EstimatesJobs
from .host_list import HostList, host_lines, title_line
from .judging import FleetJudge
from .keys import FLEET_FIT_KEYS

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize, ScreenResume
    from textual.timer import Timer

    from vramtop.monitor.board.fit import Verdict
    from vramtop.monitor.fleet import Fleet

    from ..header_text import FleetFeed
    from .judging import BudgetsFor, Judgement

_DELAY_SECONDS = 0.4
"""Time after the last key until the job is read: half a name is no mistake."""
_MAX_NOTES = 2
_LATE_INTERVALS = 3
_LATE_SECONDS = 5.0
"""A judgement of a reading that is this much older than the latest one is not shown."""
_PLACEHOLDER = "job.toml, llama-3.1-8b --qlora --seq-len 4k, or a launch line"
_NO_JOB = (
    "Type or paste a job as vramtop fit takes it: a job file, a model with its flags, or a launch line. "
    "Its closed form is judged as you type; Enter also traces a step, if torch is there."
)
_RAM = "the RAM of the hosts is not checked"
_GOOD: tuple[Verdict, ...] = ("fits", "tight")


class FleetFitScreen(Screen[str]):
    """Judges a job on every new reading of the fleet; ends with the text of the job.

    Args:
        budgets_for: makes the budgets of a job.
        fleet: the latest one.
        feed: state of the readings.
        text: the job at first.
    """

    TITLE = "Fit over the fleet"
    AUTO_FOCUS = "#job"
    BINDINGS: ClassVar[list[BindingType]] = FLEET_FIT_KEYS
    DEFAULT_CSS = """
    FleetFitScreen #header { height: 1; padding: 0 1; background: $panel; }
    FleetFitScreen #notices { padding: 0 1; display: none; }
    FleetFitScreen #row { height: 1; padding: 0 1; }
    FleetFitScreen #row Label { width: 5; text-style: bold; }
    FleetFitScreen #job { width: 1fr; }
    FleetFitScreen #verdict { height: auto; max-height: 6; padding: 0 1; text-wrap: wrap; }
    FleetFitScreen #facts { height: auto; max-height: 6; padding: 0 1; text-wrap: wrap; color: $foreground 65%; }
    FleetFitScreen #titles { height: 1; background: $panel; }
    """

    def __init__(self, budgets_for: BudgetsFor, fleet: Fleet | None, feed: FleetFeed, *, text: str = "") -> None:
        super().__init__()
        self._fleet, self._feed, self._text = fleet, feed, text
        self._judge = FleetJudge(
            self.call_later,
            budgets_for,
            on_judgement=self._take,
            on_problem=self._fail,
            on_tracing=self._show_tracing,
        )
        self._judgement: Judgement | None = None
        self._lines: tuple[Judgement, int, bool] | None = None
        """What the lines of the hosts were made of."""
        self._problem: str | None = None
        self._tracing: str | None = None
        self._timer: Timer | None = None
        self._read_text = ""
        """The job as it was read last."""
        self._traced = False

    def compose(self) -> ComposeResult:
        """The job, the verdict, and the hosts."""
        yield StaticLines(id="header")
        yield StaticLines(id="notices")
        with Horizontal(id="row"):
            yield Label("job")
            yield LaunchInput(self._text, id="job", placeholder=_PLACEHOLDER, compact=True, select_on_focus=False)
        yield StaticLines(id="verdict")
        yield StaticLines(id="facts")
        yield StaticLines(id="titles")
        yield HostList(id="hosts")
        yield KeysLine(show_command_palette=False)

    @property
    def hosts(self) -> HostList:
        """The list of hosts."""
        return self.query_one(HostList)

    @property
    def field(self) -> Input:
        """The job as it is typed."""
        return self.query_one("#job", Input)

    def on_mount(self) -> None:
        """Judge the job that there is."""
        if self._fleet is not None:
            self._judge.show_fleet(self._fleet)
        if self._text.strip():
            self._start(traced=True)
        self._draw()

    def on_unmount(self) -> None:
        """Discard what is being estimated or placed."""
        self._judge.cancel()

    def on_screen_resume(self, _: ScreenResume) -> None:
        """Take the readings that arrived while another screen was open."""
        if isinstance(self.app, EstimatesJobs) and self.is_mounted:
            self.show_fleet(self.app.fleet, self.app.feed)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def notify_style_update(self) -> None:
        """Draw again: the theme may be another one."""
        super().notify_style_update()
        if self.is_mounted:
            self.call_after_refresh(self._draw)

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Judge the job on a new fleet; figures that are old are not judged."""
        self._fleet, self._feed = fleet, feed
        if fleet is not None and self._stale_reason() is None:
            self._judge.show_fleet(fleet)
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to edit the job where it is not being edited."""
        del parameters
        return action != "edit" or not self.field.has_focus

    def action_back(self) -> None:
        """Return to the dashboard; it keeps the job."""
        self.dismiss(self.field.value)

    def action_edit(self) -> None:
        """Edit the job."""
        self.field.focus()

    def action_hosts(self) -> None:
        """Move from the job to the hosts."""
        self.hosts.focus()

    @on(Input.Changed, "#job")
    def _typed(self, event: Input.Changed) -> None:
        if event.value == self._read_text:
            return
        self._forget()
        self._timer = self.set_timer(_DELAY_SECONDS, self._start)
        self._draw()

    @on(Input.Submitted, "#job")
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.rstrip().endswith("\\"):  # the next line follows
            self.field.value = f"{event.value.rstrip()[:-1].rstrip()} "
            self.field.action_end()
            return
        if event.value != self._read_text or not self._traced:
            self._start(traced=True)
        self.hosts.focus()

    @on(HostList.Opened)
    def _open(self, event: HostList.Opened) -> None:
        if self._fleet is not None and self.app.screen is self:
            self.app.push_screen(FleetDetailScreen(self._fleet, host=event.host))

    def _forget(self) -> None:
        """Forget the job as it was until now."""
        if self._timer is not None:
            self._timer.stop()
        self._judge.cancel()
        self._judgement = self._problem = self._tracing = None
        self._read_text, self._traced = "", False

    def _start(self, *, traced: bool = False) -> None:
        text = self.field.value
        if traced and text == self._read_text and self._judgement is not None:
            known, self._tracing = self._judgement, None  # what is shown stays until the trace has ended
        else:
            known = None
        self._forget()
        self._judgement = known
        if text.strip():
            self._read_text, self._traced = text, traced
            self._judge.judge_text(text, traced=traced)
        self._draw()

    def _take(self, judgement: Judgement) -> None:
        self._judgement, self._problem = judgement, None
        self._draw()

    def _fail(self, sentence: str) -> None:
        self._judgement, self._problem = None, sentence
        self._draw()

    def _show_tracing(self, sentence: str | None) -> None:
        self._tracing = sentence
        self._draw()

    def _stale_reason(self) -> str | None:
        """Return why the figures are not of now; None: they are."""
        age = self._feed.age_seconds
        if age is None:
            return None
        why = (
            f"the readings are paused ({shown_key('app.pause')} resumes)"
            if self._feed.paused
            else "there are no new readings"
        )
        return f"{why}, and the figures are {format_duration(age)} old: no verdict on old figures"

    def _shown(self) -> Judgement | None:
        """Return the judgement if it is of figures of now."""
        judgement, fleet = self._judgement, self._fleet
        if judgement is None or fleet is None or self._stale_reason() is not None:
            return None
        late = max(_LATE_INTERVALS * self._feed.interval, _LATE_SECONDS)
        return None if fleet.time - judgement.fleet.time > late else judgement

    def _draw(self) -> None:
        width = self.size.width - 2
        if not self.is_mounted or width <= 0:
            return
        shown = self._shown()
        with self.app.batch_update():
            self.query_one("#header", StaticLines).show(header_line(self._fleet, self._feed, width))
            notices = self.query_one("#notices", StaticLines)
            lines = notice_lines(self._fleet, self._feed)
            notices.display = bool(lines)
            notices.show(Content("\n").join(lines), layout=True)
            self.query_one("#verdict", StaticLines).show(self._verdict(shown), layout=True)
            facts = self.query_one("#facts", StaticLines)
            about = self._facts(shown, width)
            facts.display = bool(about)
            facts.show(Content("\n").join([Content(line) for line in about]), layout=True)
            self._draw_hosts(shown)

    def _draw_hosts(self, shown: Judgement | None) -> None:
        titles, width = self.query_one("#titles", StaticLines), self.size.width - 1
        if shown is None:
            self._lines = None
            titles.show(Content())
            self.hosts.show_hosts((), ())
            return
        dark = self.app.current_theme.dark
        if self._lines == (made := (shown, width, dark)):
            return
        self._lines = made
        titles.show(title_line(shown.fit, width))
        self.hosts.show_hosts([host.host for host in shown.fit.hosts], host_lines(shown.fit, width, dark=dark))

    def _verdict(self, shown: Judgement | None) -> Content:
        if shown is not None:
            return Content.assemble(
                badge(VERDICTS[shown.fit.now], shown.fit.now), f" {printable(fleet_fit_sentence(shown.fit))}"
            )
        if not self.field.value.strip():
            return Content.styled(_NO_JOB, MUTED)
        if self._problem is not None:
            return Content.assemble((" ! ", alarm()), f" {printable(self._problem)}")
        stale = self._stale_reason()
        if stale is not None:
            return Content.assemble(badge(VERDICTS["unknown"], "unknown"), f" {stale}")
        waiting = "waiting for the first reading …" if self._fleet is None else "estimating and placing …"
        return Content.styled(waiting, MUTED)

    def _method(self, shown: Judgement) -> str:
        if shown.budgets.method == "traced":
            return "traced"
        return "closed form" if self._traced else "closed form, Enter traces a step"

    def _facts(self, shown: Judgement | None, width: int) -> list[str]:
        """Return how many hosts can take it, what the estimate is, and what was noted about the job."""
        if shown is None:
            return []
        fit = shown.fit
        considered = sum(host.is_considered for host in fit.hosts)
        counts = [
            f"{fit.count(lambda host: host.now, *_GOOD)} now",
            f"{fit.count(lambda host: host.later, *_GOOD)} later",
            f"{fit.count(lambda host: host.empty, *_GOOD)} empty",
        ]
        hosts = f"of {considered} host{'s' * (considered != 1)}: {', '.join(counts)}"
        absent = len(fit.hosts) - considered
        budget = shown.budget
        method = [] if budget is None else [self._method(shown)]
        first = [hosts, *([f"{absent} not considered"] if absent else []), *method]
        first += [printable(self._tracing)] if self._tracing else []
        notes = [shorten(printable(note), width) for note in shown.typed.loaded.notes]
        more = (
            [f"… and {len(notes) - _MAX_NOTES} more notes: vramtop fit lists them"] if len(notes) > _MAX_NOTES else []
        )
        ram = [_RAM] if budget is not None and budget.host else []
        return [SEPARATOR.join([*first, *ram]), *notes[:_MAX_NOTES], *more]
