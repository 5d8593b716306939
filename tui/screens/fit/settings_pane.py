"""The form of the fit check: the settings of the job, errors under their fields, and the way back."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical

from vramtop.estimator.job.job import Job

from ...background.latest_only_task import LatestOnlyTask
from ...job.form.fields import MODEL
from ...job.form.job_form import JobForm
from ...job.form.model_choices import cached_models, model_choices
from ...job.form.reading import FormReading
from .gpu_picker import GpuPicker

if TYPE_CHECKING:
    from ...job.form.model_choices import ModelChoice
    from ...job.loaded_job import LoadedJob


class SettingsPane(Vertical):
    """A job form that another one replaces when a file or a launch line is opened.

    Args:
        initial: the job to start from.
        on_read: receives the job that was read again with the user's model; the form shows it already.
        on_error: receives the reason why it could not be read.
    """

    def __init__(
        self,
        initial: Job,
        *,
        on_read: "Callable[[LoadedJob], object]",
        on_error: Callable[[str], object],
    ) -> None:
        super().__init__(id="settings")
        self._on_read = on_read
        self.reading = FormReading(self, on_read=self._show_read_again, on_error=on_error)
        """Reads what was opened again with another model."""
        self._initial = initial
        self.edited_field = MODEL
        """The field that was edited last, under which errors stand."""
        self._models: tuple[ModelChoice, ...] = ()

        def offer(models: "tuple[ModelChoice, ...]") -> None:
            self._models = models
            self.form.set_models(models)

        self._models_task = LatestOnlyTask("models in the cache", self.call_later, offer)

    def compose(self) -> ComposeResult:
        """The choice of GPUs, and the form."""
        yield GpuPicker(chosen=self._initial.target.gpu, id="gpus")
        yield JobForm(self._initial, models=self._models, id="form")

    def on_mount(self) -> None:
        """Look for the models in the Hugging Face cache."""
        self._models_task.submit(lambda: model_choices(cached_models()))

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._models_task.cancel()
        self.reading.cancel()

    @property
    def form(self) -> JobForm:
        """The form that is shown."""
        return self.query_one(JobForm)

    def focus_form(self) -> None:
        """Move the focus to the first field."""
        self.form.query("Input, Choice").first().focus()

    async def show_source(self, source: "LoadedJob") -> None:
        """Show a job that was read from a file or a launch line, with the place where each value was read."""
        self.reading.cancel()
        await self.form.remove()
        form = JobForm(source.job, origins=source.origins, missing=source.missing, models=self._models, id="form")
        await self.mount(form)
        self.edited_field = source.missing[0] if source.missing else MODEL

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        self.form.show_reading(loaded.job, loaded.origins, loaded.missing)
        self._on_read(loaded)


_MAX_STEPS = 100


class UndoHistory:
    """The versions of a job, and the way back.

    Args:
        job: the first version.
    """

    def __init__(self, job: Job) -> None:
        self.current = job
        """The latest version."""
        self.edited: frozenset[str] = frozenset()
        """Keys of the fields that the user had edited in the latest version."""
        self._earlier: list[tuple[Job, frozenset[str]]] = []
        self._field: str | None = None

    @property
    def can_undo(self) -> bool:
        """True if there is an earlier version."""
        return bool(self._earlier)

    def record(self, job: Job, field: str | None = None, *, edited: frozenset[str] = frozenset()) -> bool:
        """Record a new version, and return True if it is the first that can be undone.

        Args:
            job: the job as it is now.
            field: key of the edited field; None: a step of its own, whatever came before.
            edited: keys of all fields that the user has edited.
        """
        if job == self.current:
            return False
        could_undo = self.can_undo
        if field is None or field != self._field:
            self._earlier = [*self._earlier, (self.current, self.edited)][-_MAX_STEPS:]
        self.current, self.edited, self._field = job, edited, field
        return self.can_undo and not could_undo

    def undo(self) -> Job | None:
        """Go back one step and return that version; None if there is none."""
        if not self._earlier:
            return None
        (self.current, self.edited), self._field = self._earlier.pop(), None
        return self.current
