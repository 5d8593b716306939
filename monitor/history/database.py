"""The history's SQLite file: private, versioned, bounded, and safe for several programs at once.

sqlite3 is imported with the first use: no other part of vramtop needs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common import CannotTellError, LimitError, is_file, make_own_folder
from vramtop.estimator.common.limits import MEASURED_RUNS

from ..storage import lock_file, name_for_damaged
from .journal import journal_mode

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

BUSY_SECONDS = 3.0
"""Another vramtop writes for milliseconds, unless its disk hangs."""
MAX_BYTES = MEASURED_RUNS.bytes or 0
"""A measurement has about 4 KiB."""
PAGE_BYTES = 4096
MIGRATIONS = (
    """
    CREATE TABLE measurement (
        run TEXT PRIMARY KEY,
        time REAL NOT NULL,
        state TEXT NOT NULL,
        card TEXT,
        machine TEXT NOT NULL,
        model TEXT NOT NULL,
        shape TEXT NOT NULL,
        data TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX measurement_time ON measurement (time);
    CREATE INDEX measurement_card ON measurement (card, time);
    CREATE INDEX measurement_machine ON measurement (machine, time);
    """,
)
"""Statements that bring a file from one schema to the next: the first makes schema 1 of an empty file."""
_STEPS_BETWEEN_LOOKS = 1000
"""Steps of SQLite's machine; one may compute a value of any length."""
_OUT_OF_TIME = "interrupted"
"""SQLite's word."""
_BESIDE = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside its own."""


class DamagedError(CannotTellError):
    """The file exists, and is no sound database."""


@dataclass(frozen=True, slots=True)
class Database:
    """The file; each use opens and closes it, which takes a millisecond.

    Args:
        path: of the file.
    """

    path: Path

    @property
    def schema(self) -> int:
        """Version of the schema that this vramtop writes."""
        return len(MIGRATIONS)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open the file to read it; None: there is none.

        Raises:
            CannotTellError: it cannot be read, is damaged, or a newer vramtop wrote it.
        """
        import sqlite3

        file = self._file
        if not os.path.lexists(self.path):
            yield None
            return
        self._require_file(file)
        with self._errors("read"), contextlib.closing(self._connect_to_read(file)) as connection:
            version = self._version(connection)
            if not version:
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise sqlite3.DatabaseError("it is another program's")
                yield None
                return
            if version < self.schema:  # an older vramtop's: brought up to date, where it may be written
                with self.writing():
                    pass
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open the file, in a transaction that holds other writers off; it is made and brought up to date if need be.

        Raises:
            CannotTellError: it cannot be written, is damaged, or a newer vramtop wrote it.
        """
        import sqlite3

        file = self._file
        with self._errors("written"):
            make_own_folder(self.path)
            if not os.path.lexists(file):
                with contextlib.suppress(FileExistsError):  # another vramtop was faster
                    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._require_file(file)
            if not os.access(file, os.W_OK):
                raise PermissionError(13, "it may only be read")
            connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                self._prepare(connection, file)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    self._migrate(connection)
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise

    def set_aside(self) -> str:
        """Rename a damaged file, with those beside it; returns a sentence that names it.

        Raises:
            CannotTellError: it cannot be renamed.
        """
        file = self._file
        with self._errors("renamed"):
            lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                lock_file(lock, BUSY_SECONDS)
                if self._is_sound():  # another vramtop has set it aside meanwhile
                    return f"{file.name} was damaged and was set aside."
                kept = name_for_damaged(file)
                for ending in _BESIDE:
                    with contextlib.suppress(FileNotFoundError):
                        file.with_name(file.name + ending).rename(kept.with_name(kept.name + ending))
                file.rename(kept)
            finally:
                os.close(lock)
        return f"{file}, with your measured runs, is damaged. It was kept as {kept.name}."

    def _is_sound(self) -> bool:
        try:
            with self.reading() as connection:
                return connection is None or connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        except DamagedError:
            return False

    def _prepare(self, connection: sqlite3.Connection, file: Path) -> None:
        connection.execute(f"PRAGMA journal_mode = {journal_mode(file)}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is not left in free pages
        connection.execute(f"PRAGMA journal_size_limit = {2**20}")
        connection.execute(f"PRAGMA max_page_count = {MAX_BYTES // PAGE_BYTES}")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        for version in range(self._version(connection), self.schema):
            for statement in MIGRATIONS[version].split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")

    def _version(self, connection: sqlite3.Connection) -> int:
        import sqlite3

        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version < 0:
            raise sqlite3.DatabaseError(f"its schema is {version}")
        if version > self.schema:
            raise CannotTellError(
                f"{self._file} was written by a newer vramtop (schema {version}; this one knows {self.schema}) and is "
                "left as it is; update vramtop, or use --no-history."
            )
        return version

    def _connect_to_read(self, file: Path) -> sqlite3.Connection:
        import sqlite3
        from urllib.parse import quote

        # in a folder that may not be written, SQLite cannot make the files that readers of a WAL share; what is only
        # in a WAL that is there would be left out
        may_share = os.access(file.parent, os.W_OK) or is_file(file.with_name(f"{file.name}-wal"))
        name = f"file:{quote(str(file))}?{'mode=ro' if may_share else 'immutable=1'}"
        connection = sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        until = MEASURED_RUNS.deadline()
        connection.set_progress_handler(lambda: until.left == 0.0, _STEPS_BETWEEN_LOOKS)
        return connection

    def _require_file(self, file: Path) -> None:
        if not is_file(file):
            raise CannotTellError(f"{file}, with your measured runs, cannot be read: it is not a regular file.")

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn errors of the system and of SQLite into sentences."""
        import sqlite3

        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotTellError(f"{self._file}, with your measured runs, cannot be {done}: {reason}.") from None
        except (sqlite3.OperationalError, LimitError) as error:
            reason = str(MEASURED_RUNS.too_long() if str(error) == _OUT_OF_TIME else error)
            raise CannotTellError(f"{self._file}, with your measured runs, cannot be {done}: {reason}.") from None
        except sqlite3.DatabaseError as error:
            raise DamagedError(
                f"{self._file}, with your measured runs, is damaged: {error}. Remove it, or let vramtop set it "
                "aside when it keeps the next run."
            ) from None

    @property
    def _file(self) -> Path:
        return Path(os.path.realpath(self.path))


def repaired(database: Database, work: Callable[[], None]) -> str | None:
    """Do something with the file; a damaged one is set aside first, which the returned sentence says.

    Raises:
        CannotTellError: it cannot be written.
    """
    try:
        work()
    except DamagedError:
        warning = database.set_aside()
        work()
        return warning
    return None
