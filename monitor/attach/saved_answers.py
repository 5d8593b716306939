"""What the user filled in about a run, remembered by its command line: the same run attached to again asks nothing.

One JSON file in the user's data folder, readable by the user alone. Command lines are kept as digests: they may hold
secrets. Several dashboards may write at once; a file that cannot be read is set aside, never overwritten.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.readers.source.evidence import Finding, JobReading

from ..storage.user_file import UserFile, data_file
from .read_run import Attachment

_VERSION = 1
_MOST_RUNS = 500
"""Some 100 kB; the runs whose last answer is oldest go first."""
_OF_ONE_RANK = re.compile(r"\s--local[_-]rank[= ]\d+")
"""The one argument in which the ranks of a run differ: DeepSpeed's launcher and torch's old one hand it to them."""
_FOREIGN_ROOT = re.compile(r"^/proc/\d+/root(?=/)")


class SavedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user gave."""

    value: Any
    """Of a dotted job key; of ``lora`` the whole table, or None for none."""
    given: float
    """Unix seconds."""


_Runs = dict[str, dict[str, SavedAnswer]]
"""By the runs' keys, and by job keys."""


@dataclass(frozen=True, slots=True)
class SavedAnswers:
    """The file of answers.

    Args:
        path: of the file; None: where the user's data belongs (``$XDG_DATA_HOME/vramtop/answers.json``).
        clock: Unix seconds.
    """

    path: Path | None = None
    clock: Callable[[], float] = time.time

    def load(self, run: str) -> Mapping[str, SavedAnswer]:
        """The answers for a run (see ``run_key``), by job key.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return self._file.read().get(run, {})

    def save(self, run: str, values: Mapping[str, Any]) -> str | None:
        """Keep these values for a run, beside those given before; returns a sentence where an old file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        given = {key: SavedAnswer(value=value, given=self.clock()) for key, value in values.items()}
        return self._file.change(lambda runs: _bounded({**runs, run: {**runs.get(run, {}), **given}}))

    def delete(self, run: str, keys: Iterable[str] | None = None) -> str | None:
        """Forget the values for these keys of a run, or all of them; as ``remember`` otherwise."""
        dropped = None if keys is None else set(keys)

        def drop(runs: _Runs) -> _Runs:
            known = runs.get(run, {})
            left = {} if dropped is None else {key: answer for key, answer in known.items() if key not in dropped}
            return _bounded({**runs, run: left})

        return self._file.change(drop)

    @property
    def _file(self) -> UserFile[_Runs]:
        path = self.path or data_file("answers.json")
        return UserFile(path, kind=_Runs, empty=dict, version=_VERSION, holds="what you filled in about runs")


def run_key(attachment: Attachment) -> str:
    """What tells a run's command line and folder from others: a digest, the same for all of its ranks."""
    command = _OF_ONE_RANK.sub("", attachment.command)
    folder = _FOREIGN_ROOT.sub("", str(attachment.cwd or ""))
    return hashlib.sha256(f"{folder}\0{command}".encode(errors="surrogatepass")).hexdigest()[:32]


def apply_answers(attachment: Attachment, answers: Mapping[str, SavedAnswer]) -> Attachment:
    """The attachment with the user's answers in place of what was found; those that make no job are left out."""
    reading = attachment.reading
    given = {key: _finding(reading, key, answer) for key, answer in answers.items()}
    if not given:
        return attachment
    whole = {key for key in given if "." not in key}
    kept = [f for f in reading.findings if f.key not in given and f.key.partition(".")[0] not in whole]
    missing = tuple(key for key in reading.missing if key not in given)
    filled = replace(reading, findings=(*kept, *given.values()), missing=missing)
    try:
        filled.job()
    except InputError as error:
        sentence = f"What you filled in for this command line before is left out: {error.message}"
        return replace(attachment, warnings=(*attachment.warnings, sentence))
    return replace(attachment, reading=filled)


def with_saved_answers(attachment: Attachment, answers: SavedAnswers) -> Attachment:
    """The attachment with what is remembered of its command line; where that cannot be read, a warning says so."""
    try:
        return apply_answers(attachment, answers.load(run_key(attachment)))
    except CannotTellError as error:
        return replace(attachment, warnings=(*attachment.warnings, error.message))


def _finding(reading: JobReading, key: str, answer: SavedAnswer) -> Finding:
    day = time.strftime("%Y-%m-%d", time.localtime(answer.given))
    found = next((finding for finding in reading.findings if finding.key == key), None)
    differs = found is not None and found.value != answer.value
    instead = f", instead of {found.value} ({found.origin})" if found is not None and differs else ""
    return Finding(key=key, value=answer.value, origin=f"you, on {day}{instead}", written=True)


def _bounded(runs: _Runs) -> _Runs:
    known = {run: max(answer.given for answer in answers.values()) for run, answers in runs.items() if answers}
    newest = sorted(known, key=known.__getitem__, reverse=True)[:_MOST_RUNS]
    return {run: runs[run] for run in newest}
