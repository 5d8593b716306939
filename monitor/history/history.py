"""The history of measured runs: add, find, list and forget them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common import InputError, LimitError, decode_json
from vramtop.estimator.common.limits import MEASURED_RUNS

from ..storage import data_file
from .database import MAX_BYTES, PAGE_BYTES, Database, repaired

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from vramtop.estimator.learning import Measurement

FILE_NAME = "history.sqlite3"
MAX_RUNS = 2000
"""The newest are kept."""
MAX_RUN_BYTES = 2**16
"""A measurement has about 4 KiB; one with a huge config is kept without its job's config."""
_FULL_SHARE = 0.9
_DAY_SECONDS = 86_400.0
_NEAR_RUNS = 400
_BARE = "replace(replace(lower({}), ' ', ''), '-', '')"
"""A model's name as people type it: ``llama-3.1-8b`` is Llama 3.1 8B."""
_WHERE = {
    "run": "instr(run, ?) = 1",
    "card": "instr(lower(card), lower(?)) > 0",
    "model": f"instr({_BARE.format('model')}, {_BARE.format('?')}) > 0",
    "shape": "shape = ?",
    "state": "state = ?",
    "since": "time >= ?",
    "before": "time < ?",
}
"""Conditions of a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs are meant; what is None chooses all."""

    run: str | None = None
    """First digits of the run's digest."""
    card: str | None = None
    """Part of the card's name."""
    model: str | None = None
    """Part of the model's name."""
    shape: str | None = None
    """Digest of the model's architecture."""
    state: str | None = None
    since: float | None = None
    """Unix seconds."""
    before: float | None = None
    """Unix seconds."""

    def where(self) -> tuple[str, tuple[Any, ...]]:
        """Return the condition in SQL and its values."""
        chosen = [(text, getattr(self, name)) for name, text in _WHERE.items() if getattr(self, name) is not None]
        return " AND ".join(text for text, _ in chosen) or "1", tuple(value for _, value in chosen)


@dataclass(frozen=True, slots=True)
class History:
    """The measured runs of this user.

    Args:
        path: of the file; None: the one in the user's data folder.
    """

    path: Path | None = None
    _database: Database = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the file.

        Raises:
            CannotTellError: no home is known.
        """
        object.__setattr__(self, "_database", Database(self.path or data_file(FILE_NAME)))

    def add(self, measurement: Measurement) -> str | None:
        """Keep a measurement; an earlier one of the same run is replaced, with the higher figures of both.

        Returns:
            A sentence if a damaged file was renamed.

        Raises:
            CannotTellError: the file cannot be written.
        """

        def write() -> None:
            with self._database.writing() as connection:
                _write(connection, measurement)

        return repaired(self._database, write)

    def near(self, *, cards: Collection[str], machine: str) -> tuple[Measurement, ...]:
        """Return the newest measurements of the same machine or the same card, the newest first.

        Args:
            cards: the names under which NVML knows the card.
            machine: digest of the machine; empty: another one.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return _read_all(
            self._database,
            f"(card IN ({', '.join('?' * len(cards))}) OR (machine = ? AND machine != '')) ORDER BY time DESC LIMIT ?",
            (*cards, machine, _NEAR_RUNS),
        )

    def list(self, choice: Choice | None = None) -> tuple[Measurement, ...]:
        """Return the chosen measurements, the newest first.

        Raises:
            CannotTellError: the file cannot be read.
        """
        condition, values = (choice or Choice()).where()
        return _read_all(self._database, f"{condition} ORDER BY time DESC", values)

    def count(self) -> int:
        """Return the number of measured runs.

        Raises:
            CannotTellError: the file cannot be read.
        """
        with self._database.reading() as connection:
            return (
                0 if connection is None else int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])
            )

    def forget(self, choice: Choice) -> int:
        """Remove the chosen measurements for good; returns how many these were.

        Raises:
            CannotTellError: the file cannot be written.
        """
        condition, values = choice.where()
        with self._database.reading() as connection:
            if connection is None:
                return 0
        with self._database.writing() as connection:
            return connection.execute(f"DELETE FROM measurement WHERE {condition}", values).rowcount  # noqa: S608


def _write(connection: sqlite3.Connection, measurement: Measurement) -> None:
    import msgspec

    from vramtop.estimator.learning import measurement_to_json, merged

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
    _keep_limits(connection)


def _keep_limits(connection: sqlite3.Connection) -> None:
    """Remove runs that are older, or more, than the user's settings allow."""
    from ..storage.settings import settings_in_force

    settings = settings_in_force()
    days = settings.number("history.max_age_days")
    if days:
        connection.execute("DELETE FROM measurement WHERE time < ?", (time.time() - days * _DAY_SECONDS,))
    _forget_oldest(connection, keep=min(MAX_RUNS, round(settings.number("history.max_runs"))))


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


def _read_all(database: Database, condition: str, values: Sequence[Any]) -> tuple[Measurement, ...]:
    with database.reading() as connection:
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


def _read(text: Any) -> Measurement | None:
    """Return a measurement; None: another version of vramtop wrote it, with settings that this one does not know."""
    from vramtop.estimator.learning import measurement_from_json

    if not isinstance(text, str):
        return None
    try:
        return measurement_from_json(decode_json(text))
    except (InputError, LimitError):
        return None
