"""Lines of content, each of which is drawn only when it says something else."""

from collections.abc import Sequence

from textual.content import Content
from textual.events import Resize
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual


class ContentLines(ScrollView):
    """Lines that are as wide as the widget; where there is no room for all of them, they scroll."""

    DEFAULT_CSS = "ContentLines { overflow: hidden hidden; scrollbar-size-vertical: 1; text-wrap: nowrap; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[Content] = []
        self._strips: dict[int, Strip] = {}
        """Lines that have been drawn."""

    @property
    def lines(self) -> Sequence[Content]:
        """What is on the screen now, or scrolled out of it."""
        return self._lines

    @property
    def shown(self) -> Content:
        """The same as one text."""
        return Content("\n").join(self._lines)

    def show_lines(self, lines: Sequence[Content]) -> None:
        """Show these lines from now on."""
        before, self._lines = self._lines, list(lines)
        alike = min(len(before), len(self._lines))
        changed = [at for at in range(alike) if not before[at].is_same(self._lines[at])]
        changed += range(alike, max(len(before), len(self._lines)))
        for at in changed:
            self._strips.pop(at, None)
        self.virtual_size = Size(self.size.width, len(self._lines))
        if changed:
            top, width = self.scroll_offset.y, self.size.width
            self.refresh(*(Region(0, at - top, width, 1) for at in changed))

    def render_line(self, y: int) -> Strip:
        """The line, as it was drawn last where it is the same."""
        at = y + self.scroll_offset.y
        if at >= len(self._lines) or not self.size.width:
            return Strip.blank(self.size.width, self.rich_style)
        if self.text_selection is not None:  # it reckons with the whole text
            whole = Visual.to_strips(self, self.shown, self.size.width, None, self.visual_style)
            return whole[at] if at < len(whole) else Strip.blank(self.size.width, self.rich_style)
        strip = self._strips.get(at)
        if strip is None:
            (strip,) = Visual.to_strips(self, self._lines[at], self.size.width, 1, self._style_of(at), pad=True)
            self._strips[at] = strip
        return strip

    def render(self) -> Content:
        """For those who want it as a text, such as a selection with the mouse."""
        return self.shown

    def notify_style_update(self) -> None:
        """Colours may have changed."""
        super().notify_style_update()
        self._strips.clear()

    def selection_updated(self, selection: Selection | None) -> None:
        """What is selected looks different."""
        self._strips.clear()
        super().selection_updated(selection)

    def on_resize(self, _: Resize) -> None:
        """Lines of another width."""
        self._strips.clear()

    def _style_of(self, at: int) -> Style:  # noqa: ARG002 - for those that draw some lines in another style
        return self.visual_style
