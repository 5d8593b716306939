"""The crash screen: why a run ended out of memory, what filled the card, beside its budget."""

from collections.abc import Callable, Iterator
from contextlib import suppress
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
from vramtop.estimator.crash.records import Failure, OtherProcess, OutOfMemory
from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.monitor.board.board import ProcessRow
from vramtop.monitor.board.endings import KERNEL_KILLED

from ..background.latest_only_task import LatestOnlyTask
from ..draw.labels import job_name
from ..draw.palette import VERDICTS
from ..draw.text_output import TextOutput, printable
from ..job.would_fit import quick_suggestions
from ..keys import bind
from ..reports.crash_text import explanation_lines
from ..widgets.content_lines import StaticLines, TitleLine
from ..widgets.keys_line import KeysLine
from .base import BoardApp, DrawnScreen, is_ascii_only
from .step.screen import show_step

CRASH_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("job.step", "step", "Step", help_text=""),
]
_UNKNOWN = "The job of this process is unknown, so there is no budget to compare."
_GUESSED = (
    "Settings of this job are missing, so there is no budget to compare; attach (a on the dashboard) asks for them."
)
FoundSnapshot = tuple[Path, MemorySnapshot]
"""A snapshot that a process has left, and its file."""


class CrashScreen(DrawnScreen[None]):
    """Explains why a process ran out of memory.

    Args:
        failure: of the process, by its last reading.
        row: the process, with the budget of its job.
        find_snapshot: reads the snapshot that the process has left; called off the UI thread.
    """

    TITLE = "Out of memory"
    BINDINGS: ClassVar[list[BindingType]] = CRASH_KEYS
    DEFAULT_CSS = """
    CrashScreen #text { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    def __init__(self, failure: Failure, row: ProcessRow, find_snapshot: Callable[[], FoundSnapshot | None]) -> None:
        super().__init__()
        self._failure, self._row, self._find_snapshot = failure, row, find_snapshot
        self._found: FoundSnapshot | None = None
        self._find_task = LatestOnlyTask("find a snapshot", self.call_later, self._show_snapshot, self._show_unread)
        self._suggested: tuple[tuple[Suggestion, str], ...] = ()
        """What would have fitted; empty: not known yet, or there is no budget."""

        def show(found: tuple[tuple[Suggestion, str], ...]) -> None:
            self._suggested = found
            self.redraw()

        self._suggest_task = LatestOnlyTask("changes that would have fit", self.call_later, show)

    def compose(self) -> ComposeResult:
        """Yield the explanation."""
        yield TitleLine(id="title")
        with VerticalScroll(id="text", can_focus=True):
            yield StaticLines(id="lines")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw, and look for a snapshot."""
        self.query_one("#text").focus()
        self.redraw()
        self._suggest()
        self._find_task.submit(self._find_snapshot)

    def on_unmount(self) -> None:
        """Cancel what is still being looked for."""
        self._suggest_task.cancel()
        self._find_task.cancel()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable keys that would do nothing."""
        return self._budget is not None if action == "step" else True

    def action_step(self) -> None:
        """Draw the predicted step."""
        if self._budget is not None:
            show_step(cast("BoardApp", self.app), self._budget, self._row.gpu.total_bytes)

    @property
    def _budget(self) -> Budget | None:
        return None if self._row.has_guessed_budget else self._row.budget

    def _show_snapshot(self, found: FoundSnapshot | None) -> None:
        if found is not None:
            self._found = found
            self.redraw()
            self._suggest()

    def _show_unread(self, sentence: str) -> None:
        """Say that there is a snapshot, and why it is not shown."""
        self.notify(f"Cannot show the run's snapshot: {sentence}", severity="warning", markup=False)

    def _suggest(self) -> None:
        """Search for what would have fitted, if the job is known."""
        explanation, budget = self._explanation, self._budget
        self._suggested = ()
        if budget is not None and explanation.failure.kind == "gpu":
            self._suggest_task.submit(lambda: quick_suggestions(explanation, budget))

    def draw(self) -> None:
        """Draw everything."""
        source = str(self._found[0]) if self._found else job_name(self._row)
        self.query_one("#title", StaticLines).show(Content(f"Out of memory: {printable(source)}"))
        output = TextOutput(colour_depth="none", ascii_only=is_ascii_only(self), width=max(40, self.size.width - 3))
        lines = [*explanation_lines(self._explanation, output, budget=self._budget), *self._suggestion_lines(output)]
        if self._budget is None:
            lines += ["", *output.wrapped(_GUESSED if self._row.has_guessed_budget else _UNKNOWN)]
        self.query_one("#lines", StaticLines).show(Content("\n".join(lines)), layout=True)

    @property
    def _explanation(self) -> Explanation:
        """The explanation of the snapshot that was found, or of the process."""
        snapshot = self._found[1] if self._found else None
        failure = (failure_of_snapshot(snapshot) if snapshot else None) or self._failure
        return explain_failure(failure, budget=self._budget, snapshot=snapshot)

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
    """Explain the process under the cursor, if it ended out of memory."""
    row = app.selected_process
    if row is None or not open_crash_on(app, row):
        why = "No process that ran out of memory is under the cursor"
        app.notify(f"{why}; vramtop explain FILE explains a log or a memory snapshot.", severity="warning")


def open_crash_on(app: BoardApp, row: ProcessRow) -> bool:
    """Explain the end of this process; return False if it did not end out of memory."""
    failure, pid = failure_of_row(row), row.process.pid
    if failure is None:
        return False
    folders = [
        attachment.cwd
        for attachment in app.attachments.values()
        if attachment.cwd is not None and any(rank.pid == pid for rank in attachment.ranks)
    ]

    def find() -> FoundSnapshot | None:
        """Read the snapshot that the process has left in its folder."""
        path = next(_snapshots(folders, pid), None)
        if path is None:
            return None
        content = read_crash_file(str(path))
        if not isinstance(content, MemorySnapshot):  # a damaged one may look like a log
            raise InputError(f"{path}: not a memory snapshot")
        return path, content

    app.push_once(CrashScreen(failure, row, find))
    return True


_MAX_BYTES = 256 * 2**20
"""A larger snapshot, which takes ten seconds and more to read, is opened only if the user asks for it."""


def _snapshots(folders: list[Path], pid: int) -> Iterator[Path]:
    """Yield the files of ``vramtop run --snapshot-on-oom`` in these folders, by their names."""
    for folder in folders:
        for pattern in (f"vramtop-oom-{pid}.pickle", f"vramtop-oom-rank*-{pid}.pickle"):
            with suppress(OSError):  # the folder may be gone, and its container with it
                yield from (path for path in folder.glob(pattern) if path.stat().st_size <= _MAX_BYTES)


_MAX_OTHERS = 64


def failure_of_row(row: ProcessRow) -> Failure | None:
    """Return the failure of a process that ended out of memory; None: it has not."""
    comparison = row.comparison
    if row.ended_at is None or comparison is None or comparison.status != "out_of_memory":
        return None
    if KERNEL_KILLED in comparison.sentence:
        return Failure(kind="killed", sure=False, line=0, text=comparison.sentence)
    process, counters, gpu = row.process, row.process.counters, row.gpu
    # the exception frees tensors on its way, so that the peaks are closer to the moment of the failure
    allocated = (counters.allocated_peak_bytes or counters.allocated_bytes) if counters else None
    reserved = (counters.reserved_peak_bytes or counters.reserved_bytes) if counters else None
    held = max((size for size in (process.used_bytes, reserved) if size is not None), default=None)
    others = [
        OtherProcess(pid=other.pid, used_bytes=other.used_bytes)
        for other in gpu.processes or ()
        if other.key != process.key and other.used_bytes
    ]
    memory = OutOfMemory(
        backend="CUDA",
        gpu=gpu.index,
        tried_bytes=None,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        allocated_bytes=allocated,
        unallocated_bytes=reserved - allocated if reserved is not None and allocated is not None else None,
        process_bytes=held,
        others=tuple(others[:_MAX_OTHERS]),
    )
    steps = counters.steps if counters else None
    return Failure(kind="gpu", line=0, text=comparison.sentence, memory=memory, steps=steps)
