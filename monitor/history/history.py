"""The history of measured runs: add, find, list and forget them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError, ProcessLimitError, VramtopError, start_thread
from vramtop.estimator.common.limits import MEASURED_RUNS, LimitError, decode_json
from vramtop.estimator.common.paths import is_file
from vramtop.estimator.common.private_files import make_own_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.trust import process_owner

from ..host.processes import read_stat
from ..storage.user_file import data_file, lock_file, name_for_damaged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job
    from vramtop.estimator.learning.measurement import Measurement, Observed, Predicted, RunState

    from ..board.board import Board, ProcessRow, RunRow
    from ..board.divergence import PeakUsage
    from ..snapshot.snapshot import GpuProcess, GpuReading, ProcessKey

# The history's SQLite file: private, versioned, bounded, and safe for several programs at once.
#
# sqlite3 is imported with the first use: no other part of vramtop needs it. Its journal is the one that is rolled back:
# a write-ahead log, which older versions of vramtop kept, needs memory that all its readers share, and homes are also
# on file systems of several machines (https://www.sqlite.org/wal.html, section 1).


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
MAX_RUN_BYTES = 2**16
"""A measurement has about 4 KiB; one with a huge config is kept without its job's config."""
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
        return tuple(found for text in texts if (found := _read(text)) is not None)

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
    earlier = _read(known[0]) if known else None
    if earlier is not None:
        measurement = merged(earlier, measurement)
    data = measurement_to_json(measurement)
    text = msgspec.json.encode(data).decode()
    if len(text) > MAX_RUN_BYTES:
        data["job"].get("model", {}).pop("config", None)
        text = msgspec.json.encode(data).decode()
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


def _read(text: Any) -> Measurement | None:
    """Return a measurement; None: another version of vramtop wrote it, with settings that this one does not know."""
    from vramtop.estimator.learning.measurement import measurement_from_json

    if not isinstance(text, str):
        return None
    try:
        return measurement_from_json(decode_json(text))
    except (InputError, LimitError):
        return None


# Corrects budgets by the user's measured runs: reads the history, and hands what is near to the pure correction.


_MOST_PREDICTED = 32
"""Runs whose jobs are estimated again after an update of vramtop, the newest ones: each takes some milliseconds."""
_FRESH_SECONDS = 20.0
"""Time for which what was read of the history is used again: a run becomes a measurement every few minutes."""


def corrected_by(
    runs: Iterable[Measurement],
    budget: Budget,
    *,
    card: str | None,
    machine: str = "",
    versions: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Budget:
    """Return the budget corrected by measured runs.

    Args:
        runs: the runs; those on other cards do not count.
        budget: of a job.
        card: name of the GPU that it is for, as NVML or the catalogue gives it; None: unknown; no run counts.
        machine: digest of the machine; empty: another one, or unknown.
        versions: versions of libraries in the run; None: what the job states.
        environ: environment of the run, with the Hugging Face cache and the allocator's settings; None: this one.
    """
    from vramtop.estimator.learning.correction import corrected
    from vramtop.estimator.learning.measurement import private_job
    from vramtop.estimator.learning.offsets import Subject
    from vramtop.estimator.model.find_config import resolve_model
    from vramtop.estimator.trace.allocator_report import allocator_settings

    from .new_measurement import vramtop_version

    environ = os.environ if environ is None else environ
    try:
        config = resolve_model(budget.job.model, environ=environ).config
    except VramtopError:
        config = {}
    _, allocator = allocator_settings(environ) or (None, None)
    facts = private_job(budget.job, config, parameters=budget.model.parameters)
    subject = Subject.of_job(facts, card=card, machine=machine, versions=versions, allocator=allocator or "")
    return corrected(budget, subject, runs, version=vramtop_version())


class Corrections(msgspec.Struct):
    """Corrects budgets. Safe to use from several threads; reads a file, so never use it on the UI thread.

    Args:
        history: opens the history; may raise CannotTellError.
        notify: called with a sentence, once, if the history cannot be read; estimates stay uncorrected.
        clock: Unix seconds.
    """

    history: Callable[[], History] = History
    notify: Callable[[str], object] = lambda _: None
    clock: Callable[[], float] = time.time
    _read: dict[str, tuple[float, tuple[Measurement, ...]]] = msgspec.field(default_factory=dict)
    _failed: bool = False
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def corrected(
        self,
        budget: Budget,
        *,
        card: str | None = None,
        here: bool = True,
        versions: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Budget:
        """Return the budget corrected by measured runs on the same card; as it is where there are none of its kind.

        Args:
            budget: of a job.
            card: see ``corrected_by``.
            here: the job would run, or runs, on this machine.
            versions: see ``corrected_by``.
            environ: environment of the run; None: it is no run yet, and would start in this one. A run is never
                corrected by what was seen of itself: of those measured, only runs that have ended count for it.
        """
        from .new_measurement import machine_digest

        runs = self._on_card(card) if card else ()
        if environ is not None:
            runs = tuple(each for each in runs if each.state != "steady")
        if not runs:
            return budget
        machine = machine_digest() if here else ""
        return corrected_by(runs, budget, card=card, machine=machine, versions=versions, environ=environ)

    def forget_what_was_read(self) -> None:
        """Read the history again with the next budget."""
        with self._lock:
            self._read.clear()

    def _on_card(self, card: str) -> tuple[Measurement, ...]:
        with self._lock:
            now = self.clock()
            known = self._read.get(card)
            if known is not None and now - known[0] < _FRESH_SECONDS:
                return known[1]
            try:
                history = self.history()
            except CannotTellError:  # no home is known, so nothing is kept
                return ()
            try:
                runs = history.on_card(_names(card))
                found = (*map(_predicted_now, runs[:_MOST_PREDICTED]), *runs[_MOST_PREDICTED:])
            except CannotTellError as error:
                found = ()
                if not self._failed:
                    self._failed = True
                    self.notify(error.message)
            self._read[card] = now, found
            return found


@functools.lru_cache(maxsize=_MOST_PREDICTED)
def _predictions(job: bytes, card: str | None, version: str) -> tuple[Predicted, ...]:
    """Return what this version predicts of a kept job by the closed form; nothing if it cannot."""
    import msgspec

    from vramtop.estimator.estimation import estimate
    from vramtop.estimator.job.gpu_catalogue import match_nvml_name
    from vramtop.estimator.job.job import Job
    from vramtop.estimator.learning.measurement import Predicted

    try:
        gpu = match_nvml_name(card) if card else None
        return (Predicted.of(estimate(msgspec.json.decode(job, type=Job), gpu=gpu), version),)
    except VramtopError:
        return ()


def _predicted_now(measurement: Measurement) -> Measurement:
    """Return a measurement with what this version of vramtop predicts: errors of another one's rules are not its own.

    A job of which names were removed cannot be estimated again, nor can a step be traced again.
    """
    import msgspec

    from .new_measurement import vramtop_version

    version = vramtop_version()
    own = [each for each in measurement.predicted if each.version == version]
    if own or not measurement.is_complete or measurement.hidden or measurement.job.model.config is None:
        return measurement
    again = _predictions(msgspec.json.encode(measurement.job), measurement.card, version)
    return replace(measurement, predicted=again) if again else measurement


def _names(card: str) -> tuple[str, ...]:
    """Return the names under which NVML may know a card."""
    from vramtop.estimator.job.gpu_catalogue import find_gpu, match_nvml_name

    found = match_nvml_name(card)
    if found is None:
        try:
            found = find_gpu(card)
        except VramtopError:
            return (card,)
    return (card, *found.nvml_names)


# The measurement of one process of a run, and what identifies the run.


class RunFacts(Protocol):
    """What was read of a run's process, as far as a measurement needs it."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the installed frameworks, by name."""

    @property
    def estimate_environ(self) -> Mapping[str, str]:
        """The Hugging Face cache and the allocator's settings."""

    @property
    def command(self) -> str:
        """Command line without secrets."""


def run_identity(pid: int) -> str | None:
    """Return what identifies a process on this machine for all time; None: it has ended, or may not be read."""
    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{boot} {pid} {stat.start_ticks}"


def is_own(pid: int) -> bool:
    """Return True if a process belongs to the user who runs vramtop."""
    return process_owner(pid) == os.geteuid()


def measurement_of_run(
    job: Job,
    budget: Budget,
    gpu: GpuReading,
    process: GpuProcess,
    *,
    usage: PeakUsage | None,
    run: str,
    state: RunState,
    time: float,
    driver: str | None,
    facts: RunFacts | None,
) -> Measurement:
    """Return the measurement of a run by its process with the highest peak; reads files.

    Args:
        job: of the run.
        budget: of the job.
        gpu: the GPU of the process.
        process: its latest reading, with torch's counters if it runs with the probe.
        usage: the most that it held.
        run: what identifies the run; see ``run_identity``.
        state: what the figures are the peaks of.
        time: Unix seconds of the reading.
        driver: version of the driver.
        facts: what was read of the process; None: nothing.
    """
    from vramtop.estimator.trace.allocator_report import allocator_settings

    from .new_measurement import new_measurement

    environ = None if facts is None else facts.estimate_environ
    _, allocator = (allocator_settings(environ) if environ else None) or (None, None)
    return new_measurement(
        job,
        [budget],
        _observed(process, usage),
        run=run,
        state=state,
        time=time,
        card=gpu.name,
        card_bytes=gpu.total_bytes,
        driver=driver,
        versions=dict(facts.versions) if facts else None,
        command=facts.command if facts else process.command,
        allocator=allocator,
        environ=environ,
    )


def _observed(process: GpuProcess, usage: PeakUsage | None) -> Observed:
    from vramtop.estimator.learning.measurement import Observed

    counters = process.counters
    allocated, reserved = (counters.allocated_peak_bytes, counters.reserved_peak_bytes) if counters else (None, None)
    return Observed(
        allocated_bytes=allocated or None,
        reserved_bytes=reserved or None,
        device_bytes=usage.size_bytes if usage else None,
        allocator_source="probe" if allocated or reserved else None,
        device_source=None if usage is None else "readings" if usage.source == "seen" else usage.source,
    )


# Makes a measurement of every followed run of this user: when it is steady, when its peak rises, and at its end.


MIN_SECONDS = 60.0
"""Between two measurements of one run, unless it ends."""
_MIN_RISE = 1.005
"""Rise of the peak that is worth another write."""
THREAD = "keep measured run"


class _Kept(msgspec.Struct, frozen=True):
    """The figures of a run that were handed to the thread that keeps them."""

    time: float
    """Unix seconds of their reading."""
    peak_bytes: int
    state: RunState
    method: str
    """Method of the estimate beside them."""


class _Followed(msgspec.Struct):
    """A run while it is followed."""

    identity: str
    """What identifies it on this machine, the same for every program that follows it."""
    own: bool
    """It belongs to this user."""
    was_steady: bool = False
    grew: bool = False
    kept: _Kept | None = None
    """What was kept last; None: nothing yet."""


class RunRecorder(msgspec.Struct):
    """Keeps measurements of the runs on the boards that it observes; the file is written on a thread of its own.

    Args:
        history: opens the history; may raise CannotTellError.
        facts: what was read of a process; None: it was not read here.
        notify: called with a sentence, once, if the history cannot be written; everything else goes on.
        on_kept: called, on the writing thread, after a measurement was kept.
        clock: Unix seconds.
    """

    history: Callable[[], History] = History
    facts: Callable[[ProcessKey], RunFacts | None] = lambda _: None
    notify: Callable[[str], object] = lambda _: None
    on_kept: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.time
    _runs: dict[tuple[ProcessKey, ...], _Followed] = msgspec.field(default_factory=dict)
    _failed: bool = False
    _writing: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def observe(self, board: Board) -> None:
        """Take note of the runs on a board of this machine; costs next to nothing while none changes."""
        if not board.snapshot.source.is_live:
            return
        self._runs = {run.pids: self._runs.get(run.pids) or _follow(run) for run in board.runs}
        for run in board.runs:
            followed = self._runs[run.pids]
            if followed.own and run.budget is not None and not run.missing and not run.job.is_served:
                self._observe_run(run, run.budget, followed, board)

    def any_kept(self) -> bool:
        """Return True if the history has one of the runs that were observed last, whoever kept it; reads the file."""
        from vramtop.estimator.learning.measurement import digest

        from .new_measurement import machine_digest

        machine = machine_digest()
        known = [digest(machine, each.identity) for each in self._runs.values() if each.identity]
        try:
            return any(self.history().list(Choice(run=run)) for run in known)
        except CannotTellError:
            return False

    def _observe_run(self, run: RunRow, budget: Budget, followed: _Followed, board: Board) -> None:
        row = max(run.rows, key=_peak_bytes, default=None)
        if row is None or row.comparison is None or not _peak_bytes(row):
            return
        followed.grew = followed.grew or row.comparison.status == "growing"
        followed.was_steady = followed.was_steady or row.comparison.phase == "steady"
        state = _state(run, row, followed)
        if state is None or run.job.program is not None:  # a program has no settings that other jobs share
            return
        now = board.snapshot.time
        found = _Kept(time=now, peak_bytes=_peak_bytes(row), state=state, method=budget.method)
        if followed.kept is not None and not _adds_to(found, followed.kept, ended=run.ended_at is not None):
            return
        facts = next((known for key in run.pids if (known := self.facts(key)) is not None), None)
        driver = board.snapshot.source.driver_version

        def keep() -> None:
            measurement = measurement_of_run(
                run.job,
                budget,
                row.gpu,
                row.process,
                usage=row.comparison.peak_usage if row.comparison else None,
                run=followed.identity,
                state=state,
                time=now,
                driver=driver,
                facts=facts,
            )
            with self._writing:
                try:
                    warning = self.history().add(measurement)
                except CannotTellError as error:
                    warning, self._failed = None if self._failed else error.message, True
                else:
                    self.on_kept()
            if warning:
                self.notify(warning)

        with contextlib.suppress(ProcessLimitError):  # the next board tries again
            start_thread(threading.Thread(target=keep, name=THREAD))  # not a daemon: the program waits for it at exit
            followed.kept = found


def _adds_to(found: _Kept, before: _Kept, *, ended: bool) -> bool:
    """Return True if figures are worth another measurement: there is something new, and not too soon."""
    rose = found.peak_bytes > _MIN_RISE * before.peak_bytes
    if (found.state, found.method) == (before.state, before.method) and not rose:
        return False
    return ended or found.time - before.time >= MIN_SECONDS


def _follow(run: RunRow) -> _Followed:
    first = min((pid for pid, _ in run.pids), default=None)
    identity = run_identity(first) if first is not None else None
    own = identity is not None and all(is_own(pid) for pid, _ in run.pids)
    return _Followed(identity=identity or "", own=own)


def _state(run: RunRow, row: ProcessRow, followed: _Followed) -> RunState | None:
    """Return what the figures of a run are the peaks of; None: nothing yet."""
    if row.comparison is not None and row.comparison.status == "out_of_memory":
        return "out_of_memory"
    if followed.grew:
        return "growing"
    if run.ended_at is not None:
        return "ended" if followed.was_steady else "short"
    return "steady" if followed.was_steady else None


def _peak_bytes(row: ProcessRow) -> int:
    usage = row.comparison.peak_usage if row.comparison else None
    return usage.size_bytes if usage else 0
