"""Table of all ranks of a run; the rank under the cursor is drawn below it."""

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable

from vramtop.monitor.board import ProcessRow
from vramtop.monitor.snapshot import ProcessKey

from ...draw import WORST_FIRST, severity_rank
from ...widgets import TableCell
from ...widgets.table_cell import table_cell
from .rank_rows import RankColumn, RankPlacement, RankRow, is_right, rank_columns, rank_rows


class RankTable(DataTable[TableCell]):
    """The ranks; posts ``Selected`` when the cursor moves to another one, ``Paged`` if all are in sight already."""

    DEFAULT_CSS = """
    RankTable { height: auto; max-height: 9; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    RankTable > .datatable--cursor { background: $primary 20%; color: $text; text-style: none; }
    RankTable:focus > .datatable--cursor { background: $primary 45%; }
    RankTable > .datatable--header { background: $panel; color: $text; text-style: bold; }
    """

    class Selected(Message):
        """The cursor is on another rank."""

    class Paged(Message):
        """Page Down (``by`` is 1) or Page Up (-1) was pressed, and there are no more ranks than are in sight."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id, cursor_type="row", cell_padding=1, cursor_foreground_priority="renderable")
        self._shown: list[RankRow] = []
        self._columns: dict[RankColumn, int] = {}
        self._dark = True
        self._auto_row: str | None = None
        """Key of the row that the table itself put the cursor on."""

    @property
    def selected(self) -> ProcessRow | None:
        """The process under the cursor; None if there is none, or it holds nothing on a GPU yet."""
        at = self.cursor_row
        return self._shown[at].row if 0 <= at < len(self._shown) else None

    def show(self, rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement], *, width: int) -> None:
        """Show these processes, and the ranks that are on no GPU yet.

        Until the user moves it, the cursor is on the rank with the worst status, or the most memory among equals.
        """
        new, columns = rank_rows(rows, ranks), self._fitting_columns(rows, width)
        dark = self.app.current_theme.dark
        same = (
            columns == self._columns
            and dark == self._dark
            and [row.key for row in new] == [row.key for row in self._shown]
        )
        if same:
            self._update(new)
        else:
            self._fill(new, columns)

    def _fitting_columns(self, rows: Sequence[ProcessRow], width: int) -> dict[RankColumn, int]:
        gpu_width = max((len(row.gpu.label) for row in rows), default=0)
        return rank_columns(width - self.scrollbar_size_vertical, gpu_width=gpu_width)

    def action_page_down(self) -> None:
        """Go to the next ranks; with all of them in sight, what is below the table scrolls."""
        if self.max_scroll_y:
            super().action_page_down()
        else:
            self.post_message(self.Paged(1))

    def action_page_up(self) -> None:
        """Go to the previous ranks; with all of them in sight, what is below the table scrolls."""
        if self.max_scroll_y:
            super().action_page_up()
        else:
            self.post_message(self.Paged(-1))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Report that another rank is under the cursor."""
        event.stop()
        self.post_message(self.Selected())

    def _update(self, new: Sequence[RankRow]) -> None:
        for row, old in zip(new, self._shown, strict=True):
            for name, width in self._columns.items():
                if row.cells[name] != old.cells[name]:
                    cell = table_cell(row.cells[name], width, right=is_right(name), dark=self.app.current_theme.dark)
                    self.update_cell(row.key, name, cell)
        self._shown = list(new)
        if new and self._shown[self.cursor_row].key == self._auto_row:
            self._move_to_worst(new, worse_than=_urgency(new[self.cursor_row])[0])

    def _fill(self, new: Sequence[RankRow], columns: dict[RankColumn, int]) -> None:
        at = self._shown[self.cursor_row].key if 0 <= self.cursor_row < len(self._shown) else None
        self.clear(columns=True)
        self._columns, self._dark = columns, self.app.current_theme.dark
        for name, width in columns.items():
            self.add_column(Text(f"{name:>{width}}" if is_right(name) else name, no_wrap=True), width=width, key=name)
        dark = self.app.current_theme.dark
        for row in new:
            cells = (
                table_cell(row.cells[name], width, right=is_right(name), dark=dark) for name, width in columns.items()
            )
            self.add_row(*cells, key=row.key)
        self._shown = list(new)
        kept = next((place for place, row in enumerate(new) if row.key == at), None)
        if kept is None:
            self._move_to_worst(new)
        else:
            self.cursor_coordinate = Coordinate(kept, 0)

    def _move_to_worst(self, rows: Sequence[RankRow], *, worse_than: int | None = None) -> None:
        """Put the cursor on the row with the worst status; ``worse_than``: only if it is worse than this one."""
        first = min(range(len(rows)), key=lambda at: _urgency(rows[at]), default=None)
        if first is not None and (worse_than is None or _urgency(rows[first])[0] < worse_than):
            self.cursor_coordinate = Coordinate(first, 0)
            self._auto_row = rows[first].key


def _urgency(row: RankRow) -> tuple[int, int]:
    """Return a sort key: the worst status first, then the most memory; a rank on no GPU comes last."""
    if row.row is None:
        return len(WORST_FIRST) + 1, 0
    return severity_rank(row.row), -(row.row.process.used_bytes or 0)
