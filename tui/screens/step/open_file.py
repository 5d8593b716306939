"""The dialog that opens what a dead run has left: a memory snapshot of torch, or a log."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from vramtop.estimator.crash import CrashLog, MemorySnapshot, read_crash_file

from ...background import LatestOnlyTask
from ...keys import bind, shown_key

_HINT = (
    "a memory snapshot (torch.cuda.memory._dump_snapshot, vramtop run --snapshot-on-oom, vramtop snapshot PID), which "
    "is read without executing anything in it"
)
_LOG_HINT = "; or a log with torch's out-of-memory message"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file that was read."""

    name: str
    content: CrashLog | MemorySnapshot


class OpenFileScreen(ModalScreen[OpenedFile | None]):
    """Asks for a snapshot or a log and returns it; None after Escape.

    Args:
        name: the file that is offered.
        only_snapshots: a log will not do.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    OpenFileScreen { align: center middle; }
    OpenFileScreen Vertical {
        width: 100; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    OpenFileScreen Label { text-style: bold; }
    OpenFileScreen Static { height: auto; color: $text-muted; }
    OpenFileScreen #failure { color: $text-error; display: none; }
    """

    def __init__(self, name: str = "", *, only_snapshots: bool = False) -> None:
        super().__init__()
        self._offered = name
        self._only_snapshots = only_snapshots
        self._read_task = LatestOnlyTask("open a file", self.call_later, self._close, self._fail)

    def compose(self) -> ComposeResult:
        """Yield the input, and what can be typed into it."""
        with Vertical() as box:
            box.border_title = "Open"
            box.border_subtitle = f"Enter opens it · {shown_key('app.back')} closes"
            yield Label("path of a memory snapshot" if self._only_snapshots else "path of a memory snapshot or a log")
            yield Input(self._offered, placeholder="dump_snapshot.pickle", compact=True)
            yield Static(id="failure", markup=False)
            yield Static(_HINT if self._only_snapshots else _HINT + _LOG_HINT, markup=False)

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    def on_unmount(self) -> None:
        """Discard what is still being read."""
        self._read_task.cancel()

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Read the file that was typed."""
        event.stop()
        name = event.value.strip().strip("'\"")
        self._fail("" if name else "type the path of a file")
        if not name:
            return
        self._read_task.submit(lambda: OpenedFile(name=name, content=read_crash_file(name)))

    def _close(self, opened: OpenedFile) -> None:
        if self._only_snapshots and isinstance(opened.content, CrashLog):
            self._fail(f"{opened.name}: it is not a memory snapshot")
        else:
            self.dismiss(opened)

    def _fail(self, sentence: str) -> None:
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)
