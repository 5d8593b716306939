"""Earlier states of a form, to go back to: edits of one field in a row are one step."""

from vramtop.estimator.job.job import Job

_MOST = 100


class UndoHistory:
    """Remembers jobs.

    Args:
        now: the job to begin with.
    """

    def __init__(self, now: Job) -> None:
        self._now = now
        self._before: list[Job] = []
        self._key: str | None = None

    @property
    def now(self) -> Job:
        """The newest job."""
        return self._now

    @property
    def can_undo(self) -> bool:
        """There is something to go back to."""
        return bool(self._before)

    def take(self, job: Job, key: str | None = None) -> None:
        """The form has become this.

        Args:
            job: as it is now.
            key: the field that was edited; None: this is a step of its own, whatever came before.
        """
        if job == self._now:
            return
        if key is None or key != self._key:
            self._before = [*self._before, self._now][-_MOST:]
        self._now, self._key = job, key

    def undo(self) -> Job | None:
        """The job before the last step; None where there is none."""
        if not self._before:
            return None
        self._now, self._key = self._before.pop(), None
        return self._now
