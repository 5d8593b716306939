"""Text of a table cell with its tone; a tone becomes a colour in ``widgets.table_cell``."""

from dataclasses import dataclass
from typing import Literal

from vramtop.monitor.board.board import ProcessRow

Tone = Literal["plain", "muted", "good", "over", "under"]


@dataclass(frozen=True, slots=True)
class CellText:
    """What a cell says, and how it is meant."""

    text: str
    tone: Tone = "plain"


def status_tone(row: ProcessRow) -> Tone:
    """How its status is meant."""
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
