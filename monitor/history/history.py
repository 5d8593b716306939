"""The history of measured runs: a JSON file of the user's, which keeps the newest runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import MEASURED_RUNS, LimitError, decode_json

from ..storage.user_file import UserFile, data_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from vramtop.estimator.learning.measurement import Measurement

    Runs = dict[str, dict[str, Any]]
    """Measurements as JSON, by the digest of their run."""

FILE_NAME = "history.json"
MAX_RUNS = 2000
_MOST_ON_CARD = 400
_STEPS_BETWEEN_LOOKS = 1000
"""Steps of SQLite's machine; one may compute a value of any length."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are meant; what is None chooses all."""

    run: str | None = None
    """First digits of the run's digest."""
    card: str | None = None
    """Part of the card's name."""
    model: str | None = None
    """Part of the model's name, as people type it: ``llama-3.1-8b`` is Llama 3.1 8B."""
    state: str | None = None
    since: float | None = None
    """Unix seconds."""
    before: float | None = None
    """Unix seconds."""

    def has(self, measurement: Measurement) -> bool:
        """Return True if a measurement is meant."""
        return (
            measurement.run.startswith(self.run or "")
            and (self.card or "").lower() in (measurement.card or "").lower()
            and _bare(self.model or "") in _bare(measurement.model)
            and self.state in (None, measurement.state)
            and (self.since is None or measurement.time >= self.since)
            and (self.before is None or measurement.time < self.before)
        )


class History:
    """The measured runs of this user.

    Args:
        path: of the file; None: the one in the user's data folder.

    Raises:
        CannotTellError: no home is known.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_file(FILE_NAME)
        self._older, self._moves = self.path.with_suffix(".sqlite3"), False
        kind = dict[str, dict[str, Any]]
        self._file: UserFile[Runs] = UserFile(self.path, kind, self._without_file, "your measured runs")

    def add(self, measurement: Measurement) -> str | None:
        """Keep a measurement; an earlier one of the same run is replaced, with the higher figures of both.

        Returns:
            A sentence if a damaged file was renamed.

        Raises:
            CannotTellError: the file cannot be written.
        """
        from vramtop.estimator.learning.measurement import merged
        from vramtop.estimator.learning.measurement_json import measurement_to_json

        def change(runs: Runs) -> Runs:
            earlier = _measurement(runs.get(measurement.run))
            kept = measurement if earlier is None else merged(earlier, measurement)
            known: Runs = {**runs, kept.run: dict(measurement_to_json(kept))}
            return dict(sorted(known.items(), key=lambda item: item[1].get("time", 0.0), reverse=True)[:MAX_RUNS])

        return self._change(change)

    def on_card(self, names: Collection[str]) -> tuple[Measurement, ...]:
        """Return the newest measurements on one card, the newest first.

        Args:
            names: those under which NVML knows the card.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return tuple(each for each in self.list() if each.card in names)[:_MOST_ON_CARD]

    def list(self, choice: Choice | None = None) -> tuple[Measurement, ...]:
        """Return the chosen measurements, the newest first.

        Raises:
            CannotTellError: the file cannot be read.
        """
        known = filter(None, map(_measurement, self._file.read().values()))  # another version may have written others
        chosen = known if choice is None else filter(choice.has, known)
        return tuple(sorted(chosen, key=lambda each: each.time, reverse=True))

    def forget(self, choice: Choice) -> int:
        """Remove the chosen measurements for good; returns how many these were.

        Raises:
            CannotTellError: the file cannot be written.
        """
        forgotten = {each.run for each in self.list(choice)}
        if forgotten:
            self._change(lambda runs: {run: each for run, each in runs.items() if run not in forgotten})
        return len(forgotten)

    def _without_file(self) -> Runs:
        runs = _read_older(self._older)
        self._moves = bool(runs)
        return runs

    def _change(self, change: Callable[[Runs], Runs]) -> str | None:
        warning = self._file.change(change)
        for ending in ("", "-wal", "-shm", "-journal") if self._moves and self.path.exists() else ():
            with contextlib.suppress(OSError):
                self._older.with_name(self._older.name + ending).unlink()
        return warning


def _bare(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")


def _measurement(data: Any) -> Measurement | None:
    from vramtop.estimator.learning.measurement_json import measurement_from_json

    try:
        return None if data is None else measurement_from_json(data)
    except InputError:
        return None


def _read_older(file: Path) -> Runs:
    """Return the runs of the database in which earlier versions kept them; empty if there is none, or it is damaged."""
    found: Runs = {}
    if not file.is_file():
        return found
    import sqlite3

    until = MEASURED_RUNS.deadline()
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
        connection.set_progress_handler(lambda: until.left == 0.0, _STEPS_BETWEEN_LOOKS)
        statement = "SELECT data FROM measurement WHERE typeof(data) = 'text' AND length(data) < 65536 LIMIT ?"
        for (text,) in connection.execute(statement, (MAX_RUNS,)):
            with contextlib.suppress(LimitError):
                if (known := _measurement(decode_json(text))) is not None:
                    found[known.run] = decode_json(text)
    return found
