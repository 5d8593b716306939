"""What the terminal shows, so that only cells that say something else are sent.

Textual sends every line of a widget that was repainted, with its colours: some 100 bytes for each changed figure, every
second, over every connection. Lines are compared with those that were sent last instead.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

_GAP = 8
"""Cells between two changes that are sent again: moving the cursor takes as many bytes."""
_Cell = tuple[str, Style | None]
"""A sign and its style; an empty sign is the right half of a wide one."""


class TerminalContents:
    """What was sent to a terminal, until that may have lost it."""

    def __init__(self) -> None:
        self._lines: list[dict[int, tuple[int, Strip]]] = []
        """By line and first column: the column after the last one, and what is between."""

    def forget(self) -> None:
        """The terminal may show something else by now."""
        self._lines = []

    def only_changes(self, update: RenderableType | None) -> RenderableType | None:
        """The update without what the terminal shows already."""
        if isinstance(update, (ChopsUpdate, LayoutUpdate)):
            return _Changes(self, update)
        if update is not None:
            self.forget()
        return update

    def send(self, update: ChopsUpdate | LayoutUpdate, console: Console) -> str:
        """What is to be written for an update."""
        height = len(update.chops) if isinstance(update, ChopsUpdate) else update.region.bottom
        whole = not self._lines and isinstance(update, LayoutUpdate)
        pen = _Pen(console._color_system or ColorSystem.TRUECOLOR)
        self._lines += [{} for _ in range(height - len(self._lines))]
        for x, y, until, strip in _pieces(update):
            if whole:
                self._lines[y][x] = (until, strip)
            else:
                self._send_chop(pen, x, y, until, strip)
        return update.render_segments(console) if whole else pen.written()

    def _send_chop(self, pen: "_Pen", x: int, y: int, until: int, strip: Strip) -> None:
        line = self._lines[y]
        known, before = line.get(x, (0, None))
        if known == until and before is not None:
            if before is not strip:
                for at, cells in changed_cells(before, strip):
                    pen.write(x + at, y, cells)
        else:
            pen.write(x, y, _cells(list(strip)))
            for start in [start for start, (stop, _) in line.items() if start < until and stop > x]:
                del line[start]
        if strip.cell_length == until - x:
            line[x] = (until, strip)
        else:
            line.pop(x, None)


class _Changes(CompositorUpdate):
    """An update that is compared when it is sent: not all that are made are."""

    def __init__(self, shown: TerminalContents, update: ChopsUpdate | LayoutUpdate) -> None:
        self._shown = shown
        self._update = update

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """All of it, for anything but the terminal."""
        yield self._update

    def render_segments(self, console: Console) -> str:
        """What is to be written to the terminal."""
        return self._shown.send(self._update, console)


def changed_cells(before: Strip, after: Strip) -> Iterator[tuple[int, Sequence[_Cell]]]:
    """Stretches of a line that say something else: first column, and cells. What is alike at its ends costs nothing."""
    old, new = list(before), list(after)
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    shorter -= head
    tail = next((at for at in range(shorter) if old[-1 - at] != new[-1 - at]), shorter)
    x = sum(cell_len(segment.text) for segment in new[:head])
    was, now = _cells(old[head : len(old) - tail]), _cells(new[head : len(new) - tail])
    if len(was) != len(now):
        yield 0, _cells(new)
        return
    for run in _runs([at for at, cell in enumerate(now) if cell != was[at]]):
        start, end = run
        while start and not now[start][0]:  # a wide sign is sent as a whole
            start -= 1
        while end < len(now) and not now[end][0]:
            end += 1
        yield x + start, now[start:end]


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches (first, behind the last) over these places, near ones together."""
    start = end = -1
    for at in places:
        if start < 0:
            start = at
        elif at - end > _GAP:
            yield start, end
            start = at
        end = at + 1
    if start >= 0:
        yield start, end


def _cells(segments: Sequence[Segment]) -> list[_Cell]:
    cells: list[_Cell] = []
    for text, style, _ in segments:
        if text.isascii() or _is_narrow(text):
            cells += [(sign, style) for sign in text]
            continue
        for sign in text:
            width = cell_len(sign)
            if width:
                cells += [(sign, style), *[("", style)] * (width - 1)]
            elif cells:  # joins the sign before it
                at = -1 if cells[-1][0] else -2
                cells[at] = (cells[at][0] + sign, style)
    return cells


@lru_cache(maxsize=1024)
def _is_narrow(text: str) -> bool:
    """Each sign takes one cell."""
    return all(cell_len(sign) == 1 for sign in text)


class _Pen:
    """Writes cells, with a change of style only where there is one."""

    def __init__(self, colours: ColorSystem) -> None:
        self._colours = colours
        self._written: list[str] = []
        self._style = ""

    def write(self, x: int, y: int, cells: Sequence[_Cell]) -> None:
        self._written.append(f"\x1b[{y + 1};{x + 1}H")
        style: Style | None = None
        codes, link = "", None
        for sign, wanted in cells:
            if wanted is not style:
                style = wanted
                codes, link = ("", None) if style is None else (_codes(style, self._colours), style.link)
                self._change_to(codes)
            if link and style is not None and sign:
                self._written.append(Strip.render_style(style, sign, self._colours))
                self._style = ""
            else:
                self._written.append(sign)

    def written(self) -> str:
        self._change_to("")
        return "".join(self._written)

    def _change_to(self, codes: str) -> None:
        if codes != self._style:
            reset = "0;" if self._style and codes else ""
            self._written.append(f"\x1b[{reset}{codes or '0'}m")
            self._style = codes


@lru_cache(maxsize=1024)
def _codes(style: Style, colours: ColorSystem) -> str:
    return Strip.render_ansi(style, colours)


def _pieces(update: ChopsUpdate | LayoutUpdate) -> Iterator[tuple[int, int, int, Strip]]:
    """The pieces of lines that were painted: first column, line, the column behind the last, content."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield x, y, x + strip.cell_length, strip
                x += strip.cell_length
        return
    for y, first, end in update.spans:
        for until, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if piece is not None and x < end and until > first:  # others may show what is behind another widget
                yield x, y, until, piece
