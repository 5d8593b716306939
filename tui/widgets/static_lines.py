"""Static text that is repainted only when it has changed."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static


class StaticLines(Static):
    """A ``Static`` that compares before it updates: most lines stay the same for seconds."""

    DEFAULT_CSS = "StaticLines { height: auto; text-wrap: nowrap; }"

    _shown: Content | None = None

    def show(self, content: Content, *, layout: bool = False) -> None:
        """Show the content.

        Args:
            content: one line or several.
            layout: the height may have changed.
        """
        if self._shown is None or not self._shown.is_same(content):
            before, self._shown = self._shown, content
            self.update(content, layout=layout and self._height(before) != self._height(content))

    def show_if_any(self, lines: Sequence[Content]) -> None:
        """Show these lines, and take up no space if there are none."""
        self.display = bool(lines)
        self.show(Content("\n").join(lines), layout=True)

    def _height(self, content: Content | None) -> int:
        """Return the rows that the content takes: laying out a screen again costs many times more than a repaint."""
        width = self.content_size.width
        return -1 if content is None or not width else content.get_height(self.styles.get_rules(), width)

    @property
    def shown(self) -> Content:
        """The content that is shown."""
        return self._shown or Content()


class TitleLine(StaticLines):
    """The first line of a screen: what it is about."""

    DEFAULT_CSS = "TitleLine { height: 1; padding: 0 1; text-style: bold; background: $panel; }"
