"""Earlier versions of the edited job; consecutive edits of one field are one step."""

from vramtop.estimator.job import Job

_Version = tuple[Job, frozenset[str]]

_MAX_STEPS = 100


class UndoHistory:
    """The versions of a job, and the way back.

    Args:
        job: the first version.
    """

    def __init__(self, job: Job) -> None:
        self._current: _Version = (job, frozenset())
        self._earlier: list[_Version] = []
        self._field: str | None = None

    @property
    def current(self) -> Job:
        """The latest version."""
        return self._current[0]

    @property
    def edited(self) -> frozenset[str]:
        """Keys of the fields that the user had edited in the latest version."""
        return self._current[1]

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
            self._earlier = [*self._earlier, self._current][-_MAX_STEPS:]
        self._current, self._field = (job, edited), field
        return self.can_undo and not could_undo

    def amend(self, job: Job) -> None:
        """Replace the latest version by one that follows from the same edit."""
        self._current = (job, self.edited)

    def undo(self) -> Job | None:
        """Go back one step and return that version; None if there is none."""
        if not self._earlier:
            return None
        self._current, self._field = self._earlier.pop(), None
        return self.current
