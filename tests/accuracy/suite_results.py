"""The file of a suite's results: written anew after every row, so that nothing is lost, and read to go on with it."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from vramtop.estimator.common.errors import InputError


class SuiteRow(Struct, kw_only=True):
    """One job or program of a suite."""

    part: str
    """Name of its part of the suite."""
    name: str
    """Its name in that part: of a program as the table has it, of a job its model and settings."""
    error: str | None = None
    """Why it gave no figures, or not all; a job out of memory has its place in `measured` too. null: it ran."""
    seconds: float | None = None
    """Time that it took."""
    measured: dict[str, Any] | None = None
    """What ``vramtop measure --json`` printed about a job."""
    formula: dict[str, Any] | None = None
    """The peak of the closed form's budget of a job; null: a program, or there is none."""
    figures: list[dict[str, Any]] = []
    """What a program printed: objects with a `name`."""

    @property
    def is_done(self) -> bool:
        """It ran; memory that runs out is a result too."""
        return self.error is None or (self.measured is not None and self.measured["measured"] is not None)


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
    versions: dict[str, str]
    """Versions of Python, the libraries and vramtop."""
    rows: list[SuiteRow] = []
    """In the order in which they were measured."""

    def row(self, part: str, name: str) -> SuiteRow | None:
        """Return a row; None: it was not measured yet."""
        return next((row for row in self.rows if (row.part, row.name) == (part, name)), None)


def read_results(path: Path) -> SuiteResults:
    """Return the results in a file.

    Raises:
        InputError: it holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=SuiteResults)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: not the results of a suite: {error}") from None


def write_results(path: Path, results: SuiteResults) -> None:
    """Write the results, a row a line: its history can be read."""
    head = msgspec.json.encode(msgspec.structs.replace(results, rows=[])).decode()
    lines = ",\n".join(msgspec.json.encode(row).decode() for row in results.rows)
    new = path.with_suffix(".new")
    new.write_text(f"{head.removesuffix('[]}')}[\n{lines}\n]}}\n", encoding="utf-8")
    new.replace(path)
