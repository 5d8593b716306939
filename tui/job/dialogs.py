"""Dialogs about jobs: what to open, where to save, whether to run a program; and a text that was copied."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Paste
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static, TextArea

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import current_folder, expand_user
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import save_job

from ..background.latest_only_task import LatestOnlyTask
from ..draw.text_output import printable
from ..keys import bind, shown_key

if TYPE_CHECKING:
    from vramtop.estimator.trace.own_program import WhatRuns

    from .loaded_job import LoadedJob

Result = TypeVar("Result")

_JOB_HINT = (
    "a job file (.toml), a configuration of axolotl, LLaMA-Factory, torchtune, TRL, ... (.yaml, .json), a model, or "
    "a whole launch line such as: torchrun --nproc-per-node 8 train.py --model_name_or_path ...; rehearse python "
    "train.py ... runs your own program without a GPU"
)
_REHEARSAL_REMARK = (
    "The program and its child processes run with your rights until each optimizer has stepped. Files they write are "
    "discarded. They may use the network, but upload nothing to hubs and loggers. SECURITY.md lists the limits."
)
BESIDE_RUN_REMARK = (
    "Your run goes on, and its files are not touched. The rehearsal takes about 20 s of one core at the lowest "
    "priority, without the GPU and, where the kernel allows that, without network access. Files it writes are "
    "discarded. SECURITY.md lists the limits."
)
_CLIPBOARD_HELP = (
    "Sent to the terminal's clipboard (OSC 52). If the clipboard stays empty, hold Shift (Option on a Mac) and "
    "select the text with the mouse; in tmux: set -g set-clipboard on."
)


class LaunchInput(Input):
    """Joins the lines of a pasted launch line."""

    def on_paste(self, event: Paste) -> None:
        """Insert the pasted lines as one; ``Input`` does not handle the event again."""
        self.replace(join_lines(event.text), *self.selection)
        event.stop()
        event.prevent_default()


class AskScreen(ModalScreen[Result | None]):
    """Asks for a text, and returns what a subclass makes of it; None after Escape.

    Args:
        text: that is proposed.
        label: what is asked for.
        hint: what can be typed; empty: the label says it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    AskScreen { align: center middle; }
    AskScreen Vertical {
        width: 100; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    AskScreen Label { text-style: bold; }
    AskScreen Static { height: auto; color: $text-muted; }
    AskScreen #failure { color: $text-error; display: none; }
    """
    HEADING, VERB, PLACEHOLDER = "Open", "opens it", ""

    def __init__(self, text: str, label: str, hint: str = "") -> None:
        super().__init__()
        self._text, self._label, self._hint = text, label, hint
        self._read_task: LatestOnlyTask[Result] = LatestOnlyTask("dialog", self.call_later, self._close, self.fail)

    def read(self, text: str) -> Result:
        """Return what the text stands for; called off the UI thread, since disks may hang.

        Raises:
            VramtopError: it stands for nothing; the dialog shows the sentence.
        """
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Yield the input, and what can be typed into it."""
        with Vertical() as box:
            box.border_title = self.HEADING
            box.border_subtitle = f"Enter {self.VERB} · {shown_key('app.back')} closes"
            yield Label(self._label, markup=False)
            yield LaunchInput(self._text, placeholder=self.PLACEHOLDER, compact=True)
            yield Static(id="failure", markup=False)
            if self._hint:
                yield Static(self._hint, markup=False)

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    def on_unmount(self) -> None:
        """Discard what is still being read."""
        self._read_task.cancel()

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Read what was typed; after a backslash at its end, wait for the next line."""
        event.stop()
        box, text = event.input, event.value.rstrip()
        if text.endswith("\\"):
            box.value = f"{text[:-1].rstrip()} "
            box.action_end()
        else:
            self.submit(text)

    def submit(self, text: str) -> None:
        """Read this text."""
        self.fail("")
        self._read_task.submit(lambda: self.read(text.strip()))

    def fail(self, sentence: str) -> None:
        """Say why the text will not do; empty: nothing is wrong."""
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)

    def _close(self, result: Result) -> None:
        self.dismiss(result)


class OpenedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was loaded, and the text by which the user named it."""

    loaded: "LoadedJob"
    text: str


class OpenJobScreen(AskScreen[OpenedJob]):
    """Asks for a job file, another tool's configuration, a launch line, or a model.

    Args:
        text: to load at once; empty: ask the user.
    """

    PLACEHOLDER = "sft.yaml"

    def __init__(self, text: str = "") -> None:
        super().__init__(join_lines(text), "type or paste a path, launch line or model", _JOB_HINT)

    def on_mount(self) -> None:
        """Load the initial text."""
        super().on_mount()
        if self._text:
            self.submit(self._text)

    def read(self, text: str) -> OpenedJob:
        """Load the job."""
        from .typed_job import load_from_text

        return OpenedJob(loaded=load_from_text(text), text=text.removeprefix("$ "))


class SaveJobScreen(AskScreen[Path]):
    """Asks for a path and writes the job there; an existing file only after a second Enter.

    Args:
        job: to save.
        path: that is proposed.
    """

    DEFAULT_CSS = "SaveJobScreen Vertical { width: 84; } SaveJobScreen Label { color: $foreground; }"
    HEADING, VERB, PLACEHOLDER = "Save as a job file", "saves", "job.toml"

    def __init__(self, job: Job, path: str) -> None:
        super().__init__(path, f"path (relative to {current_folder() or 'a folder that was removed'})")
        self._job = job
        self._replace_path: str | None = None
        """The existing path that the next Enter replaces."""

    @on(Input.Changed)
    def typed(self) -> None:
        """Forget the question about an existing file: the path is another one now."""
        self._replace_path = None
        self.fail("")

    def read(self, text: str) -> Path:
        """Write the file.

        Raises:
            InputError: it cannot be written, or exists.
        """
        if not text:
            raise InputError("type a path, such as job.toml")
        path = Path(text if text.endswith(".toml") else f"{text}.toml")
        if expand_user(str(path)).exists() and self._replace_path != text:
            self._replace_path = text
            raise InputError(f"{path} exists: press Enter again to replace it, or type another name")
        save_job(self._job, path, overwrite=self._replace_path == text)
        return path


class RehearseScreen(ModalScreen[bool]):
    """Asks whether to run a program, and shows what would be started; True: run it.

    Args:
        what: that would be started.
        remark: on what it may do.
    """

    AUTO_FOCUS = "#leave"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.back", "dismiss(False)", "Leave it"),
        bind("rehearse.leave", "dismiss(False)"),
        bind("rehearse.run", "dismiss(True)", "Run it"),
        bind("list.fold", "app.focus_previous", help_text=""),
        bind("list.unfold", "app.focus_next", help_text=""),
    ]
    DEFAULT_CSS = """
    RehearseScreen { align: center middle; }
    RehearseScreen Vertical {
        width: 84; max-width: 96%; height: auto; max-height: 100%; background: $surface; border: solid $warning;
        padding: 0 1; overflow-y: auto;
    }
    RehearseScreen Static { height: auto; text-wrap: wrap; }
    RehearseScreen #remark { color: $text-muted; margin: 1 0; }
    RehearseScreen Horizontal { height: 1; }
    RehearseScreen Button { margin: 0 2 0 0; }
    """

    def __init__(self, what: "WhatRuns", remark: str = _REHEARSAL_REMARK) -> None:
        super().__init__()
        self._what, self._remark = what, remark

    def compose(self) -> ComposeResult:
        """The command, where and by what it runs, whose it is, and the choices; the harmless one has the focus."""
        what = self._what
        lines = {
            "command": what.command,
            "folder": what.folder,
            "Python": what.interpreter,
            "script": f"{what.script}, of {what.owner}",
            **({} if what.file is None else {"job file": what.file}),
        }
        with Vertical() as box:
            box.border_title = "Run this program without a GPU?"
            yield Static("\n".join(f"{name:<9}{printable(text)}" for name, text in lines.items()), markup=False)
            yield Static(self._remark, id="remark", markup=False)
            with Horizontal():
                yield Button("Leave it", id="leave", compact=True)
                yield Button(f"{shown_key('rehearse.run')} Run it", id="run", compact=True, variant="warning")

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """Take the choice of a button, on a click or Enter."""
        event.stop()
        self.dismiss(event.button.id == "run")


class CopiedTextScreen(ModalScreen[None]):
    """Shows the changed settings that were copied to the clipboard, to select it where the terminal has no clipboard.

    Args:
        text: that was copied.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.back", "dismiss", "Back"),
        bind("app.quit", "dismiss", help_text=""),
        Binding("enter", "dismiss", show=False),
    ]
    DEFAULT_CSS = """
    CopiedTextScreen { align: center middle; }
    CopiedTextScreen Vertical {
        width: 100%; height: auto; max-height: 100%; background: $surface; border-top: solid $primary;
        border-bottom: solid $primary;
    }
    CopiedTextScreen TextArea { height: auto; max-height: 16; border: none; padding: 0; }
    CopiedTextScreen Static { height: auto; color: $text-muted; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yield the text without borders at the sides, so that the terminal selects only the text."""
        lines = self._text.splitlines()  # long commands are broken between flags, as a shell accepts them
        long = (line.replace(" --", " \\\n  --") if len(line) >= self.app.size.width - 2 else line for line in lines)
        with Vertical() as box:
            box.border_title = "Changed settings"
            box.border_subtitle = f"{shown_key('app.back')} closes"
            yield TextArea("\n".join(long), read_only=True, soft_wrap=True, show_cursor=False, compact=True)
            yield Static(_CLIPBOARD_HELP, markup=False)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the text."""
        self.query_one(TextArea).focus()


def join_lines(text: str) -> str:
    """Join the lines of a command, with or without backslashes at their ends."""
    return " ".join(line.strip().removesuffix("\\").rstrip() for line in text.splitlines() if line.strip())
