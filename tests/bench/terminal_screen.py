"""What a terminal shows after a program's output: the characters and the background of every cell.

Only what full-screen programs write is understood: text, cursor positions, colours, and erasing.
"""

import codecs
import re
from collections import Counter

_PIECE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[PX^_].*?\x1b\\"  # DCS, SOS, PM, APC strings
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[ -/]*[0-Z^-~]"
    r"|(?P<control>[\r\n\b])"
    r"|(?P<text>[^\x00-\x1f\x1b]+)",
    re.DOTALL,
)
_BLANK = (" ", "")


class TerminalScreen:
    """The cells of a terminal; wide characters count as one cell, which is enough to find words.

    Args:
        columns: width.
        lines: height.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self._columns, self._lines = columns, lines
        self._cells = [[_BLANK] * columns for _ in range(lines)]
        self._x = self._y = 0
        self._background = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """The beginning of a sequence that has not arrived in full."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the program's output."""
        written, at = self._rest + self._decoder.decode(data), 0
        while at < len(written):
            piece = _PIECE.match(written, at)
            if piece is None and written[at] == "\x1b":
                break
            if piece is not None:
                self._take(piece)
            at = piece.end() if piece else at + 1
        self._rest = written[at:]

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join("".join(char for char, _ in line).rstrip() for line in self._cells)

    def line(self, number: int) -> tuple[tuple[str, str], ...]:
        """Return the characters and backgrounds of a line, counted from 0."""
        return tuple(self._cells[number])

    @property
    def highlighted(self) -> tuple[tuple[int, str], ...]:
        """Lines of which a stretch stands on an unusual background, with that stretch: a cursor, a focused field."""
        usual = Counter(ground for line in self._cells for _, ground in line).most_common(3)
        grounds = {ground for ground, _ in usual}
        parts = (
            (at, "".join(char for char, ground in line if ground not in grounds)) for at, line in enumerate(self._cells)
        )
        return tuple((at, part) for at, part in parts if part)

    def _take(self, piece: re.Match[str]) -> None:
        if piece["text"]:
            for char in piece["text"]:
                self._put(char)
        elif piece["control"]:
            self._y += piece["control"] == "\n"
            self._x = 0 if piece["control"] == "\r" else self._x - (piece["control"] == "\b")
        elif piece["final"]:
            self._control(piece["parameters"], piece["final"])

    def _put(self, char: str) -> None:
        if 0 <= self._y < self._lines and 0 <= self._x < self._columns:
            self._cells[self._y][self._x] = (char, self._background)
        self._x += 1

    def _control(self, parameters: str, final: str) -> None:
        numbers = [int(each) if each.isdecimal() else 0 for each in parameters.split(";")]
        if final in "Hf":
            self._y, self._x = max(0, numbers[0] - 1), max(0, (numbers[1] if len(numbers) > 1 else 1) - 1)
        elif final == "m":
            self._colour(numbers)
        elif final == "J" and numbers[0] in (2, 3):
            self._cells = [[_BLANK] * self._columns for _ in range(self._lines)]

    def _colour(self, numbers: list[int]) -> None:
        at = 0
        while at < len(numbers):
            number = numbers[at]
            length = {5: 3, 2: 5}.get(numbers[at + 1] if at + 1 < len(numbers) else 0, 1) if number in (38, 48) else 1
            if number in (0, 49):
                self._background = ""
            elif number == 7 or 40 <= number <= 48 or 100 <= number <= 107:
                self._background = ";".join(map(str, numbers[at : at + length]))
            at += length
