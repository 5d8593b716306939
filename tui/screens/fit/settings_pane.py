"""The form of the fit check: the settings of the job, errors under their fields, and the job that was opened."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Vertical

from vramtop.estimator.common import InputError
from vramtop.estimator.job import Job, with_changes

from ...background import LatestOnlyTask
from ...job import FormReading
from ...job.form import JobForm, cached_models, model_choices
from .gpu_picker import GpuPicker

if TYPE_CHECKING:
    from vramtop.monitor.storage import RecentModels

    from ...job import LoadedJob
    from ...job.form import ModelChoice

_MODEL = "model.id"


class SettingsPane(Vertical):
    """A job form that another one replaces when a file or a launch line is opened.

    Args:
        initial: the job to start from.
        recent: the models that the user checked last; None: they are not kept.
        on_read: receives the job that was read again with the user's model; the form shows it already.
        on_error: receives the reason why it could not be read.
        id: the widget's id in the DOM.
    """

    def __init__(
        self,
        initial: Job,
        *,
        recent: "RecentModels | None" = None,
        on_read: "Callable[[LoadedJob], object]",
        on_error: Callable[[str], object],
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id)
        self._recent = recent
        self._on_read = on_read
        self._reading = FormReading["LoadedJob"](self, on_read=self._show_read_again, on_error=on_error)
        self._initial = initial
        self._edited_field = _MODEL
        self._models: tuple[ModelChoice, ...] = ()
        self._models_task = LatestOnlyTask("models in the cache", self.call_later, self._offer_models)

    def compose(self) -> ComposeResult:
        """The choice of GPUs, and the form."""
        yield GpuPicker(chosen=self._initial.target.gpu, id="gpus")
        yield JobForm(self._initial, models=self._models, id="form")

    def on_mount(self) -> None:
        """Look for the models that were checked last and those in the Hugging Face cache."""
        recent = self._recent
        self._models_task.submit(lambda: model_choices(recent.names() if recent else (), cached_models()))

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._models_task.cancel()
        self._reading.cancel()

    @property
    def form(self) -> JobForm:
        """The form that is shown."""
        return self.query_one(JobForm)

    @property
    def is_being_read(self) -> bool:
        """True from the edit of the model until the form shows what follows from it."""
        return self._reading.is_due

    def read_again(self, read: "Callable[[Mapping[str, Any]], LoadedJob] | None") -> bool:
        """Read the job again if the last edit makes that necessary, and return whether it does."""
        return self._reading.start(self.form, read)

    def set_edited_field(self, key: str) -> None:
        """Remember the field that was edited last; an empty key stands for all fields."""
        self._edited_field = key or self._edited_field

    def show_error(self, sentence: str) -> None:
        """Write an error under the field that was edited last."""
        self.form.show_error(self._edited_field, sentence)

    def focus_form(self) -> None:
        """Move the focus to the first field."""
        self.form.query("Input, Choice").first().focus()

    def change(self, changes: dict[str, Any]) -> str | None:
        """Change these settings as one undo step; return a sentence if that is not possible."""
        form = self.form
        if form.job is None:
            return f"Not applied: {form.problem}"
        try:
            form.fill(with_changes(form.job, changes))
        except InputError as error:
            return error.message
        return None

    async def show_source(self, source: "LoadedJob") -> None:
        """Show a job that was read from a file or a launch line, with the place where each value was read."""
        self._reading.cancel()
        await self.form.remove()
        form = JobForm(source.job, origins=source.origins, missing=source.missing, models=self._models, id="form")
        await self.mount(form)
        self._edited_field = source.missing[0] if source.missing else _MODEL

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        self.form.show_reading(loaded.job, loaded.origins, loaded.missing)
        self._on_read(loaded)

    def _offer_models(self, models: "tuple[ModelChoice, ...]") -> None:
        self._models = models
        self.form.set_models(models)
