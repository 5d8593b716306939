"""Process detail: who it is, and its memory over time against its budget."""

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer

from vramtop.monitor.board import Board, ProcessRow
from vramtop.monitor.watch import Watchlist

from ..terminal import clean
from ..widgets.budget_view import short_name
from ..widgets.lines import Lines
from ..widgets.run_view import RunView
from ..words import span_words

if TYPE_CHECKING:
    from ..app import VramtopApp


class ProcessDetailScreen(Screen[None]):
    """One process on one GPU; when it ends, its last figures stay.

    Args:
        watchlist: remembers what the process held.
        row: the process as it was when it was chosen.
    """

    app: "VramtopApp"
    TITLE = "Process"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("a", "attach", "Attach to it"),
        Binding("t", "step", "Step"),
    ]
    DEFAULT_CSS = """
    ProcessDetailScreen #facts { text-wrap: wrap; height: auto; max-height: 8; padding: 0 1; background: $panel; }
    ProcessDetailScreen #run { height: 1fr; }
    """

    def __init__(self, watchlist: Watchlist, row: ProcessRow) -> None:
        super().__init__()
        self._watchlist = watchlist
        self._row = row
        self._key = (row.gpu.index, *row.process.key)

    def compose(self) -> ComposeResult:
        """Facts above, memory below."""
        yield Lines(id="facts")
        yield RunView(id="run")
        yield Footer()

    def show_board(self, board: Board) -> None:
        """Show how the process stands now."""
        row = next((row for row in board.processes if (row.gpu.index, *row.process.key) == self._key), None)
        facts = self.query_one("#facts", Lines)
        if row is None:
            note = f"Process {self._row.process.pid} is no longer on GPU {self._row.gpu.index}; its last figures stay."
            warning = Content.styled(note, "bold $text-warning")
            facts.show(Content("\n").join([warning, facts_content(self._row)]), layout=True)
            return
        self._row = row
        facts.show(facts_content(row), layout=True)
        history = self._watchlist.history.process(self._key)
        self.query_one(RunView).show([row], history_of=lambda _: history, now=board.snapshot.time)

    async def action_attach(self) -> None:
        """Attach to this very process."""
        await self.run_action(f"app.attach({self._row.process.pid})")

    def action_step(self) -> None:
        """Draw the training step of its job."""
        if self._row.budget is None:
            self.notify("No job is known to run in this process, so there is no step to draw.", severity="warning")
        else:
            self.app.show_step(self._row.budget, self._row.gpu.total_bytes)


def facts_content(row: ProcessRow) -> Content:
    """Who the process is, its command in full."""
    process = row.process
    facts = [
        f"pid {process.pid}",
        process.user or "user n/a",
        f"GPU {row.gpu.index} {short_name(row.gpu.name)}",
        ", ".join(process.kinds),
        "start n/a" if process.start_time is None else f"started {_clock(process.start_time)}",
        f"up {span_words(row.elapsed_seconds)}",
    ]
    lines = [
        Content.styled(" · ".join(facts), "bold"),
        Content(clean(process.command or process.name or "command n/a")),
    ]
    if row.job is not None:
        lines.append(Content(f"job {row.job.label}"))
    if process.note:
        lines.append(Content.styled(process.note, "$text-warning"))
    return Content("\n").join(lines)


def _clock(unix_seconds: float) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(unix_seconds, tz=datetime.timezone.utc).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")
