"""The list of settings with a cursor, which passes over the headings of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from ...widgets import ContentLines, scroll_to_row
from .keys import SETTING_LIST_KEYS
from .setting_rows import list_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType
    from textual.events import Click
    from textual.style import Style

    from .setting_rows import SettingRow


class SettingList(ContentLines, can_focus=True):
    """The settings by group."""

    BINDINGS: ClassVar[list[BindingType]] = SETTING_LIST_KEYS
    COMPONENT_CLASSES: ClassVar[set[str]] = {"setting-list--cursor"}
    DEFAULT_CSS = """
    SettingList { height: 1fr; min-height: 3; overflow-y: auto; }
    SettingList > .setting-list--cursor { background: $primary 15%; color: $text; }
    SettingList:focus > .setting-list--cursor { background: $primary 35%; }
    SettingList:nocolor > .setting-list--cursor { text-style: reverse; }
    """

    class Moved(Message):
        """The cursor is on another setting."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._rows: list[SettingRow | None] = []
        """The setting of each line; None: a heading."""
        self._cursor = 0

    @property
    def selected(self) -> SettingRow | None:
        """The setting under the cursor; None: there is none."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def rows(self) -> list[SettingRow]:
        """All settings that are listed."""
        return [row for row in self._rows if row is not None]

    def show_rows(self, rows: Sequence[SettingRow]) -> None:
        """Show these settings; the cursor stays on its own."""
        name = self.selected.name if self.selected else None
        listed = list(list_lines(rows, self.size.width))
        self._rows = [row for row, _ in listed]
        self.show_lines([line for _, line in listed])
        self.notify_style_update()
        followed = next((at for at, row in enumerate(self._rows) if row and row.name == name), None)
        self._put_cursor(followed if followed is not None else self._from(0, 1), is_new=True)

    def action_move(self, by: int) -> None:
        """Move the cursor by settings, over headings."""
        at = self._cursor
        for _ in range(abs(by)):
            at = self._from(at + (1 if by > 0 else -1), 1 if by > 0 else -1, otherwise=at)
        self._put_cursor(at)

    def action_move_page(self, by: int) -> None:
        """Move the cursor by pages."""
        wanted = max(0, min(len(self._rows) - 1, self._cursor + by * max(1, self.size.height - 1)))
        self._put_cursor(self._from(wanted, 1 if by > 0 else -1, otherwise=self._from(wanted, -1 if by > 0 else 1)))

    def action_move_to(self, at: int) -> None:
        """Move the cursor to the first setting, or to the last (-1)."""
        self._put_cursor(self._from(0, 1) if at >= 0 else self._from(len(self._rows) - 1, -1))

    def on_click(self, event: Click) -> None:
        """Move the cursor to a clicked setting."""
        event.stop()
        at = event.y + self.scroll_offset.y
        if at < len(self._rows) and self._rows[at] is not None:
            self._put_cursor(at)

    def show_cursor(self) -> None:
        """Scroll the cursor into sight: the list has become lower."""
        scroll_to_row(self, self._cursor, page=self.size.height)

    def _from(self, at: int, step: int, *, otherwise: int = 0) -> int:
        """Return the first line with a setting from this one on."""
        while 0 <= at < len(self._rows):
            if self._rows[at] is not None:
                return at
            at += step
        return otherwise

    def _put_cursor(self, at: int, *, is_new: bool = False) -> None:
        if at != self._cursor or is_new:
            self._strips.clear()
            self._cursor = at
            scroll_to_row(self, max(0, at - 1) if at <= 1 else at, page=self.size.height)
            self.refresh()
            self.post_message(self.Moved())

    def _style_of(self, at: int) -> Style:
        return self.get_visual_style("setting-list--cursor") if at == self._cursor else self.visual_style
