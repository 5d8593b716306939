"""Lines of content that are drawn and repainted only when they have changed."""

from collections.abc import Sequence
from itertools import pairwise

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static


class ContentPainter:
    """Draws content in one line; Textual also wraps and aligns, which takes several times as long."""

    def __init__(self) -> None:
        self._styles: dict[tuple[str | Style, ...], RichStyle] = {}
        """The combined style, by the styles that lie over each other, the lowest first."""

    def draw(self, line: Content, base: Style, width: int) -> Strip:
        """Return the line on a ground, exactly as wide."""
        text, spans = line.plain, line.spans
        cuts = sorted({0, len(text), *(cut for span in spans for cut in span[:2])})
        segments = []
        for start, end in pairwise(cuts):
            styles = [span.style for span in spans if span.start <= start and span.end >= end]
            segments.append(Segment(text[start:end], self._combined(base, *styles)))
        return Strip(segments).adjust_cell_length(width, self._combined(base))

    def clear(self) -> None:
        """Look all styles up again: colours may have changed."""
        self._styles.clear()

    def _combined(self, base: Style, *styles: str | Style) -> RichStyle:
        key = (base, *styles)
        known = self._styles.get(key)
        if known is None:
            style = base
            for each in styles:
                style += Style.parse(each) if isinstance(each, str) else each
            known = self._styles[key] = style.rich_style
        return known


class ContentLines(ScrollView, can_focus=False):
    """Lines as wide as the widget, which scroll if there is no room for all of them."""

    DEFAULT_CSS = "ContentLines { overflow: hidden hidden; scrollbar-size-vertical: 1; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[Content] = []
        self._strips: dict[int, Strip] = {}
        """Lines that have been drawn, by number."""
        self._width = 0
        """Width of the drawn lines."""
        self._painter = ContentPainter()

    @property
    def lines(self) -> Sequence[Content]:
        """All lines, also those that are scrolled out of view."""
        return self._lines

    @property
    def shown(self) -> Content:
        """All lines as one text."""
        return Content("\n").join(self._lines)

    def show_lines(self, lines: Sequence[Content]) -> None:
        """Show these lines."""
        before, self._lines = self._lines, list(lines)
        common = min(len(before), len(self._lines))
        changed = [at for at in range(common) if not before[at].is_same(self._lines[at])]
        changed += range(common, max(len(before), len(self._lines)))
        for at in changed:
            self._strips.pop(at, None)
        self.virtual_size = Size(self.size.width, len(self._lines))
        if changed:
            top, width = self.scroll_offset.y, self.size.width
            self.refresh(*(Region(0, at - top, width, 1) for at in changed))

    def render_line(self, y: int) -> Strip:
        """Return the line, which is drawn again only if it has changed."""
        at = y + self.scroll_offset.y
        if self._width != self.size.width:  # it may be painted before it gets its resize event
            self._strips.clear()
            self._width = self.size.width
        if at >= len(self._lines) or not self.size.width:
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strips.get(at)
        if strip is None:
            strip = self._strips[at] = self._painter.draw(self._lines[at], self.visual_style, self.size.width)
        return strip

    def notify_style_update(self) -> None:
        """Draw all lines again: colours may have changed."""
        super().notify_style_update()
        self._strips.clear()
        self._painter.clear()


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
