"""A column of the process table as plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vramtop.monitor.board import ProcessGroup, ProcessRow
from vramtop.monitor.snapshot import ProcessFigure

from .....draw import CellText

ColumnName = Literal[
    "PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %", "RAM GiB",
    "THR", "UP", "RUNS IN", "COMMAND",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table."""

    name: ColumnName
    about: str
    """What it shows, in a few words."""
    width: int
    """Cells; the last column of text takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""
    importance: int
    """Unless the user chooses, columns are taken from the lowest number on, until the line is full."""
    is_default: bool = True
    """Shown unless the user chooses."""
    of_groups: bool = False
    """Shown only while there is a group of several rows."""
    figure: ProcessFigure | None = None
    """The figure that it shows, which is read only while it does."""
    process: Callable[[ProcessRow], CellText]
    """Returns the cell of one process on one GPU."""
    group: Callable[[ProcessGroup], CellText]
    """Returns the cell of a group of several rows."""
