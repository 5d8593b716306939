"""The table of all ranks of a run; the rank under the cursor is drawn below it."""

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

import msgspec
from textual.binding import BindingType
from textual.message import Message

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import NOT_ON_GPU_YET, ProcessRow
from vramtop.monitor.snapshot.snapshot import ProcessKey

from ...draw.labels import (
    WORST_FIRST,
    CellText,
    budget_label,
    difference_label,
    phase_label,
    severity_rank,
    status_tone,
)
from ...draw.palette import STATUSES
from ...keys import bind
from ...widgets.row_table import ROW_BINDINGS, Column, RowTable, fit_columns, scroll_to_row

COLUMNS = (
    Column(name="RANK", width=4, right=True, importance=5),
    Column(name="PID", width=7, right=True),
    Column(name="GPU", width=3, right=True, importance=1),
    Column(name="HOLDS", width=6, right=True, importance=2),
    Column(name="PEAK", width=6, right=True, importance=6),
    Column(name="KNOWN BY", width=10, importance=9),
    Column(name="BUDGET", width=6, right=True, importance=10),
    Column(name="DIFF", width=6, right=True, importance=4),
    Column(name="STATUS", width=15, importance=3),
    Column(name="PHASE", width=10, importance=7),
    Column(name="STEP", width=7, right=True, importance=8),
    Column(name="S/STEP", width=6, right=True, importance=11),
)
_GAP = 2


class RankPlacement(msgspec.Struct, frozen=True):
    """Rank and GPU of a process."""

    rank: int | None = None
    gpu: str = "-"
    """The GPU that the process will take according to its environment."""
    missing: str = NOT_ON_GPU_YET.short
    """Why it is on no GPU, if it is on none."""


class RankRow(msgspec.Struct, frozen=True):
    """A line of the table: the board's row does not do, because a rank that is on no GPU has none."""

    process: ProcessKey
    place: RankPlacement
    row: ProcessRow | None = None
    """None: this rank is on no GPU."""

    @property
    def cells(self) -> dict[str, CellText]:
        """Its cells by name of the column."""
        if self.row is not None:
            return _cells(self.row, self.place.rank)
        texts = dict.fromkeys((column.name for column in COLUMNS), CellText("-", "muted"))
        texts["RANK"] = CellText("-" if self.place.rank is None else str(self.place.rank))
        texts["PID"] = CellText(str(self.process[0]))
        texts["GPU"] = CellText(self.place.gpu, "muted")
        texts["STATUS"] = CellText(self.place.missing, "muted")
        return texts


def rank_columns(width: int, *, gpu_width: int = 3) -> list[Column]:
    """Return the columns that fit, in order; the least important ones are dropped first.

    Args:
        width: cells of the table.
        gpu_width: cells of the longest GPU or MIG device name.
    """
    columns = [replace(each, width=max(3, gpu_width)) if each.name == "GPU" else each for each in COLUMNS]
    fitting = {column.name for column in fit_columns(columns, width, _GAP)}
    return [column for column in columns if column.name in fitting]


def rank_rows(rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement]) -> list[RankRow]:
    """Return a row for each process on each GPU, and for each rank on no GPU; in order of ranks.

    Args:
        rows: the processes on GPUs, including ended ones.
        ranks: the placement of each process of the run, in order.
    """
    order = {key: at for at, key in enumerate(ranks)}
    by_place = sorted(rows, key=lambda row: order.get(row.process.key, len(order)))
    found = [RankRow(row.process.key, ranks.get(row.process.key, RankPlacement()), row) for row in by_place]
    present = {row.process for row in found}
    return [*found, *(RankRow(key, place) for key, place in ranks.items() if key not in present)]


def _cells(row: ProcessRow, rank: int | None) -> dict[str, CellText]:
    comparison, counters = row.comparison, row.process.counters
    tone = status_tone(row)
    status = CellText("? no budget" if row.problem else "-", "muted")
    phase = peak = known = ""
    if comparison is not None:
        mark = STATUSES[comparison.status]
        status = CellText(f"{mark.letter} {mark.word}", tone)
        phase = phase_label(comparison)
        if comparison.peak_usage:
            high = comparison.peak_usage
            seen = "seen" if high.interval_seconds is None else f"seen {high.interval_seconds:.1f} s"
            peak = format_gib(high.size_bytes)
            known = {"probe": "probe", "accounting": "driver", "seen": seen}[high.source]
    ended = row.ended_at is not None
    return {
        "RANK": CellText("-" if rank is None else str(rank)),
        "PID": CellText(str(row.process.pid)),
        "GPU": CellText(row.gpu.label),
        "HOLDS": CellText("-" if ended else format_gib(row.process.used_bytes)),
        "PEAK": CellText(peak or "-"),
        "KNOWN BY": CellText(known or "-", "muted"),
        "BUDGET": CellText(budget_label(row)),
        "DIFF": CellText("-" if comparison is None or ended else difference_label(comparison) or "-", tone),
        "STATUS": status,
        "PHASE": CellText(phase or "-"),
        "STEP": CellText("-" if counters is None or counters.steps is None else f"{counters.steps:,}"),
        "S/STEP": CellText(
            "-" if counters is None or counters.step_seconds is None else f"{counters.step_seconds:.2f}"
        ),
    }


class RankTable(RowTable[RankRow], can_focus=True):
    """The ranks; posts ``Selected`` when the user moves the cursor."""

    GAP_AROUND = True
    MARGIN = 0
    BINDINGS: ClassVar[list[BindingType]] = [*ROW_BINDINGS, bind("list.open", "open")]
    DEFAULT_CSS = """
    RankTable { height: auto; max-height: 9; min-height: 1; }
    RankTable > .table--cursor { background: $primary 20%; }
    RankTable:focus > .table--cursor { background: $primary 45%; }
    """

    class Selected(Message):
        """The cursor is on another rank."""

    @property
    def process(self) -> ProcessRow | None:
        """The process under the cursor; None if there is none, or it holds nothing on a GPU yet."""
        return self.selected.row if self.selected else None

    def show(self, rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement], *, width: int) -> None:
        """Show these processes, and the ranks that are on no GPU yet.

        Until the user moves it, the cursor is on the rank with the worst status, or the most memory among equals.
        """
        new, followed = rank_rows(rows, ranks), self.selected
        kept = next((row for row in new if followed is not None and self.key_of(row) == self.key_of(followed)), None)
        self._moved = self._moved and kept is not None
        if new and not self._moved:
            worst = min(new, key=_urgency)
            self.cursor_row = new.index(worst if kept is None or _urgency(worst)[0] < _urgency(kept)[0] else kept)
        gpu_width = max((len(row.gpu.label) for row in rows), default=0)
        self.show_rows(new, rank_columns(width - self.scrollbar_size_vertical, gpu_width=gpu_width), _GAP)
        scroll_to_row(self, self.cursor_row, page=self.page)

    def key_of(self, row: RankRow) -> Hashable:
        """Return the rank's process, and its GPU."""
        return row.process if row.row is None else row.row.key

    def cells_of(self, row: RankRow) -> list[CellText]:
        """Return the cells of the columns that are shown."""
        cells = row.cells
        return [cells[column.name] for column in self._columns]

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on another rank, and report that."""
        super().move_cursor(row=row)
        self.post_message(self.Selected())


def _urgency(row: RankRow) -> tuple[int, int]:
    """Return a sort key: the worst status first, then the most memory; a rank on no GPU comes last."""
    if row.row is None:
        return len(WORST_FIRST) + 1, 0
    return severity_rank(row.row), -(row.row.process.used_bytes or 0)
