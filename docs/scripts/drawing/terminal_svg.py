"""Draws terminal screens as SVG files that look the same everywhere: stills, and animations of key frames.

Letters are drawn with the reader's own monospace font, each word fitted to its columns; lines, blocks and signs are
shapes. No font is loaded: GitHub's pages do not let pictures load any.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 10, 20
"""Size of a cell."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
FONT_SIZE = 16.5
BASELINE = 15
MARGIN = 12
TITLE_HEIGHT = 34
_FRAME, _GROUND, _TITLE = "#1a2431", "#0c1016", "#9fb0c6"
_SHAPES = {
    "▲": "M1 15L5 5L9 15z",
    "△": "M1 15L5 5L9 15z",
    "▼": "M1 5L5 15L9 5z",
    "▽": "M1 5L5 15L9 5z",
    "▴": "M2 13L5 7L8 13z",
    "▾": "M1.5 7.5L5 13.5L8.5 7.5z",
    "▸": "M2.5 6L8.5 10.5L2.5 15z",
    "▶": "M1 5L9.5 10.5L1 16z",
    "◂": "M7.5 6L1.5 10.5L7.5 15z",
    "■": "M1.5 6.5h7v7h-7z",
    "▪": "M3 8h4v4h-4z",
    "●": "M1.5 10.5a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "•": "M3 10.5a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z",
    "·": "M3.9 10.5a1.1 1.1 0 1 0 2.2 0a1.1 1.1 0 1 0 -2.2 0z",
}
"""Filled signs in a cell."""
_STROKES = {
    "✓": "M1.5 11L4 14.5L8.5 6",
    "✗": "M2 6.5L8 14.5M8 6.5L2 14.5",
    "↗": "M2 14.5L8 7.5M3.5 7.5H8V12",
    "→": "M1 10.5H9M6 7L9 10.5L6 14",
    "←": "M9 10.5H1M4 7L1 10.5L4 14",
    "↑": "M5 16V5M2 8.5L5 5L8 8.5",
    "↓": "M5 5V16M2 12.5L5 16L8 12.5",
    "╱": "M0 20L10 0",
    "╲": "M0 0L10 20",
    "○": "M1.5 10.5a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
}
"""Drawn signs in a cell."""
_QUADRANTS = {
    "▖": "3", "▗": "4", "▘": "1", "▙": "134", "▚": "14", "▛": "123", "▜": "124", "▝": "2", "▞": "23", "▟": "234",
}  # fmt: skip
"""Quadrants that are filled: upper left, upper right, lower left, lower right."""
_HIDDEN = ' visibility="hidden"'
_JOINED = frozenset("▀▁▂▃▄▅▆▇█▔░▒▓─━═")
"""Characters that continue from cell to cell."""
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a terminal."""

    text: str = " "
    colour: str = "#dde4ee"
    ground: str = _GROUND
    bold: bool = False
    underline: bool = False


Row = tuple[Cell, ...]
Screen = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """What a recording shows for some seconds."""

    screen: Screen
    title: str
    seconds: float


def still(screen: Screen, title: str) -> str:
    """Return one screen as an SVG document."""
    rows = "".join(_placed(y, _row(row)) for y, row in enumerate(screen))
    return _document(len(screen[0]), len(screen), "", _title(title, len(screen[0])) + rows)


def animation(frames: Sequence[Frame], poster: int) -> str:
    """Return the frames as an SVG document that repeats; each row is drawn once for all frames that have it.

    Args:
        frames: in their order.
        poster: index of the frame that is shown where nothing moves.
    """
    starts = [sum(frame.seconds for frame in frames[:index]) for index in range(len(frames) + 1)]
    columns, lines = len(frames[0].screen[0]), len(frames[0].screen)
    names: dict[tuple[int, ...], str] = {}
    parts = []
    pieces: dict[tuple[int, Row | str], list[int]] = {}
    for index, frame in enumerate(frames):
        for y, row in enumerate(frame.screen):
            pieces.setdefault((y, row), []).append(index)
        pieces.setdefault((-1, frame.title), []).append(index)
    for (y, piece), shown in pieces.items():
        drawn = _title(piece, columns) if isinstance(piece, str) else _placed(y, _row(piece))
        if len(shown) == len(frames):
            parts.append(drawn)
        elif drawn:
            name = names.setdefault(tuple(shown), f"f{len(names)}")
            parts.append(f'<g class="{name}"{_HIDDEN * (poster not in shown)}>{drawn}</g>\n')
    style = [
        f".{name}{{animation:{name} {starts[-1]:g}s step-end infinite}}@keyframes {name}{{{_key_times(shown, starts)}}}"
        for shown, name in names.items()
    ]
    still_style = "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
    return _document(columns, lines, "<style>" + "\n".join([*style, still_style]) + "</style>\n", "".join(parts))


def _key_times(shown: Sequence[int], starts: Sequence[float]) -> str:
    """Return CSS key frames that are visible during these frames."""
    steps = []
    visible = None
    for index in range(len(starts) - 1):
        if (index in shown) != visible:
            visible = index in shown
            steps.append(f"{100 * starts[index] / starts[-1]:.3g}%{{visibility:{'visible' if visible else 'hidden'}}}")
    return "".join(steps)


def _document(columns: int, lines: int, style: str, content: str) -> str:
    width, height = columns * WIDTH + 2 * MARGIN, lines * HEIGHT + MARGIN + TITLE_HEIGHT
    dots = "".join(f'<circle cx="{18 + 18 * index}" cy="17" r="5.5" fill="#3a4a60"/>' for index in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{FONT}" '
        f'font-size="{FONT_SIZE}">\n{style}'
        f'<rect width="{width}" height="{height}" rx="9" fill="{_FRAME}"/>{dots}\n'
        f'<rect x="{MARGIN}" y="{TITLE_HEIGHT}" width="{columns * WIDTH}" height="{lines * HEIGHT}" '
        f'fill="{_GROUND}"/>\n'
        f"{content}</svg>\n"
    )


def _title(text: str, columns: int) -> str:
    return (
        f'<text x="{MARGIN + columns * WIDTH // 2}" y="23" fill="{_TITLE}" text-anchor="middle">{escape(text)}</text>\n'
    )


def _placed(y: int, drawn: str) -> str:
    return f'<g transform="translate({MARGIN} {TITLE_HEIGHT + y * HEIGHT})">{drawn}</g>\n' if drawn else ""


def _row(row: Row) -> str:
    """Return the cells of a row: their grounds, then their shapes, then their letters."""
    grounds, filled, drawn = _Paths(), _Paths(), _Paths()
    letters = []
    for start, cells in _runs(row, lambda cell: cell.ground):
        if cells[0].ground != _GROUND:
            grounds.add(cells[0].ground, f"M{start * WIDTH} 0h{len(cells) * WIDTH}v{HEIGHT}h-{len(cells) * WIDTH}z")
    for start, cells in _runs(row, lambda cell: cell):
        joined = cells[0].text in _JOINED
        for x in (start,) if joined else range(start, start + len(cells)):
            _shape(x * WIDTH, cells[0], filled, drawn, (len(cells) if joined else 1) * WIDTH)
    for start, cells in _runs(row, lambda cell: (cell.colour, cell.bold, cell.underline)):
        letters += _words(start, cells)
    return grounds.text(' shape-rendering="crispEdges"') + filled.text() + drawn.text(stroke=True) + "".join(letters)


class _Paths:
    """Paths of a row by colour."""

    def __init__(self) -> None:
        self._by_colour: dict[tuple[str, float, bool], list[str]] = {}

    def add(self, colour: str, path: str, weight: float = 1.0, *, crisp: bool = False) -> None:
        """Add a path; its weight is its opacity, or the width of its stroke."""
        self._by_colour.setdefault((colour, weight, crisp), []).append(path)

    def text(self, attributes: str = "", *, stroke: bool = False) -> str:
        """Return them as elements."""
        return "".join(
            f'<path d="{"".join(paths)}"{attributes}{_CRISP if crisp else ""}'
            + (
                f' fill="none" stroke="{colour}" stroke-width="{weight:g}"/>'
                if stroke
                else f' fill="{colour}"' + ("/>" if weight == 1 else f' opacity="{weight:g}"/>')
            )
            for (colour, weight, crisp), paths in self._by_colour.items()
        )


_CRISP = ' shape-rendering="crispEdges"'


def _runs(row: Row, key: object) -> Iterator[tuple[int, list[Cell]]]:
    x = 0
    for _, group in groupby(row, key=key):  # type: ignore[call-overload]
        cells = list(group)
        yield x, cells
        x += len(cells)


def _shape(x: int, cell: Cell, filled: _Paths, drawn: _Paths, wide: int) -> None:
    """Add the shape of a cell whose character is a line, a block or a sign; of several cells, if it joins."""
    text, colour = cell.text, cell.colour
    if text in _SHAPES:
        filled.add(colour, _moved(_SHAPES[text], x))
    elif text in _STROKES:
        drawn.add(colour, _moved(_STROKES[text], x), 1.7)
    elif text in _SHADES:
        filled.add(colour, f"M{x} 0h{wide}v{HEIGHT}h-{wide}z", _SHADES[text], crisp=True)
    elif "▀" <= text <= "▟":
        for left, top, width, height in _block(text, wide):
            filled.add(colour, f"M{x + left:g} {top:g}h{width:g}v{height:g}h-{width:g}z", crisp=True)
    elif "─" <= text <= "╿":
        for path, width in _lines(x, text, wide):
            drawn.add(colour, path, width, crisp="Q" not in path and "DASH" not in unicodedata.name(text))
    elif "⠀" < text <= "⣿":
        bits = ord(text) - 0x2800
        for bit, (column, line) in enumerate(((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))):
            if bits >> bit & 1:
                filled.add(colour, f"M{x + 1.5 + 4.5 * column:g} {1.5 + 5 * line:g}h2.5v2.5h-2.5z")


def _moved(path: str, x: int) -> str:
    """Return a path that is given in the coordinates of a cell, in those of the row."""
    moved, command, index = [], "", 0
    number = ""

    def flush() -> None:
        nonlocal number, index
        if number:
            horizontal = (command in "ML" and index % 2 == 0) or command == "H"
            moved.append(f"{float(number) + (x if horizontal else 0):g} ")
            number, index = "", index + 1

    for character in path:
        if character.isalpha():
            flush()
            command, index = character, 0
            moved.append(character)
        elif character == " ":
            flush()
        elif character == "-" and number:
            flush()
            number = character
        else:
            number += character
    flush()
    return "".join(moved).replace(" z", "z")


def _block(text: str, wide: int) -> Iterable[tuple[float, float, float, float]]:
    """Yield the rectangles of a block element."""
    code = ord(text) - 0x2580
    if text in _QUADRANTS:
        for quadrant in _QUADRANTS[text]:
            right, lower = (int(quadrant) - 1) % 2, (int(quadrant) - 1) // 2
            yield right * WIDTH / 2, lower * HEIGHT / 2, WIDTH / 2, HEIGHT / 2
    elif code == 0:
        yield 0, 0, wide, HEIGHT / 2
    elif code <= 8:
        yield 0, HEIGHT * (8 - code) / 8, wide, HEIGHT * code / 8
    elif code <= 15:
        yield 0, 0, WIDTH * (16 - code) / 8, HEIGHT
    elif text == "▐":
        yield WIDTH / 2, 0, WIDTH / 2, HEIGHT
    elif text == "▔":
        yield 0, 0, wide, HEIGHT / 8
    elif text == "▕":
        yield WIDTH * 7 / 8, 0, WIDTH / 8, HEIGHT


def _lines(x: int, text: str, wide: int) -> Iterable[tuple[str, float]]:
    """Yield the paths of a box drawing character, by its name, with their widths."""
    name = unicodedata.name(text)
    width = 3.0 if "HEAVY" in name else 1.5
    across, down = x + WIDTH / 2, HEIGHT / 2
    if " DASH" in name:
        yield from ((path, width) for path in _dashes(x, name))
        return
    if "DOUBLE" in name:
        for offset in (-2.5, 2.5):
            if "HORIZONTAL" in name:
                yield f"M{x} {down + offset:g}h{wide}", 1.5
            if "VERTICAL" in name:
                yield f"M{across + offset:g} 0v{HEIGHT}", 1.5
        return
    if "ARC" in name:
        end_x = x + WIDTH if "RIGHT" in name else x
        end_y = HEIGHT if "DOWN" in name else 0
        yield f"M{across:g} {end_y}Q{across:g} {down:g} {end_x} {down:g}", width
        return
    ends = {
        "HORIZONTAL": f"M{x} {down:g}h{wide}",
        "VERTICAL": f"M{across:g} 0v{HEIGHT}",
        "LEFT": f"M{across:g} {down:g}H{x}",
        "RIGHT": f"M{across:g} {down:g}H{x + WIDTH}",
        "UP": f"M{across:g} {down:g}V0",
        "DOWN": f"M{across:g} {down:g}V{HEIGHT}",
    }
    yield from ((path, width) for word, path in ends.items() if word in name)


def _dashes(x: int, name: str) -> Iterator[str]:
    """Yield the paths of a dashed line."""
    count = 2 if "DOUBLE" in name else 3 if "TRIPLE" in name else 4
    for index in range(count):
        if "HORIZONTAL" in name:
            yield f"M{x + (index + 0.2) * WIDTH / count:g} {HEIGHT // 2}h{0.6 * WIDTH / count:g}"
        else:
            yield f"M{x + WIDTH // 2} {(index + 0.2) * HEIGHT / count:g}v{0.6 * HEIGHT / count:g}"


def _is_letter(text: str) -> bool:
    return text != " " and not (text in _SHAPES or text in _STROKES or "─" <= text <= "▟" or "⠀" <= text <= "⣿")


def _words(start: int, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the words of one style as elements, each as wide as its columns."""
    style = f' fill="{cells[0].colour}"' + (' font-weight="700"' if cells[0].bold else "")
    style += ' text-decoration="underline"' if cells[0].underline else ""
    text = "".join(cell.text if _is_letter(cell.text) else " " for cell in cells)
    position = 0
    for chunk in text.split("  "):
        word = chunk.strip()
        if word:
            x = (start + position + chunk.index(word)) * WIDTH
            length = f' textLength="{len(word) * WIDTH}" lengthAdjust="spacingAndGlyphs"'
            yield f'<text x="{x}" y="{BASELINE}"{style}{length}>{escape(word)}</text>'
        position += len(chunk) + 2
