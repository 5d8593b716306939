"""The dialog that opens a job: a job file, another tool's configuration, a launch line, or a model."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Paste
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from ..background.latest_only_task import LatestOnlyTask
from ..keys import bind, shown_key
from .load_job import LoadedJob, load_from_text

_HINT = (
    "a job file (.toml), a configuration of axolotl, LLaMA-Factory, torchtune, TRL, ... (.yaml, .json), a model, "
    "or a whole launch line such as: torchrun --nproc-per-node 8 train.py --model_name_or_path ..."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedJob:
    """A job that was loaded, and the text by which the user named it."""

    loaded: LoadedJob
    text: str


class LaunchInput(Input):
    """Joins the lines of a pasted launch line."""

    def on_paste(self, event: Paste) -> None:
        """Insert the pasted lines as one; ``Input`` does not handle the event again."""
        self.replace(join_lines(event.text), *self.selection)
        event.stop()
        event.prevent_default()


class OpenJobScreen(ModalScreen[OpenedJob | None]):
    """Asks for a job and returns it; None after Escape.

    Args:
        text: to load at once; empty: ask the user.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
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
        self._load_task = LatestOnlyTask("open a job", self.call_later, self._close, self._fail)

    def compose(self) -> ComposeResult:
        """Yield the input, and what can be typed into it."""
        with Vertical() as box:
            box.border_title = "Open"
            box.border_subtitle = f"Enter opens it · {shown_key('app.back')} closes"
            yield Label("type or paste a path, launch line or model")
            yield LaunchInput(self._text, placeholder="sft.yaml", compact=True)
            yield Static(id="failure", markup=False)
            yield Static(_HINT, markup=False)

    def on_mount(self) -> None:
        """Load the initial text."""
        self.query_one(Input).focus()
        if self._text:
            self._load(self._text)

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Load what was typed; after a backslash at its end, wait for the next line."""
        event.stop()
        box = self.query_one(Input)
        if event.value.rstrip().endswith("\\"):
            box.value = f"{event.value.rstrip()[:-1].rstrip()} "
            box.action_end()
        else:
            self._load(event.value)

    def on_unmount(self) -> None:
        """Discard the result of loading that has not ended: disks may hang."""
        self._load_task.cancel()

    def _load(self, text: str) -> None:
        self._fail("")
        name = text.strip().removeprefix("$ ")
        self._load_task.submit(lambda: OpenedJob(loaded=load_from_text(text), text=name))

    def _close(self, opened: OpenedJob) -> None:
        self.dismiss(opened)

    def _fail(self, sentence: str) -> None:
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)


def join_lines(text: str) -> str:
    """Join the lines of a command, with or without backslashes at their ends."""
    return " ".join(line.strip().removesuffix("\\").rstrip() for line in text.splitlines() if line.strip())
