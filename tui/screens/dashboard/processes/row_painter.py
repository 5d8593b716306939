"""Draws the lines of the process table as strips; a line that has not changed is the same object as before."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ....draw import CellText
from ....widgets import FOLD_SIGNS
from ....widgets.table_cell import table_cell
from .columns import Column, ColumnName
from .marks import Marking
from .process_rows import Fold, RowKey, TableRow

MARGIN = 2
"""Cells on the left, for the sign of a mark and that of a fold."""
_MARK_SIGNS: dict[Marking, str] = {"none": " ", "some": "~", "all": "*"}
_MARKED = Style(bold=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStyles:
    """Styles of the table's lines."""

    plain: Style
    cursor: Style
    header: Style
    dark: bool
    """The ground is dark."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A row as it was drawn last."""

    row: TableRow
    cells: tuple[CellText, ...]
    state: tuple[Fold | None, Marking, bool]
    strip: Strip


class RowPainter:
    """Draws the titles and the visible rows, and keeps what it has drawn.

    Args:
        styles: returns the styles now; asked again after ``clear``.
    """

    def __init__(self, styles: Callable[[], LineStyles]) -> None:
        self._read_styles = styles
        self._styles: LineStyles | None = None
        self.columns: Sequence[Column] = ()
        self.gap = 2
        """Cells between two columns."""
        self.width = 0
        """Width of the drawn lines."""
        self._lines: dict[RowKey, _Line] = {}
        self._header: tuple[Sequence[str], Strip] | None = None

    def clear(self) -> None:
        """Draw everything again, in new styles."""
        self._styles = self._header = None
        self._lines.clear()

    def lay_out(self, columns: Sequence[Column], gap: int) -> bool:
        """Take these columns from now on, and return True if they differ from the last ones."""
        if (columns, gap) == (self.columns, self.gap):
            return False
        self.columns, self.gap = columns, gap
        self.clear()
        return True

    @property
    def full_width(self) -> int:
        """Cells of all columns."""
        return MARGIN + sum(column.width + self.gap for column in self.columns)

    def column_at(self, x: int) -> ColumnName | None:
        """Return the column in a cell of a line; None: there is none."""
        end = MARGIN
        for column in self.columns:
            end += column.width + self.gap
            if x < end:
                return column.name
        return None

    def header(self, titles: Sequence[str]) -> Strip:
        """Return the line of titles."""
        if self._header is None or self._header[0] != titles:
            text = " " * MARGIN + "".join(self._spaced(title) for title in titles)
            self._header = titles, self._full_line([Segment(text, self._style.header)])
        return self._header[1]

    def row(self, row: TableRow, marking: Marking, *, at_cursor: bool) -> Strip:
        """Return the line of a row."""
        state = row.fold, marking, at_cursor
        line = self._lines.get(row.key)
        if line is not None and line.row is row and line.state == state:
            return line.strip
        cells = tuple(row.cell(column) for column in self.columns)
        same = line is not None and line.state == state and line.cells == cells
        strip = line.strip if line and same else self._draw(row, cells, marking, at_cursor=at_cursor)
        self._lines[row.key] = _Line(row, cells, state, strip)
        return strip

    def blank(self) -> Strip:
        """Return a line without a row."""
        return Strip.blank(self.width, self._style.plain)

    def keep(self, keys: Collection[RowKey]) -> None:
        """Forget the rows that are no longer visible."""
        self._lines = {key: line for key, line in self._lines.items() if key in keys}

    @property
    def _style(self) -> LineStyles:
        if self._styles is None:
            self._styles = self._read_styles()
        return self._styles

    def _draw(self, row: TableRow, cells: Sequence[CellText], marking: Marking, *, at_cursor: bool) -> Strip:
        styles = self._style
        ground = styles.cursor if at_cursor else styles.plain
        line: list[tuple[str, str]] = [(_MARK_SIGNS[marking] + FOLD_SIGNS[row.fold], "")]
        for column, text in zip(self.columns, cells, strict=True):
            cell = table_cell(text, column.width, right=column.right, dark=styles.dark)
            drawn = self._spaced(set_cell_size(cell.text, column.width))
            if line[-1][1] == cell.style:
                line[-1] = (line[-1][0] + drawn, cell.style)
            else:
                line.append((drawn, cell.style))
        weight = _MARKED if marking != "none" else Style()
        return self._full_line([Segment(text, ground + Style.parse(style) + weight) for text, style in line])

    def _spaced(self, text: str) -> str:
        before = self.gap // 2
        return " " * before + text + " " * (self.gap - before)

    def _full_line(self, segments: list[Segment]) -> Strip:
        strip = Strip(segments)
        return strip.adjust_cell_length(self.width, segments[-1].style)
