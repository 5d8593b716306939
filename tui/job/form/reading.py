"""Reads a program again when the user gives another model in the form of its job, off the UI thread."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from textual.message_pump import MessagePump
from textual.timer import Timer

from ...background.latest_only_task import LatestOnlyTask
from .job_form import JobForm

Result = TypeVar("Result")
_DELAY_SECONDS = 0.15
"""Time after the last key until the program is read."""


class FormReading(Generic[Result]):
    """Decides when a program has to be read again, and reads it once the typing pauses.

    A reading of an earlier edit is never shown: every edit until the result arrives starts it anew.

    Args:
        screen: the screen that shows the form.
        on_read: receives what was read, on the UI thread.
        on_error: receives the reason why nothing was, likewise.
    """

    def __init__(
        self, screen: MessagePump, *, on_read: Callable[[Result], object], on_error: Callable[[str], object]
    ) -> None:
        self._screen = screen
        self._on_read = on_read
        self._task = LatestOnlyTask("read again", screen.call_later, self._deliver, on_error)
        self._timer: Timer | None = None
        self.is_due = False
        """True from the edit of the model until what was read with it is there."""

    def start(self, form: JobForm, read: Callable[[Mapping[str, Any]], Result] | None) -> bool:
        """Read again after an edit; return False if the edit does not make that necessary.

        Args:
            form: the edited form.
            read: reads the program with the user's edits, by job key; called off the UI thread. None: it cannot be.
        """
        self._stop()
        self.is_due = read is not None and (self.is_due or form.state.names_another_model)
        if read is None or not self.is_due or form.state.model is None:
            return False

        def submit() -> None:
            edits = form.state.edits()
            self._task.submit(lambda: read(edits))

        self._timer = self._screen.set_timer(_DELAY_SECONDS, submit)
        return True

    def cancel(self) -> None:
        """Forget the edits: another form is shown, or none."""
        self.is_due = False
        self._stop()

    def _stop(self) -> None:
        self._task.cancel()
        if self._timer is not None:
            self._timer.stop()

    def _deliver(self, result: Result) -> object:
        self.is_due = False
        return self._on_read(result)
