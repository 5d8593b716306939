"""A run that is followed: its ranks side by side, its settings, and one of its processes against its budget."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.board.board import Board, ProcessRow, RunRow
from vramtop.monitor.divergence.diagnose import diagnose
from vramtop.monitor.divergence.divergence_status import Status
from vramtop.monitor.snapshot.history import History
from vramtop.monitor.snapshot.snapshot import HistoryKey, ProcessKey

from ...background.job_estimates import Estimate
from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import MUTED
from ...reports.divergence_text import divergence_content
from ...widgets.static_lines import StaticLines
from .missing_reason import NOT_ON_GPU_YET, MissingReason, missing_reason
from .rank_rows import RankPlacement
from .rank_table import RankTable
from .rank_view import RankView
from .run_summary import process_header, run_header, warnings_content

_GRAIN = 0.02
"""What is held must change by so much of the budget before it is explained anew."""
_Question = tuple[int, HistoryKey, int, bool, Status]
"""A budget, a process on a GPU, how many grains it holds, whether torch's counters are known, and its status."""


class FollowedRun(Vertical):
    """A run.

    Args:
        history: what processes have held.
        estimate: a quick estimate, for explanations.
        is_running: whether a process of this machine still runs.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    FollowedRun { height: 1fr; }
    FollowedRun #run { padding: 0 1; text-overflow: ellipsis; }
    FollowedRun #warnings { padding: 0 1; max-height: 4; overflow-y: auto; text-wrap: wrap; }
    FollowedRun #halves { height: 1fr; layout: horizontal; border-top: hkey $foreground 20%; }
    FollowedRun #settings { width: 2fr; max-width: 66; border-right: vkey $foreground 20%; }
    FollowedRun #memory { width: 3fr; }
    FollowedRun #doubt { height: auto; padding: 0 1; color: $text-error; display: none; }
    FollowedRun #doubt.-told { display: block; }
    """

    @dataclass
    class Explained(Message):
        """What would explain that a process holds something else."""

        question: _Question
        answer: Divergence

    def __init__(
        self,
        history: History,
        estimate: Estimate,
        is_running: Callable[[ProcessKey], bool],
        *,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id)
        self._history = history
        self._estimate = estimate
        self._is_running = is_running
        self._why = LatestOnlyTask("explain")
        self._gone = threading.Event()
        self._question: _Question | None = None
        self._again: Callable[[], None] | None = None
        self._attachment: Attachment | None = None
        self.rows: tuple[ProcessRow, ...] = ()
        """Its processes on GPUs."""

    def compose(self) -> ComposeResult:
        """From the whole run to one of its processes."""
        yield StaticLines(id="run")
        yield StaticLines(id="warnings")
        yield RankTable(id="ranks")
        yield Static(id="doubt", markup=False)
        with Horizontal(id="halves"):
            yield Vertical(id="settings")
            yield RankView(id="memory")

    def on_unmount(self) -> None:
        """Nobody waits for explanations any more."""
        self._gone.set()

    def show(
        self, board: Board | None, keys: Sequence[ProcessKey], attachment: Attachment | None, budget: Budget | None
    ) -> None:
        """Show how the run stands.

        Args:
            board: the newest figures.
            keys: its processes.
            attachment: what was read of it.
            budget: of its job, for the time in which it holds nothing on a GPU.
        """
        self._attachment = attachment
        self.rows = run_rows(board, keys)
        now = board.snapshot.time if board else 0.0
        absent = NOT_ON_GPU_YET if self.rows else missing_reason(board, keys, self._is_running)
        header = run_header(attachment, self.rows, absent.words) if attachment else None
        if header is None and self.rows:
            header = process_header(self.rows)
        reading = Content.styled(f"… reading process {keys[0][0]}", MUTED) if keys else Content()
        self.query_one("#run", StaticLines).show(reading if header is None else header, layout=True)
        warnings = self.query_one("#warnings", StaticLines)
        warnings.display = bool(attachment and attachment.warnings)
        if attachment:
            warnings.show(warnings_content(attachment), layout=True)
        places = self._places(board, attachment) or dict.fromkeys(keys, RankPlacement(absent=absent.words))
        self.query_one(RankTable).show(self.rows, places, width=self.size.width)
        self._again = lambda: self._draw(budget, now, absent)
        self._again()

    @property
    def drawn(self) -> ProcessRow | None:
        """The process that is drawn."""
        return self.query_one(RankTable).chosen

    def doubt(self, sentence: str | None) -> None:
        """Say what keeps the job from being complete; None: nothing does."""
        doubt = self.query_one("#doubt", Static)
        doubt.update(f"✗ {sentence}" if sentence else "")
        doubt.set_class(sentence is not None, "-told")

    @on(RankTable.Chosen)
    @on(Resize)
    def _draw_again(self) -> None:
        if self._again is not None:
            self._again()

    @on(Explained)
    def _explained(self, event: Explained) -> None:
        event.stop()
        if event.question == self._question:
            self.query_one(RankView).explain(divergence_content(event.answer))

    def _places(self, board: Board | None, attachment: Attachment | None) -> dict[ProcessKey, RankPlacement]:
        """The ranks that were read; those that are seen on no GPU with the one that they will take, or why not."""
        if attachment is None:
            return {}
        present = {row.process.key for row in self.rows}
        if board and any((rank.pid, rank.start_time) not in present for rank in attachment.ranks):
            attachment = attachment.with_gpu_assignments([gpu.reading for gpu in board.gpus])
        places: dict[ProcessKey, RankPlacement] = {}
        for rank in attachment.ranks:
            key = rank.pid, rank.start_time
            absent = NOT_ON_GPU_YET if key in present else missing_reason(board, (key,), self._is_running)
            gpu = "-" if rank.gpu_assignment.gpu is None else str(rank.gpu_assignment.gpu)
            places[key] = RankPlacement(rank.rank, gpu, absent.words)
        return places

    def _draw(self, budget: Budget | None, now: float, absent: MissingReason) -> None:
        row, view = self.drawn, self.query_one(RankView)
        if row is None:
            view.show_nothing(absent.sentence, budget)
            return
        view.show(row, history=self._history.lifetime(row.key), now=now)
        self._ask_why(row)

    def _ask_why(self, row: ProcessRow) -> None:
        """On a thread of its own, and only when something has changed."""
        read, budget, comparison = self._attachment, row.budget, row.comparison
        if budget is None or comparison is None or not comparison.diverges:
            self._question = None
            self.query_one(RankView).explain(Content())
            return
        high = comparison.peak_usage
        held = (high.size_bytes if high else comparison.observed_bytes) or 0
        grain = max(1.0, _GRAIN * budget.peak.device_bytes)
        question = (id(budget), row.key, round(held / grain), row.process.counters is not None, comparison.status)
        if question != self._question:
            self._question = question
            assumed = [finding.key for finding in read.reading.findings if not finding.written] if read else []
            environ = read.estimate_environ if read else None

            def answer() -> None:
                quick = lambda job: self._estimate(job, environ=environ)  # noqa: E731 - a name for the argument
                found = diagnose(budget, comparison, row.process, quick, assumed=assumed)
                if not self._gone.is_set():
                    self.post_message(self.Explained(question, found))

            self._why.submit(answer)


def find_run(board: Board | None, keys: Sequence[ProcessKey]) -> RunRow | None:
    """The run that these processes belong to, where it is followed."""
    runs = board.runs if board else ()
    return next((run for run in runs if not set(keys).isdisjoint(run.pids)), None)


def run_rows(board: Board | None, keys: Sequence[ProcessKey]) -> tuple[ProcessRow, ...]:
    """The processes of a run on their GPUs, those that have ended as well."""
    run = find_run(board, keys)
    if run is not None:
        return run.rows
    return tuple(row for row in (board.processes if board else ()) if row.process.key in keys)


def is_only_in_recording(board: Board | None, pid: int) -> bool:
    """The process is known from a recording alone; one of the same pid that runs here is another one."""
    if board is None or board.snapshot.source.kind == "nvml":
        return False
    return any(row.process.pid == pid for row in (*board.processes, *board.ended_processes))


def with_start_times(board: Board | None, keys: tuple[ProcessKey, ...]) -> tuple[ProcessKey, ...]:
    """The processes, with the start of one of which only the pid is known, as soon as it is on a GPU or in a run."""
    if board is None or all(start is not None for _, start in keys):
        return keys
    seen = [*(row.process.key for row in board.processes), *(key for run in board.runs for key in run.pids)]
    return tuple(next((other for other in seen if key[1] is None and other[0] == key[0]), key) for key in keys)
