"""Earlier versions of the edited job; consecutive edits of one field are one step."""

from vramtop.estimator.job.job import Job

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
