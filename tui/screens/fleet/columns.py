"""Columns of the fleet's table, and which of them fit into a width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """A column."""

    name: str
    """Key of its cells."""
    width: int
    right: bool = False
    importance: int = 0
    """The least important columns are left out first; 0: never."""
    unit: str = ""
    """Written behind the title if there is room."""

    @property
    def title(self) -> str:
        """Title with its unit."""
        return f"{self.name} {self.unit}" if self.unit and len(self.name) + len(self.unit) < self.width else self.name


HOST_COLUMNS = (
    FleetColumn("HOST", 14),
    FleetColumn("STATUS", 15),
    FleetColumn("GPUS", 4, right=True, importance=4),
    FleetColumn("FREE", 9, right=True, importance=1, unit="GiB"),
    FleetColumn("COMMIT", 8, right=True, importance=2),
    FleetColumn("UNATTR", 8, right=True, importance=5),
    FleetColumn("IN USE", 10, importance=3),
    FleetColumn("JOBS", 20),
)
RUN_COLUMNS = (
    FleetColumn("JOB", 18),
    FleetColumn("STATUS", 15),
    FleetColumn("USER", 9, importance=6),
    FleetColumn("RANKS", 7, right=True, importance=2),
    FleetColumn("HOSTS", 5, right=True, importance=5),
    FleetColumn("MAX", 7, right=True, importance=1, unit="GiB"),
    FleetColumn("DIFF", 6, right=True, importance=3),
    FleetColumn("SPREAD", 6, right=True, importance=4),
    FleetColumn("ALL", 8, right=True, importance=7),
    FleetColumn("BUDGET", 8, right=True, importance=7),
    FleetColumn("WHERE", 20),
)
_LONGEST_NAME = 32
_LEAST_REST = 20


def columns_for(columns: Sequence[FleetColumn], width: int, gap: int, *, longest: int) -> tuple[FleetColumn, ...]:
    """Return the columns for which there is room: the first as wide as its names, the last with the rest.

    Args:
        columns: all of them.
        width: of the table, without margin.
        gap: cells between two.
        longest: characters of the longest name in the first one.
    """
    first, *middle, last = columns
    name = min(max(longest, first.width // 2), _LONGEST_NAME, max(first.width, width // 4))
    kept = list(middle)
    while True:
        taken = name + sum(column.width for column in kept) + gap * (len(kept) + 1)
        rest = width - taken
        droppable = [column for column in kept if column.importance]
        if rest >= max(_LEAST_REST, width // 4) or not droppable:
            return (replace(first, width=name), *kept, replace(last, width=max(1, rest)))
        kept.remove(max(droppable, key=lambda column: column.importance))
