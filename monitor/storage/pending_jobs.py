"""The jobs that wait, kept between runs in the user's data folder, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError

from .user_file import UserFile, change_later, data_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vramtop.estimator.job.job import Job

_Jobs = list[dict[str, Any]]
_VERSION = 1
_MOST = 200


@dataclass(slots=True)
class PendingJobs:
    """The file of jobs that wait. Changes are written on a thread of their own: a disk may hang.

    Args:
        path: of the file; None: where the user's data belongs (``$XDG_DATA_HOME/vramtop/pending.json``).
        say: told in a sentence when something could not be kept, or was set aside; on any thread.
    """

    path: Path | None = None
    say: Callable[[str], None] = lambda _: None

    def load(self) -> tuple[Job, ...]:
        """Those that were kept; what cannot be read any more is said, and stays in the file."""
        try:
            kept = self._file.read()
        except CannotTellError as error:
            self.say(error.message)
            return ()
        if not kept:
            return ()
        from vramtop.estimator.job.job_file import job_from_mapping  # not before there is a job

        jobs = []
        for entry in kept:
            try:
                jobs.append(job_from_mapping(entry, where=f"{self._file.path}, a job that waits"))
            except InputError as error:
                self.say(error.message)
        return tuple(jobs)

    def keep(self, job: Job) -> None:
        """Add a job at the end, unless it is there."""
        entry = _plain(job)
        self._change(lambda jobs: jobs if entry in jobs else [*jobs, entry][-_MOST:])

    def drop(self, job: Job) -> None:
        """Take a job out."""
        entry = _plain(job)
        self._change(lambda jobs: [each for each in jobs if each != entry])

    @property
    def _file(self) -> UserFile[_Jobs]:
        path = self.path or data_file("pending.json")
        return UserFile(path, kind=_Jobs, empty=list, version=_VERSION, holds="the jobs that wait")

    def _change(self, change: Callable[[_Jobs], _Jobs]) -> None:
        change_later(lambda: self._file, change, self.say, thread="keep pending jobs")


def _plain(job: Job) -> dict[str, Any]:
    """As it comes back from the file."""
    import msgspec

    from vramtop.estimator.job.job_file import job_to_mapping

    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job_to_mapping(job)))
    return plain
