"""The file of a suite's results: written anew after every row, so that nothing is lost, and read to go on with it."""

import threading
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.private_files import write_private
from vramtop.estimator.common.secrets import displayed_data
from vramtop.estimator.common.untrusted_files import read_file

_MAX_BYTES = 1 << 26


class SuiteRow(Struct, kw_only=True):
    """One job or program of a suite."""

    part: str
    """Name of its part of the suite."""
    name: str
    """Its name in that part: of a program as the table has it, of a job its model and settings."""
    error: str | None = None
    """Why it gave no figures, or not all; a job out of memory has its place in `measured` too. null: it ran."""
    lacks: list[str] = []
    """Libraries that a job needs and that were not there; it is measured when they are."""
    seconds: float | None = None
    """Time that it took; null: it was not started."""
    measured: dict[str, Any] | None = None
    """A job's figures, beside the prediction of the deepest method; null: a program, or a job that was not started."""
    formula: dict[str, Any] | None = None
    """The closed form's prediction of a job; null: a program, or there is none."""
    figures: list[dict[str, Any]] = []
    """What a program printed: objects with a `name`."""


class SuiteResults(Struct, kw_only=True):
    """What a suite has measured on one machine."""

    schema: int = 1
    """Version of this format."""
    card: str | None
    """Name of the GPU; null: none was used."""
    driver: str | None
    """Version of the driver; null: no GPU was used, or unknown."""
    started: str
    """Time of the first row, in UTC (ISO 8601)."""
    machine: dict[str, str | int]
    """Processor cores, bytes of host memory and of the GPU, system and kernel."""
    versions: dict[str, str]
    """Versions of Python, the libraries and vramtop."""
    rows: list[SuiteRow] = []
    """In the order in which they were measured."""

    def row(self, part: str, name: str) -> SuiteRow | None:
        """Return a row; None: it was not measured yet."""
        return next((row for row in self.rows if (row.part, row.name) == (part, name)), None)


class ResultsFile:
    """A file of results. Rows may be added from several threads.

    Args:
        path: the file; None: results are kept in memory only.
        results: what is known already.
    """

    def __init__(self, path: Path | None, results: SuiteResults) -> None:
        self.path = path
        self.results = results
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | None, new: SuiteResults) -> "ResultsFile":
        """Go on with the results in a file, or begin it.

        Raises:
            InputError: it holds something else, or the results of another card.
        """
        if path is None or not path.exists():
            return cls(path, new)
        found = read_results(path)
        if found.card != new.card:
            raise InputError(f"{path} has the results of {found.card or 'no GPU'}; give another file with --out")
        found.driver, found.machine, found.versions = new.driver, new.machine, new.versions
        return cls(path, found)

    def add(self, row: SuiteRow) -> None:
        """Add a row in place of an earlier one, and write the file.

        Raises:
            InputError: it cannot be written.
        """
        with self._lock:
            before = self.results.row(row.part, row.name)
            self.results.rows = [*(each for each in self.results.rows if each is not before), row]
            if self.path is not None:
                self._write(self.path)

    def _write(self, path: Path) -> None:
        data = displayed_data(msgspec.to_builtins(self.results))
        assert isinstance(data, dict)
        head = {name: value for name, value in data.items() if name != "rows"}
        lines = [msgspec.json.encode(row).decode() for row in data["rows"]]  # a line each: its history can be read
        text = f'{msgspec.json.encode(head).decode()[:-1]},"rows":[\n' + ",\n".join(lines) + "\n]}\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_private(path, text.encode())
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_results(path: Path) -> SuiteResults:
    """Return the results in a file.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    try:
        return decode_json(read_file(path, _MAX_BYTES), SuiteResults)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except LimitError as error:
        raise InputError(f"{path}: not the results of a suite: {error}") from None
