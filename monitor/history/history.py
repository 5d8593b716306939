"""The history of measured runs, a SQLite file: private, versioned, bounded, and safe for several programs at once.

sqlite3 is imported with the first use: no other part of vramtop needs it. Its journal is the one that is rolled back:
a write-ahead log, which older versions of vramtop kept, needs memory that all its readers share, and homes are also
on file systems of several machines (https://www.sqlite.org/wal.html, section 1).
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.limits import MEASURED_RUNS, LimitError, decode_json
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.private_files import make_own_folder

from ..storage.user_file import data_file, lock_file, name_for_damaged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence

    from vramtop.estimator.learning.measurement import Measurement


FILE_NAME = "history.sqlite3"
BUSY_SECONDS = 3.0
"""Another vramtop writes for milliseconds, unless its disk hangs."""
MAX_BYTES = MEASURED_RUNS.bytes or 0
"""A measurement has about 4 KiB."""
PAGE_BYTES = 4096
SCHEMA = 1
_TABLE = """
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
    PRAGMA user_version = 1;
"""
MAX_RUNS = 2000
"""The newest are kept."""
_FULL_SHARE = 0.9
_MOST_ON_CARD = 400
_STEPS_BETWEEN_LOOKS = 1000
"""Steps of SQLite's machine; one may compute a value of any length."""
_OUT_OF_TIME = "interrupted"
"""SQLite's word."""
_FILES_WITH_IT = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps with its own."""
_BARE = "replace(replace(lower({}), ' ', ''), '-', '')"
"""A model's name as people type it: ``llama-3.1-8b`` is Llama 3.1 8B."""
_WHERE = {
    "run": "instr(run, ?) = 1",
    "card": "instr(lower(card), lower(?)) > 0",
    "model": f"instr({_BARE.format('model')}, {_BARE.format('?')}) > 0",
    "state": "state = ?",
    "since": "time >= ?",
    "before": "time < ?",
}
"""Conditions of a choice."""


class DamagedError(CannotTellError):
    """The file exists, and is no sound database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs are meant; what is None chooses all."""

    run: str | None = None
    """First digits of the run's digest."""
    card: str | None = None
    """Part of the card's name."""
    model: str | None = None
    """Part of the model's name."""
    state: str | None = None
    since: float | None = None
    """Unix seconds."""
    before: float | None = None
    """Unix seconds."""

    def where(self) -> tuple[str, tuple[Any, ...]]:
        """Return the condition in SQL and its values."""
        chosen = [(text, getattr(self, name)) for name, text in _WHERE.items() if getattr(self, name) is not None]
        return " AND ".join(text for text, _ in chosen) or "1", tuple(value for _, value in chosen)


class History:
    """The measured runs of this user; each use opens and closes the file, which takes a millisecond.

    Args:
        path: of the file; None: the one in the user's data folder.

    Raises:
        CannotTellError: no home is known.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_file(FILE_NAME)

    def add(self, measurement: Measurement) -> str | None:
        """Keep a measurement; an earlier one of the same run is replaced, with the higher figures of both.

        Returns:
            A sentence if a damaged file was renamed.

        Raises:
            CannotTellError: the file cannot be written.
        """
        warning = None
        for attempt in (1, 2):
            try:
                with self.writing() as connection:
                    _write(connection, measurement)
                break
            except DamagedError:
                if attempt == 2:
                    raise
                warning = self._set_aside()
        return warning

    def on_card(self, names: Collection[str]) -> tuple[Measurement, ...]:
        """Return the newest measurements on one card, the newest first.

        Args:
            names: those under which NVML knows the card.

        Raises:
            CannotTellError: the file cannot be read.
        """
        condition = f"card IN ({', '.join('?' * len(names))}) ORDER BY time DESC LIMIT ?"
        return self._read_all(condition, (*names, _MOST_ON_CARD))

    def list(self, choice: Choice | None = None) -> tuple[Measurement, ...]:
        """Return the chosen measurements, the newest first.

        Raises:
            CannotTellError: the file cannot be read.
        """
        condition, values = (choice or Choice()).where()
        return self._read_all(f"{condition} ORDER BY time DESC", values)

    def count(self) -> int:
        """Return the number of measured runs.

        Raises:
            CannotTellError: the file cannot be read.
        """
        with self.reading() as connection:
            if connection is None:
                return 0
            return int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])

    def forget(self, choice: Choice) -> int:
        """Remove the chosen measurements for good; returns how many these were.

        Raises:
            CannotTellError: the file cannot be written.
        """
        condition, values = choice.where()
        with self.reading() as connection:
            if connection is None:
                return 0
        with self.writing() as connection:
            return connection.execute(f"DELETE FROM measurement WHERE {condition}", values).rowcount  # noqa: S608

    def _read_all(self, condition: str, values: Sequence[Any]) -> tuple[Measurement, ...]:
        with self.reading() as connection:
            if connection is None:
                return ()
            texts, size = [], 0
            statement = f"SELECT data FROM measurement WHERE {condition}"  # noqa: S608 - conditions of this module
            for (text,) in connection.execute(statement, values):
                size += len(text) if isinstance(text, str) else 0
                if size > MAX_BYTES:
                    raise MEASURED_RUNS.too_large()
                texts.append(text)
        return tuple(found for text in texts if (found := _measurement(text)) is not None)

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
            if self._has_table(connection):
                yield connection
                return
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise sqlite3.DatabaseError("it belongs to another program")
            yield None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open the file, in a transaction that holds other writers off; it is made if need be.

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
                raise PermissionError(13, "it is read-only")
            connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is not left in free pages
                connection.execute(f"PRAGMA max_page_count = {MAX_BYTES // PAGE_BYTES}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    if not self._has_table(connection):
                        for statement in _TABLE.split(";"):
                            connection.execute(statement)
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise

    def _set_aside(self) -> str:
        """Rename a damaged file, with those that SQLite keeps with it; returns a sentence that names it."""
        file = self._file
        with self._errors("renamed"):
            lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                lock_file(lock, BUSY_SECONDS)
                if self._is_sound():  # another vramtop has set it aside meanwhile
                    return f"{file.name} was damaged and was set aside."
                kept = name_for_damaged(file)
                for ending in _FILES_WITH_IT:
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

    def _has_table(self, connection: sqlite3.Connection) -> bool:
        import sqlite3

        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version < 0:
            raise sqlite3.DatabaseError(f"its schema is {version}")
        if version > SCHEMA:
            raise CannotTellError(
                f"{self._file} was written by a newer vramtop (schema {version}; this one knows {SCHEMA}) and is "
                "left as it is; update vramtop, or use --no-history."
            )
        return version > 0

    def _connect_to_read(self, file: Path) -> sqlite3.Connection:
        import sqlite3
        from urllib.parse import quote

        # an older vramtop's log may have what the file has not; without it, a file in a folder that may not be written
        # is read as it is, since SQLite cannot make the memory for readers of a log there
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


def _write(connection: sqlite3.Connection, measurement: Measurement) -> None:
    import msgspec

    from vramtop.estimator.learning.measurement import measurement_to_json, merged

    known = connection.execute("SELECT data FROM measurement WHERE run = ?", (measurement.run,)).fetchone()
    earlier = _measurement(known[0]) if known else None
    if earlier is not None:
        measurement = merged(earlier, measurement)
    text = msgspec.json.encode(measurement_to_json(measurement)).decode()
    _make_room(connection)
    connection.execute(
        "INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            measurement.run,
            measurement.time,
            measurement.state,
            measurement.card,
            measurement.machine,
            measurement.model,
            measurement.shape,
            text,
        ),
    )
    _forget_oldest(connection, keep=MAX_RUNS)


def _make_room(connection: sqlite3.Connection) -> None:
    """Remove the oldest tenth if the file is nearly as large as it may become; their pages are used again."""
    pages, free = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    if (pages - free) * PAGE_BYTES > _FULL_SHARE * MAX_BYTES:
        count = connection.execute("SELECT count(*) FROM measurement").fetchone()[0]
        _forget_oldest(connection, keep=count - count // 10 - 1)


def _forget_oldest(connection: sqlite3.Connection, *, keep: int) -> None:
    connection.execute(
        "DELETE FROM measurement WHERE run IN (SELECT run FROM measurement ORDER BY time DESC LIMIT -1 OFFSET ?)",
        (keep,),
    )


def _measurement(text: Any) -> Measurement | None:
    """Return a measurement; None: another version of vramtop wrote it, with settings that this one does not know."""
    from vramtop.estimator.learning.measurement import measurement_from_json

    if not isinstance(text, str):
        return None
    try:
        return measurement_from_json(decode_json(text))
    except (InputError, LimitError):
        return None
