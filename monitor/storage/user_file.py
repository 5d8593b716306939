"""A file in the user's data folder that outlives the program: private, written whole or not at all, never lost.

Several dashboards may change it at once; one that cannot be understood is set aside, never overwritten.
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
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.untrusted_files import read_file

_PATIENCE_SECONDS = 2.0
"""How long another dashboard may hold the file: it takes milliseconds, unless its disk hangs."""

_MOST_BYTES = 2**23
"""200 jobs, or 500 runs, are far less; what is more is not ours."""

Content = TypeVar("Content")


@dataclass
class _Header:
    version: int


class _DamagedError(CannotTellError):
    """The file is there, and cannot be understood."""


def data_folder() -> Path:
    """Where the user's data belongs; no full path where no home is known."""
    return Path(user_data_dir("vramtop"))


def data_file(name: str) -> Path:
    """A file of this name where the user's data belongs (``$XDG_DATA_HOME/vramtop``).

    Raises:
        CannotTellError: that is nowhere.
    """
    folder = data_folder()
    if not folder.is_absolute():  # no home is known (a container's user), or XDG_DATA_HOME is half a path
        raise CannotTellError(f"{name} is kept nowhere: {folder} is no full path; set HOME or XDG_DATA_HOME.")
    return folder / name


@dataclass(frozen=True, slots=True)
class UserFile(Generic[Content]):
    """JSON ``{"version": ..., "content": ...}``, readable by the user alone.

    Args:
        path: of the file.
        kind: what the content is, as msgspec knows types.
        empty: makes the content of a file that is not there.
        version: of the format.
        holds: what is in it, for sentences: ``what you filled in``.
    """

    path: Path
    kind: Any
    empty: Callable[[], Content]
    version: int
    holds: str

    def read(self) -> Content:
        """The content.

        Raises:
            CannotTellError: the file cannot be read, is damaged, or was written by another version.
        """
        file = self._file
        try:
            data = read_file(file, _MOST_BYTES)
        except FileNotFoundError:
            return self.empty()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotTellError(f"{file}, with {self.holds}, cannot be read: {reason}.") from None
        import msgspec  # not before there is a file

        try:
            if msgspec.json.decode(data, type=_Header).version == self.version:
                content: Content = msgspec.convert(msgspec.json.decode(data)["content"], self.kind)
                return content
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
            raise _DamagedError(f"{file}, with {self.holds}, is damaged.") from None
        raise CannotTellError(f"{file} was written by another version of vramtop and is left as it is.")

    def change(self, change: Callable[[Content], Content]) -> str | None:
        """Read, change and write it while nobody else does; returns a sentence where a damaged file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        file, said = self._file, None
        try:
            if os.path.lexists(file) and not is_file(file):
                self.read()  # says what it is, before anything is put beside it
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(file.with_suffix(".lock")):
                try:
                    content = self.read()
                except _DamagedError as error:
                    said = f"{error.message} It was kept as {_set_aside(file).name}."
                    content = self.empty()
                _write(file, {"version": self.version, "content": change(content)})
        except OSError as error:
            reason = error.strerror or str(error)
            before = f"{said} " if said else ""
            raise CannotTellError(f"{before}{file}, with {self.holds}, cannot be written: {reason}.") from None
        return said

    @property
    def _file(self) -> Path:
        return Path(os.path.realpath(self.path))


def change_later(
    file: Callable[[], UserFile[Content]],
    change: Callable[[Content], Content],
    say: Callable[[str], None],
    *,
    thread: str,
) -> None:
    """Change a file on a thread of its own: a disk may hang.

    Args:
        file: gives the file; may raise CannotTellError.
        change: as of ``UserFile.change``.
        say: told in a sentence when it could not be written, or was set aside; on that thread.
        thread: its name.
    """

    def write() -> None:
        try:
            said = file().change(change)
        except CannotTellError as error:
            said = error.message
        if said:
            say(said)

    threading.Thread(target=write, name=thread).start()  # no daemon: quitting at once loses nothing


def _write(file: Path, content: Any) -> None:
    """The whole file or none of it."""
    import tempfile

    import msgspec

    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.stem}-", delete=False) as part:
        try:
            part.write(msgspec.json.format(msgspec.json.encode(content), indent=1))
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).replace(file)
        except OSError:
            Path(part.name).unlink(missing_ok=True)
            raise


def _set_aside(file: Path) -> Path:
    """Rename a damaged file to a name that nothing has yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (file.with_name(f"{file.name}.damaged-{stamp}{tail}") for tail in ("", *(f"-{n}" for n in range(1, 1000))))
    free = next(name for name in names if not name.exists())
    return file.rename(free)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile."""
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
