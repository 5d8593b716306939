"""The dialog in which the columns of the process table are chosen; the table shows each change at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.screen import ModalScreen

from ...draw.labels import MUTED
from ...keys import bind, shown_key
from ...widgets.content_lines import ContentLines
from ...widgets.static_lines import StaticLines
from .process_columns import COLUMNS, ColumnName, ProcessColumn, all_columns, default_columns, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


COLUMN_KEYS = [
    bind("columns.keep", "keep", "Keep"),
    bind("processes.columns", "keep", help_text=""),
    bind("app.back", "cancel", "Cancel"),
    bind("columns.switch", "switch", "On/off"),
    bind("columns.more_important", "shift(-1)", "More important"),
    bind("columns.less_important", "shift(1)", "Less important"),
    bind("columns.default", "default", "Default"),
    bind("list.up", "cursor(-1)"),
    bind("list.down", "cursor(1)"),
]
_NAME_WIDTH = 9


class ColumnDialog(ModalScreen[tuple[ColumnName, ...] | None]):
    """Lists all columns, the chosen ones first and by importance; returns the choice, or None if it was cancelled.

    Args:
        choice: the columns that are chosen now, the most important first.
        show: shows a choice in the table, and returns the columns for which there was room.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*COLUMN_KEYS]
    DEFAULT_CSS = """
    ColumnDialog { align: center top; }
    ColumnDialog > Vertical {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    ColumnDialog ContentLines { width: 1fr; } ColumnDialog #keys { text-wrap: wrap; }
    """

    def __init__(
        self, choice: Sequence[ColumnName], show: Callable[[Sequence[ColumnName]], Collection[ColumnName]]
    ) -> None:
        super().__init__()
        self._before = tuple(choice)
        self._order = all_columns(choice)
        self._chosen = set(choice)
        self._show = show
        self._selected = self._order[0]
        self._with_room: Collection[ColumnName] = ()
        """The columns that the table shows."""

    @property
    def choice(self) -> tuple[ColumnName, ...]:
        """The columns that are chosen now, the most important first."""
        return tuple(name for name in self._order if name in self._chosen)

    def compose(self) -> ComposeResult:
        """The columns, and the keys."""
        with Vertical() as box:
            box.border_title = "Columns of the table"
            yield ContentLines(id="columns")
            yield StaticLines(id="keys")

    def on_mount(self) -> None:
        """Draw the columns."""
        if not self.query("#keys"):  # the app is being closed
            return
        lines = self.query_one(ContentLines)
        lines.styles.height, lines.styles.max_height = len(COLUMNS), self.app.size.height - 4  # frame, and two of keys
        more, less = shown_key("columns.more_important"), shown_key("columns.less_important")
        keys = (
            f"{shown_key('columns.switch')} on/off · {more} {less} importance · "
            f"{shown_key('columns.default')} default · "
            f"{shown_key('columns.keep')} keeps · {shown_key('app.back')} cancels"
        )
        self.query_one("#keys", StaticLines).show(Content.styled(keys, MUTED))
        self._show_choice()

    def action_cursor(self, by: int) -> None:
        """Go to the next column, or to the previous one."""
        at = self._order.index(self._selected) + by
        self._selected = self._order[max(0, min(len(self._order) - 1, at))]
        self._draw()

    def action_switch(self) -> None:
        """Show the column, or do not; one column stays."""
        self._chosen ^= {self._selected}
        self._chosen = self._chosen or {self._selected}
        self._show_choice()

    def action_shift(self, by: int) -> None:
        """Make the column more or less important."""
        self._order = moved(self._order, self._selected, by)
        self._show_choice()

    def action_default(self) -> None:
        """Choose what is chosen without a setting."""
        self._order, self._chosen = all_columns(default_columns()), set(default_columns())
        self._show_choice()

    def action_keep(self) -> None:
        """Keep the choice."""
        self.dismiss(self.choice)

    def action_cancel(self) -> None:
        """Show again what was shown before."""
        self._show(self._before)
        self.dismiss(None)

    def _show_choice(self) -> None:
        """Show the choice in the table, and here."""
        self._with_room = self._show(self.choice)
        self._draw()

    def _draw(self) -> None:
        """Draw the columns with their places."""
        columns = {column.name: column for column in COLUMNS}
        lines = self.query_one(ContentLines)
        lines.show_lines([self._line(columns[name]) for name in self._order])
        lines.scroll_to_region(Region(0, self._order.index(self._selected), 1, 1), animate=False, force=True)

    def _line(self, column: ProcessColumn) -> Content:
        is_chosen, at_cursor = column.name in self._chosen, column.name == self._selected
        place = f"{self.choice.index(column.name) + 1:>2}" if is_chosen else "  "
        note = "" if not is_chosen or column.name in self._with_room or column.of_groups else "(no room now) "
        line = Content.assemble(
            f"{'▸' if at_cursor else ' '} {place} [{'x' if is_chosen else ' '}] ",
            (f"{column.name:<{_NAME_WIDTH}}", "bold" if is_chosen else ""),
            (note, "$text-warning"),
            (column.about, "" if at_cursor else MUTED),
        )
        return line.stylize("reverse") if at_cursor else line
