"""Sends only the cells that changed to the terminal: a twentieth of what Textual sends over SSH.

Textual sends every line of a repainted widget with its colours: some 100 bytes for each changed figure, every
second, over every connection. Here lines are compared with those that were sent last.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from .textual_private import ChopsUpdate, CompositorUpdate, LayoutUpdate, can_be_compared, painted_pieces

_MAX_GAP_CELLS = 8
"""Unchanged cells between two changes that are sent again: moving the cursor takes as many bytes."""
_StyledChar = tuple[str, Style | None]
"""A character and its style; an empty character is the right half of a wide one."""


def changed_cells(before: Strip, after: Strip) -> Iterator[tuple[int, Sequence[_StyledChar]]]:
    """Yield the parts of a line that differ: first column, and characters. Equal segments at its ends cost nothing."""
    old, new = list(before), list(after)
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    shorter -= head
    tail = next((at for at in range(shorter) if old[-1 - at] != new[-1 - at]), shorter)
    x = sum(cell_len(segment.text) for segment in new[:head])
    old_chars, chars = _styled_chars(old[head : len(old) - tail]), _styled_chars(new[head : len(new) - tail])
    if len(old_chars) != len(chars):
        yield 0, _styled_chars(new)
        return
    for start, end in _stretches([at for at, char in enumerate(chars) if char != old_chars[at]]):
        while start and not chars[start][0]:  # a wide character is sent as a whole
            start -= 1  # noqa: PLW2901
        while end < len(chars) and not chars[end][0]:
            end += 1  # noqa: PLW2901
        yield x + start, chars[start:end]


def _stretches(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Merge ranges of columns that lie close together; each is (first, after the last)."""
    if not columns:
        return []
    breaks = [(left + 1, right) for left, right in pairwise(columns) if right - left - 1 > _MAX_GAP_CELLS]
    starts = [columns[0], *(right for _, right in breaks)]
    ends = [*(left for left, _ in breaks), columns[-1] + 1]
    return list(zip(starts, ends, strict=True))


def _styled_chars(segments: Sequence[Segment]) -> list[_StyledChar]:
    """Return one entry for each cell."""
    chars: list[_StyledChar] = []
    for text, style, _ in segments:
        if text.isascii() or _is_narrow(text):
            chars += [(char, style) for char in text]
            continue
        for char in text:
            width = cell_len(char)
            if width:
                chars += [(char, style), *[("", style)] * (width - 1)]
            elif chars:  # it combines with the character before it
                at = -1 if chars[-1][0] else -2
                chars[at] = (chars[at][0] + char, style)
    return chars


@lru_cache(maxsize=1024)
def _is_narrow(text: str) -> bool:
    """Return True if each character takes one cell."""
    return all(cell_len(char) == 1 for char in text)


class TerminalContents:
    """The lines that were sent to a terminal and that it still shows."""

    def __init__(self) -> None:
        self._lines: list[dict[int, tuple[int, Strip]]] = []
        """For each line, by first column: the column after the last one, and the content between."""

    def invalidate(self) -> None:
        """Assume that the terminal may show anything."""
        self._lines = []

    def only_changes(self, update: RenderableType | None) -> RenderableType | None:
        """Return an update of the cells that the terminal does not show yet; an unknown update is sent as it is."""
        if can_be_compared(update):
            return _ChangedCells(self, update)
        if update is not None:
            self.invalidate()
        return update

    def send(self, update: ChopsUpdate | LayoutUpdate, console: Console) -> str:
        """Return what is written to the terminal for an update, and remember what it shows then."""
        is_new = not self._lines and isinstance(update, LayoutUpdate)
        writer = _CellWriter(COLOR_SYSTEMS.get(console.color_system or "", ColorSystem.TRUECOLOR))
        for x, y, until, strip in painted_pieces(update):
            self._lines += [{} for _ in range(y + 1 - len(self._lines))]
            if is_new:
                self._lines[y][x] = (until, strip)
            else:
                self._send_piece(writer, x, y, until, strip)
        return update.render_segments(console) if is_new else writer.finish()

    def _send_piece(self, writer: "_CellWriter", x: int, y: int, until: int, strip: Strip) -> None:
        line = self._lines[y]
        shown_until, shown = line.get(x, (0, None))
        if shown_until == until and shown is not None:
            if shown is not strip:
                for column, chars in changed_cells(shown, strip):
                    writer.write(x + column, y, chars)
        else:
            writer.write(x, y, _styled_chars(list(strip)))
            for start in [start for start, (stop, _) in line.items() if start < until and stop > x]:
                del line[start]
        if strip.cell_length == until - x:
            line[x] = (until, strip)
        else:
            line.pop(x, None)


class _ChangedCells(CompositorUpdate):
    """An update that is compared when it is sent: Textual makes some updates that it never sends."""

    def __init__(self, contents: TerminalContents, update: ChopsUpdate | LayoutUpdate) -> None:
        self._contents = contents
        self._update = update

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the whole update, for anything but the terminal."""
        yield self._update

    def render_segments(self, console: Console) -> str:
        """Return what is written to the terminal."""
        return self._contents.send(self._update, console)


class _CellWriter:
    """Writes cells with as few changes of style as possible."""

    def __init__(self, colours: ColorSystem) -> None:
        self._colours = colours
        self._written: list[str] = []
        self._codes = ""
        """SGR codes of the style that the terminal has now."""

    def write(self, x: int, y: int, chars: Sequence[_StyledChar]) -> None:
        """Move the cursor and write these characters."""
        self._written.append(f"\x1b[{y + 1};{x + 1}H")
        style: Style | None = None
        link = None
        for char, wanted in chars:
            if wanted is not style:
                style = wanted
                link = style.link if style else None
                self._change_style(_sgr_codes(style, self._colours) if style else "")
            if link and style is not None and char:
                self._written.append(Strip.render_style(style, char, self._colours))
                self._codes = ""
            else:
                self._written.append(char)

    def finish(self) -> str:
        """Reset the style and return all that was written."""
        self._change_style("")
        return "".join(self._written)

    def _change_style(self, codes: str) -> None:
        if codes != self._codes:
            reset = "0;" if self._codes and codes else ""
            self._written.append(f"\x1b[{reset}{codes or '0'}m")
            self._codes = codes


@lru_cache(maxsize=1024)
def _sgr_codes(style: Style, colours: ColorSystem) -> str:
    return Strip.render_ansi(style, colours)
