"""Save a job as a job file: asks where, and before it replaces anything."""

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Label, Static

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file_writer import save_job


class SaveJobScreen(ModalScreen[Path | None]):
    """Asks for a path and writes the job there; returns the path, or None after Escape.

    Args:
        job: what to save.
        path: where, unless the user says otherwise.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]
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
        self._asked: str | None = None
        """The path that is there already, and that the user was asked about."""

    def compose(self) -> ComposeResult:
        """The path."""
        with Vertical() as box:
            box.border_title = "Save as a job file"
            box.border_subtitle = "Enter saves · Esc closes"
            yield Label(f"path (in {Path.cwd()}, where it does not begin with /)", markup=False)
            yield Input(self._path, placeholder="job.toml", compact=True)
            yield Static(id="failure", markup=False)

    def on_mount(self) -> None:
        """Ready to be typed over."""
        self.query_one(Input).focus()

    @on(Input.Changed)
    def typed(self) -> None:
        """Another path is another question."""
        self._asked = None
        self._fail("")

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Write the file; one that is there only after a second Enter."""
        event.stop()
        text = event.value.strip()
        if not text:
            self._fail("type a path, such as job.toml")
            return
        path = Path(text if text.endswith(".toml") else f"{text}.toml")
        if expand_user(str(path)).exists() and self._asked != text:
            self._asked = text
            self._fail(f"{path} is there already: Enter again replaces it, another name keeps it")
            return
        try:
            save_job(self._job, path, overwrite=self._asked == text)
        except InputError as error:
            self._fail(error.message)
        else:
            self.dismiss(path)

    def _fail(self, sentence: str) -> None:
        failure = self.query_one("#failure", Static)
        failure.update(f"✗ {sentence}")
        failure.display = bool(sentence)


def open_save_dialog(opener: Screen[None], job: Job, file: Path | None) -> None:
    """Open the screen, and say where the job lies then.

    Args:
        opener: the screen that the user comes from.
        job: what is saved.
        file: the job file that it was read from; None: there was none.
    """
    path = str(file) if file else f"{job.label}.toml"

    def saved(path: object) -> None:
        if path is not None:
            opener.notify(f"saved: vramtop fit {path}", markup=False)

    opener.app.push_screen(SaveJobScreen(job, path), saved)
