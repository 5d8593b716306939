"""The settings that a user filled in for a run, saved by its command line, so that they are not asked for again.

One JSON file in the user's data folder, readable by the user alone. Command lines are stored as digests, without
their secrets: a new token does not change the run. Several dashboards may write at once; an unreadable file is set
aside, never overwritten.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import mask_line
from vramtop.estimator.job.job_file.changes import replaces_model
from vramtop.estimator.readers.source.evidence import Finding, JobReading

from ..storage.user_file import UserFile, data_file
from .attachment import Attachment

Reread = Callable[[Mapping[str, Any]], Attachment]
_MAX_RUNS = 500
"""About 100 kB; the runs whose latest answer is oldest are dropped first."""
_LOCAL_RANK_OPTION = re.compile(r"\s--local[_-]rank[= ]\d+")
"""The one argument in which the ranks of a run differ; DeepSpeed's launcher and torch's old one add it."""
_FOREIGN_ROOT = re.compile(r"^/proc/\d+/root(?=/)")


class SavedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user filled in."""

    value: Any
    """Value of a dotted job key; for ``lora`` the whole table, or None for no adapters."""
    given: float
    """Unix seconds."""


_Runs = dict[str, dict[str, SavedAnswer]]
"""Answers by run key and job key."""


class SavedAnswers(msgspec.Struct, frozen=True):
    """The file of answers.

    Args:
        path: the file; None: ``answers.json`` in the user's data folder (``$XDG_DATA_HOME/vramtop``).
        clock: returns Unix seconds.
    """

    path: Path | None = None
    clock: Callable[[], float] = time.time

    def load(self, run: str) -> Mapping[str, SavedAnswer]:
        """Return the answers for a run (see ``run_key``), by job key.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return self._file.read().get(run, {})

    def save(self, run: str, values: Mapping[str, Any]) -> str | None:
        """Add these values to the answers for a run.

        Returns:
            A sentence if an unreadable file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        added = {key: SavedAnswer(value=value, given=self.clock()) for key, value in values.items()}
        return self._file.change(lambda runs: _limited({**runs, run: {**runs.get(run, {}), **added}}))

    def delete(self, run: str, keys: Iterable[str] | None = None) -> str | None:
        """Delete the values for these keys of a run, or all of them.

        Returns:
            A sentence if an unreadable file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        deleted = None if keys is None else set(keys)

        def delete(runs: _Runs) -> _Runs:
            known = runs.get(run, {})
            kept = {} if deleted is None else {key: answer for key, answer in known.items() if key not in deleted}
            return _limited({**runs, run: kept})

        return self._file.change(delete)

    @property
    def _file(self) -> UserFile[_Runs]:
        path = self.path or data_file("answers.json")
        return UserFile(path, kind=_Runs, empty=dict, description="the settings you gave for runs")


def run_key(attachment: Attachment) -> str:
    """Return a digest of a run's command line and folder; it is the same for all of its ranks."""
    command = mask_line(_LOCAL_RANK_OPTION.sub("", attachment.command))
    folder = _FOREIGN_ROOT.sub("", str(attachment.cwd or ""))
    return hashlib.sha256(f"{folder}\0{command}".encode(errors="surrogatepass")).hexdigest()[:32]


def apply_answers(
    attachment: Attachment, answers: Mapping[str, SavedAnswer], *, reread: Reread | None = None
) -> Attachment:
    """Return the attachment with the user's answers in place of what was read, unless they make no job.

    Args:
        attachment: what was read.
        answers: the answers, by job key.
        reread: reads the run again, given another model; without it, what follows from the old one stays.
    """
    reading = attachment.reading
    given = {key: _finding(reading, key, answer) for key, answer in answers.items()}
    if not given:
        return attachment
    values = {key: answer.value for key, answer in answers.items()}
    if replaces_model(values) and values.get("model.id") != reading.value("model.id") and reread is not None:
        attachment = reread(values)
        reading = attachment.reading
    tables = {key for key in given if "." not in key}
    kept = [f for f in reading.findings if f.key not in given and f.key.partition(".")[0] not in tables]
    missing = tuple(key for key in reading.missing if key not in given)
    filled = replace(reading, findings=(*kept, *given.values()), missing=missing)
    try:
        filled.job()
    except InputError as error:
        warning = f"The values you gave for this command line before are ignored: {error.message}"
        return replace(attachment, warnings=(*attachment.warnings, warning))
    return replace(attachment, reading=filled)


def with_saved_answers(attachment: Attachment, answers: SavedAnswers, *, reread: Reread | None = None) -> Attachment:
    """Return the attachment with the saved answers for its command line; a warning is added if they cannot be read.

    Args:
        attachment: what was read.
        answers: the file of answers.
        reread: reads the run again, given another model; without it, what follows from the old one stays.
    """
    try:
        return apply_answers(attachment, answers.load(run_key(attachment)), reread=reread)
    except CannotTellError as error:
        return replace(attachment, warnings=(*attachment.warnings, error.message))


def _finding(reading: JobReading, key: str, answer: SavedAnswer) -> Finding:
    day = time.strftime("%Y-%m-%d", time.localtime(answer.given))
    found = next((finding for finding in reading.findings if finding.key == key), None)
    differs = found is not None and found.value != answer.value
    instead = f", instead of {found.value} ({found.origin})" if found is not None and differs else ""
    return Finding(key=key, value=answer.value, origin=f"you, on {day}{instead}", written=True)


def _limited(runs: _Runs) -> _Runs:
    latest = {run: max(answer.given for answer in answers.values()) for run, answers in runs.items() if answers}
    kept = sorted(latest, key=latest.__getitem__, reverse=True)[:_MAX_RUNS]
    return {run: runs[run] for run in kept}
