"""Text that is drawn only when it has changed."""

from textual.content import Content
from textual.widgets import Static


class Lines(Static):
    """A ``Static`` that compares before it updates: most lines stay the same from one second to the next."""

    DEFAULT_CSS = "Lines { height: auto; text-wrap: nowrap; }"

    _shown: Content | None = None

    def show(self, content: Content, *, layout: bool = False) -> None:
        """Show the content.

        Args:
            content: one line or several.
            layout: its height may have changed.
        """
        if self._shown is None or not self._shown.is_same(content):
            self._shown = content
            self.update(content, layout=layout)

    @property
    def shown(self) -> Content:
        """What is on the screen now."""
        return self._shown or Content()
