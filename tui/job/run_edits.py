"""The user's edits of a run's settings: saved as answers for its command line, and read with another model."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.message_pump import MessagePump

from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.attach.attachment import Attachment, SavedAnswers, run_key

from ..background.latest_only_task import AnswerWriter, RunReader
from .form.fields import TUNING
from .form.job_form import JobForm
from .form_reading import FormReading

if TYPE_CHECKING:
    from textual.timer import Timer

_DELAY_SECONDS = 0.15
"""Time after the last key until the edits count."""


class RunEdits:
    """Takes the edits of the form of a run, one run at a time.

    Args:
        screen: the screen that shows the form.
        reader: reads the run.
        answers: the file of settings that the user fills in.
        on_change: receives the run with the edits, on the UI thread; the form shows it already.
        on_error: receives the reason why the edits make no job, likewise.
        on_problem: receives a sentence if the answers cannot be saved, likewise.
    """

    def __init__(
        self,
        screen: MessagePump,
        reader: RunReader,
        answers: SavedAnswers,
        *,
        on_change: Callable[[Attachment], object],
        on_error: Callable[[str], object],
        on_problem: Callable[[str], object],
    ) -> None:
        self._screen = screen
        self._reader = reader
        self._on_change, self._on_error = on_change, on_error
        self._writer = AnswerWriter(answers, screen.call_later, on_problem)
        self._reading = FormReading(screen, on_read=self._show, on_error=self._show_old)
        self._delayed: Timer | None = None
        self._form: JobForm | None = None
        self._attachment: Attachment | None = None

    def start_run(self, form: JobForm, attachment: Attachment) -> None:
        """Take the following edits as those of this run."""
        self.cancel()
        self._form, self._attachment = form, attachment
        self._writer.start_run(run_key(attachment))

    def edited(self, key: str, *, on_gpu: Collection[int] | None = None) -> bool:
        """Take the edit of a field, and return whether the run is read again for it."""
        form, attachment = self._form, self._attachment
        if form is None or attachment is None:
            return False
        self._keep_answer(form, key)
        if self._delayed is not None:
            self._delayed.stop()
        if self._reading.start(form, lambda edits: self._reader.read_again(attachment, edits, on_gpu=on_gpu)):
            return True
        self._delayed = self._screen.set_timer(_DELAY_SECONDS, lambda: self._on_change(attachment))
        return False

    def save(self) -> None:
        """Save the edits as answers: they make a valid job."""
        self._writer.save()

    def forget(self) -> None:
        """Forget all answers for this command line."""
        self.cancel()
        self._writer.remove_all()

    def cancel(self) -> None:
        """Discard what is being read again; further edits are of another run."""
        self._reading.cancel()
        if self._delayed is not None:
            self._delayed.stop()
        self._form = self._attachment = None

    def _show(self, attachment: Attachment) -> None:
        form, reading = self._form, attachment.reading
        if form is None:
            return
        try:
            job = reading.job()
        except VramtopError as error:
            self._on_error(error.message)
            return
        form.show_reading(job, {**reading.evidence(), **reading.refused}, reading.missing)
        for key in form.edited:
            self._keep_answer(form, key)
        self._reader.remember(attachment)
        self._attachment = attachment
        self._on_change(attachment)

    def _show_old(self, sentence: str) -> None:
        """Keep what was read with another model, and say why."""
        if (old := self._attachment) is not None:
            note = f"What follows from the model was read for another one: {sentence}"
            self._attachment = replace(old, warnings=tuple(dict.fromkeys([note, *old.warnings])))
            self._on_change(self._attachment)

    def _keep_answer(self, form: JobForm, key: str) -> None:
        if answer := form.state.setting(key):
            self._writer.set_answer(*answer)
        elif form.state.is_cleared(key):
            self._writer.remove_answer(TUNING if key.startswith(f"{TUNING}.") else key)
