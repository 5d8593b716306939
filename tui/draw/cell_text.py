"""The text of a table cell with its tone, which ``widgets.table_cell`` turns into a colour."""

from dataclasses import dataclass
from typing import Literal

from vramtop.monitor.board import ProcessRow

Tone = Literal["plain", "muted", "good", "over", "under"]


@dataclass(frozen=True, slots=True)
class CellText:
    """The text of a cell, and its tone."""

    text: str
    tone: Tone = "plain"


def status_tone(row: ProcessRow) -> Tone:
    """Return the tone of a process's status."""
    if row.comparison is None:
        return "muted"
    match row.comparison.status:
        case "over" | "growing" | "out_of_memory":
            return "over"
        case "under":
            return "under"
        case "on_budget":
            return "good"
    return "muted"
