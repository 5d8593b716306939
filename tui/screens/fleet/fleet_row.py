"""A row of the fleet's table as plain data: what it is about, by what it is sorted and found, and its cells."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...draw import WORST_FIRST, CellText, printable, status_mark

if TYPE_CHECKING:
    from vramtop.monitor.fleet import FleetRun, HostReading

    from ...draw import Tone

Fold = Literal["folded", "unfolded"]
SortKey = Literal["STATUS", "HOST", "JOB", "USER", "FREE", "IN USE"]
REST = "REST"
"""Name of a cell that takes the place of all columns after the second."""
Cells = Mapping[str, CellText]

NO_STATUS = len(WORST_FIRST)
"""Severity of what has no status."""
GONE = WORST_FIRST.index("growing") + 0.5
"""Severity of a host that is not live: after what runs out of memory or leaks now, before everything else."""
BROKEN = GONE + 0.1
"""Severity of a GPU that cannot be read."""
_SEVERITY: dict[str, int] = {status: at for at, status in enumerate(WORST_FIRST)}
_BAD, _WARNING = ("over", "growing", "out_of_memory"), ("under",)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One row; its cells are made when it comes into sight."""

    key: Hashable
    """Key of a host, GPU or run, equal in every fleet."""
    severity: float
    """Place of its worst status; 0 is the worst."""
    host: str
    job: str = ""
    user: str = ""
    status: str = ""
    """Words by which its status is found."""
    free_bytes: int = -1
    used_bytes: int = -1
    more: str = ""
    """Further words by which it is found, such as the names of its GPUs."""
    fold: Fold | None = None
    """None: it has nothing below it."""
    make_cells: Callable[[], Cells]
    of_host: HostReading | None = None
    """The host that it opens."""
    of_run: FleetRun | None = None
    """The run that it opens."""

    def matches(self, words: list[str]) -> bool:
        """Return True if it has all of these words; ``user:ann`` looks at one of its parts only."""
        return all(self._has(word) for word in words)

    def _has(self, word: str) -> bool:
        name, colon, value = word.partition(":")
        if colon and name in ("host", "job", "user", "status"):
            return value in str(getattr(self, name)).lower()
        parts = (self.host, self.job, self.user, self.status, self.more)
        return any(word in part.lower() for part in parts)


def sorted_rows(rows: list[FleetRow], by: SortKey) -> list[FleetRow]:
    """Return rows in order; the order of equal ones is that of their hosts and jobs."""
    orders: dict[SortKey, Callable[[FleetRow], tuple[object, ...]]] = {
        "STATUS": lambda row: (row.severity,),
        "HOST": lambda _: (),
        "JOB": lambda row: (not row.job, row.job),
        "USER": lambda row: (not row.user, row.user),
        "FREE": lambda row: (-row.free_bytes,),
        "IN USE": lambda row: (-row.used_bytes,),
    }
    first = orders[by]
    return sorted(rows, key=lambda row: (*first(row), natural(row.host), row.job))


def natural(name: str) -> tuple[str, int, str]:
    """Return a sort key by which node9 comes before node10: text, its last number, and the name itself."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return name[: len(name) - digits], int(name[len(name) - digits :][:18] or 0), name


def severity(status: str | None) -> float:
    """Return the place of a status among all, the worst first; an unknown one counts as unknown."""
    if status is None:
        return NO_STATUS
    return _SEVERITY.get(status, _SEVERITY["unknown"])


def status_cell(status: str, statuses: Mapping[str, int]) -> CellText:
    """Return a status with the number of processes that have it, unless all are fine: ``▲ OVER 2/8``.

    Args:
        status: the worst one.
        statuses: number of processes by status.
    """
    mark, every = status_mark(status), sum(statuses.values())
    is_said = every > 1 and (statuses[status] < every or mark.word.isupper())
    count = f" {statuses[status]}/{every}" if is_said else ""
    return CellText(f"{mark.letter} {mark.short_word}{count}", _tone(status))


def _tone(status: str) -> Tone:
    """Return the tone of a status."""
    if status in _BAD:
        return "over"
    if status in _WARNING:
        return "under"
    return "good" if status == "on_budget" else "muted"


def plain(text: str | None, tone: Tone = "plain") -> CellText:
    """Return a cell with this text."""
    return CellText(printable(text or ""), tone)
