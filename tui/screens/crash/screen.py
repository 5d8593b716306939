"""The crash screen: why a run ended out of memory, what filled the card, beside its budget."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content

from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.crash.crash_file import read_crash_file
from vramtop.estimator.crash.explanation import Explanation, explain_failure, failure_of_snapshot
from vramtop.estimator.crash.records import CrashLog, Failure
from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.monitor.board.board import ProcessRow

from ...background.latest_only_task import LatestOnlyTask
from ...draw.labels import job_name
from ...draw.palette import VERDICTS
from ...draw.text_output import TextOutput, printable
from ...job.would_fit import quick_suggestions
from ...keys import bind, shown_key
from ...reports.crash_text import explanation_lines, snapshot_lines
from ...widgets.keys_line import KeysLine
from ...widgets.static_lines import StaticLines, TitleLine
from ..base import BoardApp, DrawnScreen, is_ascii_only
from ..step.screen import show_step
from .failure import failure_of_row
from .open_file import OpenedFile, OpenFileScreen

CRASH_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("crash.open_file", "open_file", "Open"),
    bind("job.step", "step", "Step", help_text="show the predicted step beside an opened snapshot"),
]
_ASK = "Open a file of the run: {key} asks for a log with torch's out-of-memory message, or a memory snapshot."
_UNKNOWN = "The job of this process is unknown, so there is no budget to compare."
_GUESSED = (
    "Settings of this job are missing, so there is no budget to compare; attach (a on the dashboard) asks for them."
)
_NO_FAILURE = "No out-of-memory error was found in this log."


class CrashScreen(DrawnScreen[None]):
    """Explains a failure of memory.

    Args:
        failure: of a process that ended; None: a file is asked for.
        row: the process, with the budget of its job; None: not known.
        find_snapshot: reads the snapshot that the process has left; called off the UI thread.
    """

    TITLE = "Out of memory"
    BINDINGS: ClassVar[list[BindingType]] = CRASH_KEYS
    DEFAULT_CSS = """
    CrashScreen #text { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    def __init__(
        self,
        failure: Failure | None = None,
        *,
        row: ProcessRow | None = None,
        find_snapshot: Callable[[], OpenedFile | None] | None = None,
    ) -> None:
        super().__init__()
        self._find_snapshot = find_snapshot
        self._find_task = LatestOnlyTask("find a snapshot", self.call_later, self._show_file, self._show_unread)
        self._failure = failure
        self._row = row
        self._opened: OpenedFile | None = None
        self._suggested: tuple[tuple[Suggestion, str], ...] | None = None
        """What would have fitted; None: not known yet, or there is no budget."""
        self._suggest_task = LatestOnlyTask("changes that would have fit", self.call_later, self._show_suggested)

    def compose(self) -> ComposeResult:
        """Yield the explanation."""
        yield TitleLine(id="title")
        with VerticalScroll(id="text", can_focus=True):
            yield StaticLines(id="lines")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw, or ask for a file at once."""
        self.query_one("#text").focus()
        self.redraw()
        if self._failure is None:
            self.action_open_file()
        else:
            self._suggest()
        if self._find_snapshot is not None:
            self._find_task.submit(self._find_snapshot)

    def on_unmount(self) -> None:
        """Cancel what is still being looked for."""
        self._suggest_task.cancel()
        self._find_task.cancel()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable keys that would do nothing."""
        return self._budget is not None if action == "step" else True

    def action_open_file(self) -> None:
        """Ask for a log or a snapshot, and explain it beside the same budget."""
        self.app.push_screen(OpenFileScreen(self._opened.name if self._opened else ""), self._show_file)

    def action_step(self) -> None:
        """Draw the predicted step."""
        if self._budget is not None:
            gpu_bytes = self._row.gpu.total_bytes if self._row else None
            show_step(cast("BoardApp", self.app), self._budget, gpu_bytes)

    @property
    def _budget(self) -> Budget | None:
        return self._row.budget if self._row and not self._row.has_guessed_budget else None

    def _show_file(self, opened: OpenedFile | None) -> None:
        if opened is not None:
            self._opened = opened
            self.query_one("#text", VerticalScroll).scroll_home(animate=False)
            self.redraw()
            self._suggest()

    def _show_unread(self, sentence: str) -> None:
        """Say that there is a snapshot, and why it is not shown."""
        self.notify(f"Cannot show the run's snapshot: {sentence}", severity="warning", markup=False)

    def _suggest(self) -> None:
        """Search for what would have fitted, if the job and the GPU are known."""
        explanation, budget = self._explanation, self._budget
        self._suggested = None
        self._suggest_task.cancel()
        if explanation is not None and budget is not None and explanation.failure.kind == "gpu":
            self._suggest_task.submit(lambda: quick_suggestions(explanation, budget))

    def _show_suggested(self, found: tuple[tuple[Suggestion, str], ...]) -> None:
        self._suggested = found
        self.redraw()

    def draw(self) -> None:
        """Draw everything."""
        source = self._opened.name if self._opened else job_name(self._row) if self._row else ""
        title = f"{self._subject}: {printable(source)}"
        self.query_one("#title", StaticLines).show(Content(title.rstrip(" :")))
        output = TextOutput(colour_depth="none", ascii_only=is_ascii_only(self), width=max(40, self.size.width - 3))
        self.query_one("#lines", StaticLines).show(Content("\n".join(self._lines(output))), layout=True)

    @property
    def _subject(self) -> str:
        """What the screen is about: a failure, a snapshot of a process that has not failed, or what may be opened."""
        if self._explanation is not None:
            return "Out of memory"
        if self._opened is None:
            return "Files of a run"
        return "Memory snapshot" if isinstance(self._opened.content, MemorySnapshot) else "No out-of-memory error found"

    @property
    def _explanation(self) -> Explanation | None:
        """The explanation of the file that is open, or of the process."""
        content = self._opened.content if self._opened else None
        snapshot = content if isinstance(content, MemorySnapshot) else None
        failure = failure_of_snapshot(snapshot) if snapshot else self._failure
        if isinstance(content, CrashLog):
            failure = content.cause
        return None if failure is None else explain_failure(failure, budget=self._budget, snapshot=snapshot)

    def _lines(self, output: TextOutput) -> list[str]:
        content, budget, explanation = self._opened.content if self._opened else None, self._budget, self._explanation
        log = content if isinstance(content, CrashLog) else None
        if explanation is None and isinstance(content, MemorySnapshot):
            return list(snapshot_lines(content, output, budget=budget))
        if explanation is None:
            return output.wrapped(_NO_FAILURE if log else _ASK.format(key=shown_key("crash.open_file")))
        lines = list(explanation_lines(explanation, output, budget=budget, log=log))
        if budget is None:
            return [*lines, "", *output.wrapped(_GUESSED if self._row and self._row.has_guessed_budget else _UNKNOWN)]
        return [*lines, *self._suggestion_lines(output)]

    def _suggestion_lines(self, output: TextOutput) -> Iterator[str]:
        if not self._suggested:
            return
        yield ""
        yield output.text("changes that would have fit on this GPU, least costly first:")
        for suggestion, flags in self._suggested:
            mark, peak = VERDICTS[suggestion.verdict], suggestion.budget.peak
            need = f"{format_gib(peak.device_bytes)} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
            yield from output.wrapped(
                f"{need}: {suggestion.why}", indent=f"  {mark.letter} {mark.word.lower():<6} ", further=8 * " "
            )
            yield from output.wrapped(flags, indent=8 * " ")


def open_crash(app: BoardApp) -> None:
    """Explain the process under the cursor if it ended out of memory; otherwise ask for a file."""
    row = app.selected_process
    if row is None or not open_crash_on(app, row):
        app.push_once(CrashScreen(row=row if row and row.budget else None))


def open_crash_on(app: BoardApp, row: ProcessRow) -> bool:
    """Explain the end of this process; return False if it did not end out of memory."""
    failure = failure_of_row(row)
    if failure is None:
        return False
    app.push_once(CrashScreen(failure, row=row, find_snapshot=_finder(app, row.process.pid)))
    return True


def _finder(app: BoardApp, pid: int) -> Callable[[], OpenedFile | None]:
    """Return a function that reads the snapshot that a process has left in its folder; it returns None for none."""
    folders = [
        attachment.cwd
        for attachment in app.attachments.values()
        if attachment.cwd is not None and any(rank.pid == pid for rank in attachment.ranks)
    ]

    def find() -> OpenedFile | None:
        path = next(_snapshots(folders, pid), None)
        if path is None:
            return None
        content = read_crash_file(str(path))
        if not isinstance(content, MemorySnapshot):  # a damaged one may look like a log
            raise InputError(f"{path}: not a memory snapshot")
        return OpenedFile(name=str(path), content=content)

    return find


_MAX_BYTES = 256 * 2**20
"""A larger snapshot, which takes ten seconds and more to read, is opened only if the user asks for it."""


def _snapshots(folders: list[Path], pid: int) -> Iterator[Path]:
    """Yield the files of ``vramtop run --snapshot-on-oom`` in these folders, by their names."""
    for folder in folders:
        for pattern in (f"vramtop-oom-{pid}.pickle", f"vramtop-oom-rank*-{pid}.pickle"):
            yield from (path for path in folder.glob(pattern) if path.stat().st_size <= _MAX_BYTES)
