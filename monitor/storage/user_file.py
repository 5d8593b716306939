"""A JSON file in the user's data folder: private, written whole or not at all, never lost.

Several dashboards may change it at once, under a lock; a damaged file is renamed, never overwritten. (The ``filelock``
package locks files too, but takes 22 ms to import.)
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from platformdirs import user_data_dir

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.private_files import make_own_folder, write_private
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.untrusted_files import read_file

_LOCK_TIMEOUT_SECONDS = 2.0
"""Another dashboard holds the lock for milliseconds, unless its disk hangs."""
_VERSION = 1
"""Format of the files."""
_MAX_BYTES = 2**23
"""200 jobs, or 500 runs, are far less; vramtop writes no larger file."""

Content = TypeVar("Content")

_changes_allowed = threading.Event()
_changes_allowed.set()


def leave_files_unchanged() -> None:
    """Write none of the user's files from now on, in this whole process: changes are dropped without a word."""
    _changes_allowed.clear()


def may_change_files() -> bool:
    """Return False after ``leave_files_unchanged``."""
    return _changes_allowed.is_set()


@dataclass
class _Header:
    version: int


class _DamagedError(CannotTellError):
    """The file exists, and its content is invalid."""


def data_folder() -> Path:
    """Return the folder for the user's data; a relative path if no home is known."""
    try:
        return Path(user_data_dir("vramtop"))
    except RuntimeError:  # platformdirs 4.4 and newer, where no home is known
        return Path("~/.local/share/vramtop")


def data_file(name: str) -> Path:
    """Return the path of a file in the user's data folder (``$XDG_DATA_HOME/vramtop``).

    Raises:
        CannotTellError: no home is known.
    """
    folder = data_folder()
    if not folder.is_absolute():  # no home is known (a container's user), or XDG_DATA_HOME is relative
        raise CannotTellError(f"{name} cannot be saved: {folder} is not an absolute path; set HOME or XDG_DATA_HOME.")
    return folder / name


@dataclass(frozen=True, slots=True)
class UserFile(Generic[Content]):
    """JSON ``{"version": ..., "content": ...}``, readable by the user alone.

    Args:
        path: of the file.
        kind: type of the content, for msgspec.
        empty: makes the content of a missing file.
        description: of the content, in sentences: ``what you filled in``.
    """

    path: Path
    kind: Any
    empty: Callable[[], Content]
    description: str

    def read(self) -> Content:
        """Return the content.

        Raises:
            CannotTellError: the file cannot be read, is damaged, or was written by another version.
        """
        file = self._file
        try:
            data = read_file(file, _MAX_BYTES)
        except FileNotFoundError:
            return self.empty()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotTellError(f"{file}, with {self.description}, cannot be read: {reason}.") from None
        import msgspec  # not before there is a file

        try:
            if decode_json(data, _Header).version == _VERSION:
                content: Content = msgspec.convert(decode_json(data)["content"], self.kind)
                return content
        except (LimitError, msgspec.ValidationError, KeyError):
            raise _DamagedError(f"{file}, with {self.description}, is damaged.") from None
        raise CannotTellError(
            f"{file} was written by another version of vramtop and is left as it is; use that version, or move the "
            "file away."
        )

    def change(self, change: Callable[[Content], Content]) -> str | None:
        """Read, change and write the file under a lock.

        Args:
            change: makes the new content from the old one.

        Returns:
            A sentence if a damaged file was renamed.

        Raises:
            CannotTellError: the file cannot be written.
        """
        import msgspec

        file, warning = self._file, None
        if not _changes_allowed.is_set():
            return None
        try:
            if os.path.lexists(file) and not is_file(file):
                self.read()  # raises before a lock file is created beside it
            make_own_folder(self.path)
            with locked(file.with_suffix(".lock"), _LOCK_TIMEOUT_SECONDS):
                try:
                    content = self.read()
                except _DamagedError as error:
                    warning = f"{error.message} It was kept as {file.rename(name_for_damaged(file)).name}."
                    content = self.empty()
                encoded = msgspec.json.encode({"version": _VERSION, "content": change(content)})
                write_private(file, msgspec.json.format(encoded, indent=1))
        except OSError as error:
            reason = error.strerror or str(error)
            before = f"{warning} " if warning else ""
            raise CannotTellError(f"{before}{file}, with {self.description}, cannot be written: {reason}.") from None
        return warning

    @property
    def _file(self) -> Path:
        return Path(os.path.realpath(self.path))


def in_background(work: Callable[[], object], *, thread: str) -> None:
    """Run a function on a thread of its own, for whose end the program waits at exit; here where none can start."""
    try:
        start_thread(threading.Thread(target=work, name=thread))
    except ProcessLimitError:
        work()


def name_for_damaged(file: Path) -> Path:
    """Return a name beside a damaged file that none has, under which it is kept."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (file.with_name(f"{file.name}.damaged-{stamp}{tail}") for tail in ("", *(f"-{n}" for n in range(1, 1000))))
    return next(name for name in names if not name.exists())


_RETRY_SECONDS = 0.01


@contextlib.contextmanager
def locked(file: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of a file of this user's, which is created if it is missing.

    Raises:
        BlockingIOError: another process has held it for that long.
        OSError: it cannot be opened.
    """
    end = time.monotonic() + timeout_seconds
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)
