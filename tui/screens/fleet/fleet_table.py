"""Table of hosts or runs: of thousands of rows it makes the cells of those in sight, and draws those that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from ...draw import CellText
from ...widgets import FOLD_SIGNS, RowTable, column_gap
from ...widgets.table_cell import table_cell
from .columns import HOST_COLUMNS, RUN_COLUMNS, FleetColumn, columns_for
from .fleet_row import REST, FleetRow, SortKey, sorted_rows
from .host_rows import HostRows, gpu_rows
from .keys import FLEET_TABLE_KEYS
from .run_rows import run_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from textual.binding import BindingType

    from vramtop.monitor.fleet import Fleet

FleetView = Literal["hosts", "runs"]
VIEWS: tuple[FleetView, ...] = ("hosts", "runs")
SORT_KEYS: dict[FleetView, tuple[SortKey, ...]] = {
    "hosts": ("STATUS", "HOST", "JOB", "USER", "FREE", "IN USE"),
    "runs": ("STATUS", "HOST", "JOB", "USER", "IN USE"),
}
_TITLE_OF_KEY: dict[FleetView, dict[SortKey, str]] = {
    "hosts": {"JOB": "JOBS", "USER": "JOBS"},
    "runs": {"HOST": "WHERE", "IN USE": "ALL"},
}
_MARGIN = 2
"""Cells on the left, for a blank and the sign of a fold."""
_EMPTY = CellText("")


class FleetTable(RowTable[FleetRow], can_focus=True):
    """The table; its cursor follows its row once the user has moved it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"fleet--cursor", "fleet--header"}
    DEFAULT_CSS = """
    FleetTable {
        height: 1fr; min-height: 3; background: $background; color: $foreground;
        overflow-x: hidden; scrollbar-size-vertical: 1;
    }
    FleetTable > .fleet--cursor { background: $primary 15%; color: $text; }
    FleetTable:focus > .fleet--cursor { background: $primary 35%; }
    FleetTable:nocolor > .fleet--cursor { text-style: reverse; }
    FleetTable > .fleet--header { background: $panel; color: $text; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = FLEET_TABLE_KEYS

    class Opened(Message):
        """The user opens a row."""

        def __init__(self, row: FleetRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.view: FleetView = "hosts"
        self.sort_key: SortKey = "STATUS"
        self.filter_words = ""
        self.drawn_lines = 0
        """Lines that were drawn so far; the others were shown again as they were."""
        self._fleet: Fleet | None = None
        self._unfolded: set[str] = set()
        self._host_rows = HostRows()
        self._columns: tuple[FleetColumn, ...] = ()
        self._gap = 2
        self._strips: dict[Hashable, tuple[object, Strip]] = {}
        """By row: what was drawn, and its line."""

    def show_fleet(self, fleet: Fleet) -> None:
        """Show this fleet."""
        self._fleet = fleet
        self._refresh_rows()

    def show_view(self, view: FleetView) -> None:
        """Show hosts or runs."""
        self.view, self.cursor_row, self._moved = view, 0, False
        if self.sort_key not in SORT_KEYS[view]:
            self.sort_key = "STATUS"
        self._refresh_rows()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the GPUs of hosts where rows are hosts."""
        del parameters
        return action != "unfold" or self.view == "hosts"

    def sort_by_next(self) -> None:
        """Sort by the next column."""
        keys = SORT_KEYS[self.view]
        self.sort_key = keys[(keys.index(self.sort_key) + 1) % len(keys)]
        self._refresh_rows()

    def filter_by(self, words: str) -> None:
        """Show only rows with these words; an empty string shows all."""
        self.filter_words = words
        self._refresh_rows()

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if row := self.selected:
            self.post_message(self.Opened(row))

    def action_unfold(self) -> None:
        """Show the GPUs of the host under the cursor."""
        if (row := self.selected) and row.fold == "folded":
            self._unfolded.add(row.host)
            self._moved = True
            self._refresh_rows()

    def action_fold(self) -> None:
        """Hide the GPUs of the host under the cursor, or of the GPU under it."""
        if (row := self.selected) and row.host in self._unfolded and self.view == "hosts":
            self._unfolded.discard(row.host)
            above = next((at for at, each in enumerate(self._rows) if each.key == ("host", row.host)), self.cursor_row)
            self.cursor_row = above
            self._refresh_rows()
            self.move_cursor(row=self.cursor_row)

    def _refresh_rows(self) -> None:
        if self._fleet is None:
            return
        followed = self.selected
        rows = self._host_rows.rows(self._fleet, self._unfolded) if self.view == "hosts" else run_rows(self._fleet)
        if words := self.filter_words.lower().split():
            rows = [row for row in rows if row.matches(words)]
        self._rows = self._with_gpus(sorted_rows(rows, self.sort_key))
        if followed is not None and self._moved:
            places = (at for at, row in enumerate(self._rows) if row.key == followed.key)
            self.cursor_row = next(places, self.cursor_row)
        self.cursor_row = max(0, min(self.cursor_row, len(self._rows) - 1))
        self._lay_out()
        self.virtual_size = Size(self.size.width, len(self._rows) + self.HEADER_LINES)
        self._repaint()

    def _with_gpus(self, rows: list[FleetRow]) -> list[FleetRow]:
        if not self._unfolded or self.view != "hosts":
            return rows
        every: list[FleetRow] = []
        for row in rows:
            every.append(row)
            if row.fold == "unfolded" and row.of_host is not None:
                every += gpu_rows(row.of_host)
        return every

    def _lay_out(self) -> None:
        width = self.size.width
        gap = column_gap(width)
        names = (row.host if self.view == "hosts" else row.job for row in self._rows)
        longest = max(map(len, names), default=0)
        wanted = HOST_COLUMNS if self.view == "hosts" else RUN_COLUMNS
        room = max(1, width - _MARGIN - self.scrollbar_size_vertical)
        columns = columns_for(wanted, room, gap, longest=longest)
        if (columns, gap) != (self._columns, self._gap):
            self._columns, self._gap = columns, gap
            self._forget_drawn()

    def _keep_drawn(self, visible: Sequence[FleetRow]) -> None:
        keys = {row.key for row in visible}
        self._strips = {key: drawn for key, drawn in self._strips.items() if key in keys or key in ("", None)}

    def _fit_size(self) -> None:
        self._refresh_rows()

    def _sort_at(self, x: int) -> None:
        del x
        self.sort_by_next()

    def _strip_at(self, y: int) -> Strip:
        at = y - self.HEADER_LINES + self.scroll_offset.y
        if y < self.HEADER_LINES:
            return self._kept("", (self._titles(), self.size.width), self._header_strip)
        if at >= len(self._rows):
            return self._kept(None, self.size.width, lambda: Strip.blank(self.size.width, self.rich_style))
        row, is_cursor = self._rows[at], at == self.cursor_row
        cells = row.make_cells()
        columns = self._columns[:2] if REST in cells else self._columns
        rest = (cells[REST],) if REST in cells else ()
        shown = (*(cells.get(column.name, _EMPTY) for column in columns), *rest)
        state = (shown, row.fold, is_cursor, self.size.width)
        return self._kept(row.key, state, lambda: self._row_strip(row, shown, is_cursor=is_cursor))

    def _kept(self, key: Hashable, state: object, draw: Callable[[], Strip]) -> Strip:
        """Return the line that was drawn for this state, or draw it."""
        known = self._strips.get(key)
        if known is None or known[0] != state:
            known = self._strips[key] = (state, draw())
            self.drawn_lines += 1
        return known[1]

    def _titles(self) -> tuple[str, ...]:
        by = _TITLE_OF_KEY[self.view].get(self.sort_key, self.sort_key)
        return tuple(f"{each.name}↓" if each.name == by else each.title for each in self._columns)

    def _header_strip(self) -> Strip:
        titles = zip(self._titles(), self._columns, strict=True)
        text = "".join(self._spaced(f"{title:>{each.width}}" if each.right else title, each) for title, each in titles)
        style = self.get_component_rich_style("fleet--header")
        return Strip([Segment(" " * _MARGIN + text, style)]).adjust_cell_length(self.size.width, style)

    def _row_strip(self, row: FleetRow, cells: Sequence[CellText], *, is_cursor: bool) -> Strip:
        ground = self.get_component_rich_style("fleet--cursor") if is_cursor else self.rich_style
        dark = self.app.current_theme.dark
        segments = [Segment(f" {FOLD_SIGNS[row.fold]}", ground)]
        columns = self._columns
        if len(cells) < len(columns):  # the last cell has all the room that is left
            taken = _MARGIN + sum(column.width + self._gap for column in columns[:2])
            columns = (*columns[:2], FleetColumn(REST, max(1, self.size.width - taken - self._gap)))
        for cell, column in zip(cells, columns, strict=True):
            drawn = table_cell(cell, column.width, right=column.right, dark=dark)
            segments.append(Segment(self._spaced(drawn.text, column), ground + Style.parse(drawn.style)))
        return Strip(segments).adjust_cell_length(self.size.width, ground)

    def _spaced(self, text: str, column: FleetColumn) -> str:
        return set_cell_size(text, column.width) + " " * self._gap

    def _forget_drawn(self) -> None:
        super()._forget_drawn()
        self._strips.clear()
