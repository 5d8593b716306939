"""Pending jobs, kept between runs in the user's data folder, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError

from .user_file import UserFile, data_file, in_background

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vramtop.estimator.job.job import Job

_Jobs = list[dict[str, Any]]
_MAX_JOBS = 200


class PendingJobs(msgspec.Struct):
    """The file of pending jobs. Changes are written on their own thread, as a disk may hang.

    Args:
        path: of the file; None: ``pending.json`` in the user's data folder.
        notify: called on any thread with a sentence if the file could not be read or written, or was damaged.
    """

    path: Path | None = None
    notify: Callable[[str], None] = lambda _: None

    def load(self) -> tuple[Job, ...]:
        """Return the jobs in the file; entries that are no longer valid are reported, and stay in the file."""
        try:
            kept = self._file.read()
        except CannotTellError as error:
            self.notify(error.message)
            return ()
        if not kept:
            return ()
        from vramtop.estimator.job.job_file.changes import job_from_mapping  # not before there is a job

        jobs = []
        for entry in kept:
            try:
                jobs.append(job_from_mapping(entry, where=f"{self._file.path}, a pending job"))
            except InputError as error:
                self.notify(error.message)
        return tuple(jobs)

    def add(self, job: Job) -> None:
        """Add a job at the end, unless it is in the file."""
        entry = _to_plain_data(job)
        self._change(lambda jobs: jobs if _positions(entry, jobs) else [*jobs, entry][-_MAX_JOBS:])

    def remove(self, job: Job) -> None:
        """Remove a job."""
        entry = _to_plain_data(job)

        def change(jobs: _Jobs) -> _Jobs:
            found = _positions(entry, jobs)
            return [each for position, each in enumerate(jobs) if position not in found]

        self._change(change)

    @property
    def _file(self) -> UserFile[_Jobs]:
        path = self.path or data_file("pending.json")
        return UserFile(path, kind=_Jobs, empty=list, description="your pending jobs")

    def _change(self, change: Callable[[_Jobs], _Jobs]) -> None:
        """Change the file on a thread of its own, as a disk may hang."""

        def write() -> None:
            try:
                warning = self._file.change(change)
            except CannotTellError as error:
                warning = error.message
            if warning:
                self.notify(warning)

        in_background(write, thread="save pending jobs")


def _positions(entry: dict[str, Any], jobs: _Jobs) -> list[int]:
    """Return where a job stands among those in the file, of which an older vramtop wrote fewer or other keys."""
    from vramtop.estimator.job.job_file.changes import job_from_mapping

    def now(saved: dict[str, Any]) -> dict[str, Any]:
        try:
            return _to_plain_data(job_from_mapping(saved, where="a pending job"))
        except InputError:
            return saved

    return [position for position, each in enumerate(jobs) if entry in (each, now(each))]


def _to_plain_data(job: Job) -> dict[str, Any]:
    """Return a job as it is read back from the file."""
    from vramtop.estimator.job.job_file.changes import job_to_mapping

    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job_to_mapping(job)))
    return plain
