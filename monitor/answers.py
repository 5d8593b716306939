"""What the user filled in about a run, remembered by its command line: the same run attached to again asks nothing.

One JSON file in the user's data folder, readable by the user alone. Command lines are kept as digests: they may hold
secrets. Several dashboards may write at once; a file that cannot be read is set aside, never overwritten.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from platformdirs import user_data_dir

from vramtop.estimator.errors import CannotTellError, InputError
from vramtop.estimator.readers.evidence import Finding, JobReading

from .attach import Attachment

_VERSION = 1
_MOST_RUNS = 500
"""Some 100 kB; the runs whose last answer is oldest go first."""
_PATIENCE_SECONDS = 2.0
"""How long another dashboard may hold the file: it takes milliseconds, unless its disk hangs."""
_OF_ONE_RANK = re.compile(r"\s--local[_-]rank[= ]\d+")
"""The one argument in which the ranks of a run differ: DeepSpeed's launcher and torch's old one hand it to them."""
_FOREIGN_ROOT = re.compile(r"^/proc/\d+/root(?=/)")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user gave."""

    value: Any
    """Of a dotted job key; of ``lora`` the whole table, or None for none."""
    given: float
    """Unix seconds."""


class _Run(msgspec.Struct):
    answers: dict[str, Answer]


class _File(msgspec.Struct):
    version: int
    runs: dict[str, _Run]


class _Header(msgspec.Struct):
    version: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The file of answers.

    Args:
        path: of the file; None: where the user's data belongs (``$XDG_DATA_HOME/vramtop/answers.json``).
        clock: Unix seconds.
    """

    path: Path | None = None
    clock: Callable[[], float] = time.time

    def recall(self, run: str) -> Mapping[str, Answer]:
        """The answers for a run (see ``run_key``), by job key.

        Raises:
            CannotTellError: the file cannot be read.
        """
        found = _read(self._file).runs.get(run)
        return {} if found is None else found.answers

    def remember(self, run: str, values: Mapping[str, Any]) -> str | None:
        """Keep these values for a run, beside those given before; returns a sentence where an old file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        given = {key: Answer(value=value, given=self.clock()) for key, value in values.items()}

        def add(content: _File) -> None:
            content.runs.setdefault(run, _Run({})).answers.update(given)

        return self._change(add)

    def forget(self, run: str, keys: Iterable[str] | None = None) -> str | None:
        """Forget the values for these keys of a run, or all of them; as ``remember`` otherwise."""
        dropped = None if keys is None else set(keys)

        def drop(content: _File) -> None:
            known = content.runs.get(run)
            if known is not None:
                left = {} if dropped is None else {k: a for k, a in known.answers.items() if k not in dropped}
                content.runs[run] = _Run(left)

        return self._change(drop)

    @property
    def _file(self) -> Path:
        chosen = self.path or Path(user_data_dir("vramtop")) / "answers.json"
        return Path(os.path.realpath(chosen))

    def _change(self, change: Callable[[_File], None]) -> str | None:
        file, said = self._file, None
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(file.with_suffix(".lock")):
                try:
                    content = _read(file)
                except _DamagedError as error:
                    said = f"{error.message} It was kept as {_set_aside(file).name}."
                    content = _File(_VERSION, {})
                change(content)
                _write(file, _bounded(content))
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotTellError(f"What you filled in cannot be remembered in {file}: {reason}.") from None
        return said


def run_key(attachment: Attachment) -> str:
    """What tells a run's command line and folder from others: a digest, the same for all of its ranks."""
    command = _OF_ONE_RANK.sub("", attachment.command)
    folder = _FOREIGN_ROOT.sub("", str(attachment.cwd or ""))
    return hashlib.sha256(f"{folder}\0{command}".encode(errors="surrogatepass")).hexdigest()[:32]


def with_answers(attachment: Attachment, answers: Mapping[str, Answer]) -> Attachment:
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


def recalled(attachment: Attachment, answers: Answers) -> Attachment:
    """The attachment with what is remembered of its command line; where that cannot be read, a warning says so."""
    try:
        return with_answers(attachment, answers.recall(run_key(attachment)))
    except CannotTellError as error:
        return replace(attachment, warnings=(*attachment.warnings, error.message))


def _finding(reading: JobReading, key: str, answer: Answer) -> Finding:
    day = time.strftime("%Y-%m-%d", time.localtime(answer.given))
    found = next((finding for finding in reading.findings if finding.key == key), None)
    differs = found is not None and found.value != answer.value
    instead = f", instead of {found.value} ({found.origin})" if found is not None and differs else ""
    return Finding(key=key, value=answer.value, origin=f"you, on {day}{instead}", written=True)


class _DamagedError(CannotTellError):
    """The file is there, and no file of answers."""


def _read(file: Path) -> _File:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return _File(_VERSION, {})
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotTellError(f"What you filled in before cannot be read from {file}: {reason}.") from None
    try:
        version = msgspec.json.decode(data, type=_Header).version
        if version == _VERSION:
            return msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _DamagedError(f"{file}, with what you filled in before, is damaged.") from None
    raise CannotTellError(f"{file} was written by another version of vramtop and is left as it is.")


def _write(file: Path, content: _File) -> None:
    """The whole file or none of it; only the user may read it."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".answers-", delete=False) as part:
        try:
            part.write(msgspec.json.format(msgspec.json.encode(content), indent=1))
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).replace(file)
        except OSError:
            Path(part.name).unlink(missing_ok=True)
            raise


def _bounded(content: _File) -> _File:
    known = {
        run: max(answer.given for answer in held.answers.values()) for run, held in content.runs.items() if held.answers
    }
    newest = sorted(known, key=known.__getitem__, reverse=True)[:_MOST_RUNS]
    return _File(content.version, {run: content.runs[run] for run in newest})


def _set_aside(file: Path) -> Path:
    """Rename a damaged file to a name that nothing has yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (file.with_name(f"{file.name}.damaged-{stamp}{tail}") for tail in ("", *(f"-{n}" for n in range(1, 1000))))
    free = next(name for name in names if not name.exists())
    return file.rename(free)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Nobody else changes the answers meanwhile."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)
