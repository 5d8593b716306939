"""The text of a table's cell with its tone, which tables turn into a colour."""

from typing import Literal

import msgspec

from vramtop.monitor.board.board import ProcessRow

Tone = Literal["plain", "muted", "good", "over", "under"]


class CellText(msgspec.Struct, frozen=True):
    """The text of a cell, and its tone: no style, because a line is kept while its cells are equal, in any theme."""

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
