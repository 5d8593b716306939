"""The fit screen over the fleet: a job that the user types, and the hosts that can take it now, later, or empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import on
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Label

from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.fleet.placing import place_job

from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED, SEPARATOR, CellText, alarm, badge, format_duration, shorten
from ...draw.palette import VERDICTS
from ...draw.text_output import printable
from ...job.dialogs import LaunchInput
from ...job.load_job import load_typed
from ...keys import bind, shown_key
from ...reports.fleet_fit_text import fleet_fit_sentence, host_reason, taken_gpus_text
from ...widgets.keys_line import KeysLine
from ...widgets.row_table import MARGIN, ROW_BINDINGS, RowTable, StaticLines
from ..base import DrawnScreen
from .host_rows import FleetColumn, columns_for
from .screen import EstimatesJobs, FleetDetailScreen, header_line, notice_lines

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import ScreenResume
    from textual.timer import Timer

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.fleet.fleet import Fleet
    from vramtop.monitor.fleet.placing import FleetFit, HostFit

    from ...job.budgets_by_card import BudgetsByCard
    from ...job.load_job import TypedJob
    from ...widgets.row_table import Column
    from .screen import FleetFeed

# Judges a typed job on the latest fleet: loading, estimates and placements run on threads of their own.


_Step = Callable[[], object]
"""Shows one result; called on the UI thread."""


class BudgetsFor(Protocol):
    """Makes the budgets of a typed job by type of GPU; called off the UI thread."""

    def __call__(self, typed: TypedJob, *, traced: bool) -> BudgetsByCard:
        """Return them; ``traced``: by the most accurate method that is available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A job judged on one reading of a fleet."""

    fleet: Fleet
    fit: FleetFit
    typed: TypedJob
    budgets: BudgetsByCard

    @property
    def budget(self) -> Budget | None:
        """Budget on the type of GPU of the first host; None: no host has a GPU that the job can use."""
        return next(
            (self.budgets.by_card[fit.card] for fit in self.fit.hosts if fit.card in self.budgets.by_card), None
        )


class FleetJudge:
    """Judges one job on every new fleet, and estimates it only once for each type of GPU.

    Of several fleets that arrive while one is judged, only the latest is judged after it: a slow machine shows fewer
    judgements, not none.

    Args:
        call_later: ``call_later`` of the screen.
        budgets_for: makes the budgets of a job.
        on_judgement: receives each judgement, on the UI thread, like the others.
        on_problem: receives the reason why there is none.
        on_tracing: receives what the traced estimate does: a sentence, or None when it has ended.
    """

    def __init__(
        self,
        call_later: Callable[..., object],
        budgets_for: BudgetsFor,
        *,
        on_judgement: Callable[[Judgement], object],
        on_problem: Callable[[str], object],
        on_tracing: Callable[[str | None], object],
    ) -> None:
        self._budgets_for = budgets_for
        self._on_judgement, self._on_problem, self._on_tracing = on_judgement, on_problem, on_tracing
        self._job_task = LatestOnlyTask[_Step]("fleet fit, job", call_later, self._deliver, on_problem)
        self._place_task = LatestOnlyTask[Judgement]("fleet fit, hosts", call_later, self._placed, self._not_placed)
        self._fleet: Fleet | None = None
        self._waiting: tuple[str, bool] | None = None
        """A job that waits for the first fleet."""
        self._current: Judgement | None = None
        self._is_placing = False

    def cancel(self) -> None:
        """Forget the job; nothing of it is delivered any more."""
        self._waiting = self._current = None
        self._is_placing = False
        self._job_task.cancel()
        self._place_task.cancel()

    def judge_text(self, text: str, *, traced: bool) -> None:
        """Load what the user typed and judge it by the closed form.

        Args:
            text: the job.
            traced: then by the most accurate method as well.
        """
        self.cancel()
        if self._fleet is None:
            self._waiting = text, traced
        else:
            self._job_task.submit_with_progress(partial(self._load, text, traced, self._fleet))

    def show_fleet(self, fleet: Fleet) -> None:
        """Judge the job on a new fleet."""
        is_new, self._fleet = fleet is not self._fleet, fleet
        if self._waiting is not None:
            text, traced = self._waiting
            self.judge_text(text, traced=traced)
        elif is_new:
            self._place()

    def _load(self, text: str, traced: bool, fleet: Fleet, report: Callable[[_Step], None]) -> None:
        """Judge by the closed form, and then by a trace; called off the UI thread."""
        typed = load_typed(text)
        try:
            report(partial(self._judged, _judge(typed, self._budgets_for(typed, traced=False), fleet)))
        except CannotTellError as error:
            if not traced:
                raise CannotTellError(f"{error.message.rstrip('.')}; Enter tries a trace") from None
            report(partial(self._on_problem, f"{error.message.rstrip('.')}; a trace is tried"))
        if not traced:
            return
        report(partial(self._on_tracing, "tracing a step for a better estimate"))
        try:
            report(partial(self._judged, _judge(typed, self._budgets_for(typed, traced=True), fleet)))
        except VramtopError as error:
            report(partial(self._not_traced, error.message))
        else:
            report(partial(self._on_tracing, None))

    def _deliver(self, step: _Step) -> None:
        step()

    def _judged(self, judgement: Judgement) -> None:
        """Take the judgement of a new estimate; placements by an older one are discarded."""
        self._place_task.cancel()
        self._is_placing = False
        self._show(judgement)

    def _not_traced(self, reason: str) -> None:
        if self._current is None:
            self._on_problem(reason)
        else:
            self._on_tracing(f"not traced: {reason}")

    def _show(self, judgement: Judgement) -> None:
        self._current = judgement
        self._on_judgement(judgement)
        self._place()

    def _place(self) -> None:
        """Judge the latest fleet if it is not judged yet, unless another one is being judged."""
        current, fleet = self._current, self._fleet
        if current is None or fleet is None or self._is_placing or current.fleet is fleet:
            return
        self._is_placing = True
        self._place_task.submit(partial(_judge, current.typed, current.budgets, fleet))

    def _placed(self, judgement: Judgement) -> None:
        self._is_placing = False
        self._show(judgement)

    def _not_placed(self, reason: str) -> None:
        self._is_placing = False
        self._on_problem(reason)


def _judge(typed: TypedJob, budgets: BudgetsByCard, fleet: Fleet) -> Judgement:
    fit = place_job(fleet, typed.loaded.job.parallel.world_size, budgets.on)
    return Judgement(fleet=fleet, fit=fit, typed=typed, budgets=budgets)


# Keys of the fit screen over many hosts.


FLEET_FIT_KEYS: list[BindingType] = [
    bind("app.back", "back", "Back"),
    bind("fleet.edit_job", "edit", "Job"),
    bind("list.down", "hosts"),
]
HOST_LIST_KEYS: list[BindingType] = [
    bind("list.open", "open", "Open", help_text="open the host under the cursor"),
    *ROW_BINDINGS,
]


# The hosts of a fleet that a job was judged on, one line each, with a cursor.


_COLUMNS = (
    FleetColumn(name="HOST", width=14),
    FleetColumn(name="GPU", width=7, importance=3),
    FleetColumn(name="OF", width=3, right=True, importance=4),
    FleetColumn(name="NOW", width=9),
    FleetColumn(name="LATER", width=9),
    FleetColumn(name="EMPTY", width=9, importance=2),
    FleetColumn(name="LEFT", width=8, right=True, importance=1, unit="GiB"),
    FleetColumn(name="CARD", width=20),
)
_GAP = 1
_VERDICTS: dict[Verdict, CellText] = {
    "fits": CellText("✓ fits", "good"),
    "tight": CellText("! tight", "under"),
    "does_not_fit": CellText("✗ no", "over"),
    "unknown": CellText("? unknown", "muted"),
}


class HostList(RowTable["HostFit"], can_focus=True):
    """A line per host in the order of the placement; an asterisk marks those where the job should go."""

    BINDINGS: ClassVar[list[BindingType]] = HOST_LIST_KEYS

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._placed: frozenset[str] = frozenset()

    def show_fit(self, fit: FleetFit | None, width: int) -> None:
        """Show the hosts of a placement in columns for this width; None: there is none."""
        if fit is None:
            self.show_rows(())
            return
        self._placed = frozenset(host.host for host in fit.placement)
        longest = max((len(host.host) for host in fit.hosts), default=0)
        self.show_rows(fit.hosts, columns_for(_COLUMNS, max(1, width - MARGIN), _GAP, longest=longest), _GAP)

    def key_of(self, row: HostFit) -> str:
        """Return the name of a host."""
        return row.host

    def title_of(self, column: Column) -> str:
        """Return its name, with the unit if there is room."""
        return column.title if isinstance(column, FleetColumn) else column.name

    def signs_of(self, row: HostFit) -> tuple[str, bool]:
        """Return the sign of a host where the job should go."""
        return "* " if row.host in self._placed else "  ", False

    def cells_of(self, row: HostFit) -> list[CellText]:
        """Return the cells of a host; of one that is not considered, its name and why."""
        reason, name = host_reason(row), CellText(printable(row.host))
        if not row.is_considered:
            return [name, CellText(printable(reason or ""), "muted")]
        card = ((row.card.name if row.card else None) or "name n/a").removeprefix("NVIDIA ")
        cells = {
            "HOST": name,
            "GPU": CellText(taken_gpus_text(row)),
            "OF": CellText(str(row.gpus)),
            "NOW": _VERDICTS[row.now],
            "LATER": _VERDICTS[row.later],
            "EMPTY": _VERDICTS[row.empty],
            "LEFT": CellText("" if row.left_bytes is None else format_gib(row.left_bytes)),
            "CARD": CellText(printable(f"{reason} · {card}" if reason else card), "muted"),
        }
        return [cells[column.name] for column in self._columns]


# The fit screen over the fleet: which hosts can take a job now, once the running jobs have ended, or empty.


_DELAY_SECONDS = 0.4
"""Time after the last key until the job is read: half a name is no mistake."""
_MAX_NOTES = 2
_LATE_INTERVALS = 3
_LATE_SECONDS = 5.0
"""A judgement of a reading that is this much older than the latest one is not shown."""
_PLACEHOLDER = "job.toml, llama-3.1-8b --qlora --seq-len 4k, or a launch line"
_NO_JOB = (
    "Type or paste a job: a job file, a model with its flags, or a launch line. vramtop checks its closed form as "
    "you type; Enter also traces a step if torch is installed."
)
_RAM = "host RAM is not checked"
_GOOD: tuple[Verdict, ...] = ("fits", "tight")


class FleetFitScreen(DrawnScreen[str]):
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
        self.redraw()

    def on_unmount(self) -> None:
        """Discard what is being estimated or placed."""
        self._judge.cancel()

    def on_screen_resume(self, _: ScreenResume) -> None:
        """Take the readings that arrived while another screen was open."""
        if isinstance(self.app, EstimatesJobs) and self.is_mounted:
            self.show_fleet(self.app.fleet, self.app.feed)

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Judge the job on a new fleet; figures that are old are not judged."""
        self._fleet, self._feed = fleet, feed
        if fleet is not None and self._stale_reason() is None:
            self._judge.show_fleet(fleet)
        self.redraw()

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
        self.redraw()

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
            self.app.push_screen(FleetDetailScreen(self._fleet, host=event.row.host))

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
        self.redraw()

    def _take(self, judgement: Judgement) -> None:
        self._judgement, self._problem = judgement, None
        self.redraw()

    def _fail(self, sentence: str) -> None:
        self._judgement, self._problem = None, sentence
        self.redraw()

    def _show_tracing(self, sentence: str | None) -> None:
        self._tracing = sentence
        self.redraw()

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
        return f"{why}; the readings are {format_duration(age)} old, too old for a verdict"

    def _shown(self) -> Judgement | None:
        """Return the judgement if it is of figures of now."""
        judgement, fleet = self._judgement, self._fleet
        if judgement is None or fleet is None or self._stale_reason() is not None:
            return None
        late = max(_LATE_INTERVALS * self._feed.interval, _LATE_SECONDS)
        return None if fleet.time - judgement.fleet.time > late else judgement

    def draw(self) -> None:
        """Draw the verdict and the hosts, of figures of now."""
        width, shown = self.size.width - 2, self._shown()
        with self.app.batch_update():
            self.query_one("#header", StaticLines).show(header_line(self._fleet, self._feed, width))
            self.query_one("#notices", StaticLines).show_if_any(notice_lines(self._fleet, self._feed))
            self.query_one("#verdict", StaticLines).show(self._verdict(shown), layout=True)
            about = self._facts(shown, width)
            self.query_one("#facts", StaticLines).show_if_any([Content(line) for line in about])
            self.hosts.show_fit(shown.fit if shown else None, self.size.width - 1)

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
