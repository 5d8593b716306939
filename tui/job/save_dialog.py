"""The dialog that saves a job as a job file; it asks before it replaces a file."""

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Label, Static

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import current_folder, expand_user
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import save_job

from ..keys import bind, shown_key


class SaveJobScreen(ModalScreen[Path | None]):
    """Asks for a path and writes the job there; returns the path, or None after Escape.

    Args:
        job: to save.
        path: that is proposed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    SaveJobScreen { align: center middle; }
    SaveJobScreen Vertical {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    SaveJobScreen Label { text-style: bold; }
    SaveJobScreen #failure { height: auto; color: $text-error; display: none; }
    """

    def __init__(self, job: Job, path: str) -> None:
        super().__init__()
        self._job = job
        self._path = path
        self._replace_path: str | None = None
        """The existing path that the next Enter replaces."""

    def compose(self) -> ComposeResult:
        """Yield the input of the path."""
        with Vertical() as box:
            box.border_title = "Save as a job file"
            box.border_subtitle = f"Enter saves · {shown_key('app.back')} closes"
            yield Label(f"path (relative to {current_folder() or 'a folder that was removed'})", markup=False)
            yield Input(self._path, placeholder="job.toml", compact=True)
            yield Static(id="failure", markup=False)

    def on_mount(self) -> None:
        """Focus the path."""
        self.query_one(Input).focus()

    @on(Input.Changed)
    def typed(self) -> None:
        """Forget the question about an existing file: the path is another one now."""
        self._replace_path = None
        self._fail("")

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Write the file; an existing one only after a second Enter."""
        event.stop()
        text = event.value.strip()
        if not text:
            self._fail("type a path, such as job.toml")
            return
        path = Path(text if text.endswith(".toml") else f"{text}.toml")
        if expand_user(str(path)).exists() and self._replace_path != text:
            self._replace_path = text
            self._fail(f"{path} exists: press Enter again to replace it, or type another name")
            return
        try:
            save_job(self._job, path, overwrite=self._replace_path == text)
        except InputError as error:
            self._fail(error.message)
        else:
            self.dismiss(path)

    def _fail(self, sentence: str) -> None:
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)


def open_save_dialog(opener: Screen[None], job: Job, file: Path | None) -> None:
    """Open the dialog, and notify the user of the path.

    Args:
        opener: the screen from which it is opened.
        job: to save.
        file: the job file that the job was loaded from; None: it was not loaded from one.
    """
    path = str(file) if file else f"{job.label}.toml"

    def saved(path: object) -> None:
        if path is not None:
            opener.notify(f"saved: vramtop fit {path}", markup=False)

    opener.app.push_screen(SaveJobScreen(job, path), saved)
