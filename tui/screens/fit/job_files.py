"""Jobs between the fit check and files: opened, saved as a job file, copied as flags."""

from typing import TYPE_CHECKING

from textual.screen import Screen
from textual.widgets import Label

from vramtop.estimator.common import VramtopError

from .gpu_picker import GpuPicker
from .job_check import JobCheck, has_model
from .session import FitSession
from .settings_pane import SettingsPane
from .verdict_pane import VerdictView

if TYPE_CHECKING:
    from ...job import LoadedJob, OpenedJob


class JobFiles:
    """Opens, saves and copies the job.

    Args:
        screen: has the form, the choice of GPUs and the verdict.
        session: the edited job, and where it was read.
        check: is started again when another job is shown.
    """

    def __init__(self, screen: Screen[None], session: FitSession, check: JobCheck) -> None:
        self._screen = screen
        self._session = session
        self._check = check

    def open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        from ...job import OpenJobScreen  # each dialog is imported when it is opened first

        self._screen.app.push_screen(OpenJobScreen(text), self._show_opened)

    def save(self) -> None:
        """Save the job to a file."""
        from ...job import open_save_dialog

        job = self._check.job
        if job is None or not has_model(job):
            self._refuse("save")
        else:
            open_save_dialog(self._screen, job, self._session.file)

    def copy(self) -> None:
        """Copy the changed settings to the clipboard, and show them."""
        from ...job import CopiedTextScreen

        job = self._check.job
        if job is None:
            self._refuse("copy")
            return
        try:
            text = self._session.changes_text(job, self._screen.query_one(GpuPicker).catalogue_count)
        except VramtopError as error:  # such as of a model that is not known
            self._screen.notify(error.message, severity="warning", markup=False)
            return
        self._screen.app.copy_to_clipboard(text)
        self._screen.app.push_screen(CopiedTextScreen(text, "Changed settings"))

    def show_read_again(self, loaded: "LoadedJob") -> None:
        """Show what was opened as it is with the model that the user has given."""
        if (job := self._screen.query_one(SettingsPane).form.job) is not None:
            self._session.history.amend(job)
        self._show_name_and_notes(loaded)
        self._check.start()

    async def _show_opened(self, opened: "OpenedJob | None") -> None:
        """Show an opened job in a new form, with the place where each value was read."""
        if opened is None:
            return
        loaded, pane = opened.loaded, self._screen.query_one(SettingsPane)
        self._session.open(opened)
        await pane.show_source(loaded)
        self._screen.query_one(GpuPicker).choose(loaded.job.target.gpu)
        self._show_name_and_notes(loaded)
        if loaded.missing:
            pane.focus_form()
        else:  # no field has the focus: a typed digit would overwrite a value that was read
            self._screen.query_one(VerdictView).focus()
        self._check.start()

    def _show_name_and_notes(self, loaded: "LoadedJob") -> None:
        self._screen.query_one("#title", Label).update(f"Fit check: would {loaded.job.label} fit?")
        self._screen.query_one(VerdictView).set_notes(loaded.notes)

    def _refuse(self, purpose: str) -> None:
        sentence = f"There is no job to {purpose}: {self._check.why_not()}"
        self._screen.notify(sentence, severity="warning", markup=False)
