"""The crash screen: what filled the card, why the allocation failed, and the way to the step and to what fits."""

from collections.abc import Callable, Iterator
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.advice import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common import format_gib
from vramtop.estimator.crash import (
    CrashLog,
    Explanation,
    Failure,
    MemorySnapshot,
    explain_failure,
    failure_of_snapshot,
)
from vramtop.monitor.board import ProcessRow

from ...background import LatestOnlyTask
from ...draw import VERDICTS, TextOutput, printable
from ...job import quick_suggestions
from ...keys import shown_key
from ...reports import explanation_lines, snapshot_lines
from ...widgets import KeysLine, StaticLines
from ..base import BoardApp, is_ascii_only
from ..step import OpenedFile, OpenFileScreen, show_step
from .keys import CRASH_KEYS

_ASK = "Open what the run has left: {key} asks for a log with torch's out-of-memory message, or a memory snapshot."
_NO_FAILURE = "This log has no failure of memory: neither torch's out-of-memory message nor a host out-of-memory kill."


class CrashScreen(Screen[None]):
    """Explains a failure of memory.

    Args:
        failure: of a process that ended; None: a file is asked for.
        row: the process, with the budget of its job; None: not known.
        find_snapshot: reads the snapshot that the process has left; called off the UI thread.
    """

    TITLE = "Out of memory"
    BINDINGS: ClassVar[list[BindingType]] = CRASH_KEYS
    DEFAULT_CSS = """
    CrashScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
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
        self._suggest_task = LatestOnlyTask("what would have fitted", self.call_later, self._show_suggested)

    def compose(self) -> ComposeResult:
        """Yield the explanation."""
        yield StaticLines(id="title")
        with VerticalScroll(id="text", can_focus=True):
            yield StaticLines(id="lines")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw, or ask for a file at once."""
        self.query_one("#text").focus()
        self._draw()
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

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable keys that would do nothing."""
        return self._budget is not None if action == "step" else True

    def action_open_file(self) -> None:
        """Ask for a log or a snapshot, and explain it beside the same budget."""
        self.app.push_screen(OpenFileScreen(self._opened.name if self._opened else ""), self._show_file)

    def action_step(self) -> None:
        """Draw the predicted step, beside the snapshot if one is open."""
        is_snapshot = self._opened is not None and isinstance(self._opened.content, MemorySnapshot)
        if self._budget is not None:
            gpu_bytes = self._row.gpu.total_bytes if self._row else None
            show_step(cast("BoardApp", self.app), self._budget, gpu_bytes, self._opened if is_snapshot else None)

    @property
    def _budget(self) -> Budget | None:
        return self._row.budget if self._row else None

    def _show_file(self, opened: OpenedFile | None) -> None:
        if opened is not None:
            self._opened = opened
            self.query_one("#text", VerticalScroll).scroll_home(animate=False)
            self._draw()
            self._suggest()

    def _show_unread(self, sentence: str) -> None:
        """Say that there is a snapshot, and why it is not shown."""
        self.notify(f"The snapshot that the run has left is not shown: {sentence}", severity="warning", markup=False)

    def _suggest(self) -> None:
        """Search for what would have fitted, if the job and the GPU are known."""
        explanation, budget = self._explanation, self._budget
        self._suggested = None
        self._suggest_task.cancel()
        if explanation is not None and budget is not None and explanation.failure.kind == "gpu":
            self._suggest_task.submit(lambda: quick_suggestions(explanation, budget))

    def _show_suggested(self, found: tuple[tuple[Suggestion, str], ...]) -> None:
        self._suggested = found
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted or self.size.width == 0:
            return
        label = self._row.job.label if self._row and self._row.job else ""
        source = self._opened.name if self._opened else label
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
            return "What a run has left"
        return "Memory snapshot" if isinstance(self._opened.content, MemorySnapshot) else "No failure of memory found"

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
            return [
                *lines,
                "",
                *output.wrapped("The job of this process is not known, so there is no budget beside it."),
            ]
        return [*lines, *self._suggestion_lines(output)]

    def _suggestion_lines(self, output: TextOutput) -> Iterator[str]:
        if not self._suggested:
            return
        yield ""
        yield output.text("what would have fitted on this GPU, least costly first:")
        for suggestion, flags in self._suggested:
            mark, peak = VERDICTS[suggestion.verdict], suggestion.budget.peak
            need = f"{format_gib(peak.device_bytes)} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
            yield from output.wrapped(
                f"{need}: {suggestion.why}", indent=f"  {mark.letter} {mark.word.lower():<6} ", further=8 * " "
            )
            yield from output.wrapped(flags, indent=8 * " ")
