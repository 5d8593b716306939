"""Open a job: the path of a job file or of another tool's configuration, a launch line, or a model."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Paste
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from ..background.latest_only_task import LatestOnlyTask
from .load_job import LoadedJob, load_from_text

_HINT = (
    "a job file (.toml), a configuration of axolotl, LLaMA-Factory, torchtune, TRL, ... (.yaml, .json), a model, "
    "or a whole launch line such as: torchrun --nproc-per-node 8 train.py --model_name_or_path ..."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedJob:
    """A job that was read, and how the user named it."""

    source: LoadedJob
    given: str


class LaunchInput(Input):
    """Takes a pasted launch line of several lines as one."""

    def on_paste(self, event: Paste) -> None:
        """Insert the pasted lines as one; ``Input`` does not handle the event again."""
        self.replace(join_lines(event.text), *self.selection)
        event.stop()
        event.prevent_default()


class OpenJobScreen(ModalScreen[OpenedJob | None]):
    """Asks for a job, and returns what was read; Escape: None.

    Args:
        text: what to read at once; empty: the user is asked.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    OpenJobScreen { align: center middle; }
    OpenJobScreen Vertical {
        width: 100; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    OpenJobScreen Label { text-style: bold; }
    OpenJobScreen Static { height: auto; color: $text-muted; }
    OpenJobScreen #failure { color: $text-error; display: none; }
    """

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._text = join_lines(text)
        self._read_task = LatestOnlyTask("open a job", self.call_later, self._close, self._fail)

    def compose(self) -> ComposeResult:
        """A field, and what can be typed into it."""
        with Vertical() as box:
            box.border_title = "Open"
            box.border_subtitle = "Enter reads it · Esc closes"
            yield Label("path, launch line or model; it can be pasted")
            yield LaunchInput(self._text, placeholder="sft.yaml", compact=True)
            yield Static(id="failure", markup=False)
            yield Static(_HINT, markup=False)

    def on_mount(self) -> None:
        """Read what is given at once."""
        self.query_one(Input).focus()
        if self._text:
            self._read(self._text)

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Read what was typed; a line that ends in a backslash goes on with what is typed or pasted next."""
        event.stop()
        box = self.query_one(Input)
        if event.value.rstrip().endswith("\\"):
            box.value = f"{event.value.rstrip()[:-1].rstrip()} "
            box.action_end()
        else:
            self._read(event.value)

    def on_unmount(self) -> None:
        """Discard the result of a read that has not ended: disks may hang."""
        self._read_task.cancel()

    def _read(self, text: str) -> None:
        self._fail("")
        given = text.strip().removeprefix("$ ")
        self._read_task.submit(lambda: OpenedJob(source=load_from_text(text), given=given))

    def _close(self, opened: OpenedJob) -> None:
        self.dismiss(opened)

    def _fail(self, sentence: str) -> None:
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)


def join_lines(text: str) -> str:
    """A command of several lines, joined by backslashes or not, in one."""
    return " ".join(line.strip().removesuffix("\\").rstrip() for line in text.splitlines() if line.strip())
