import random
import re
from itertools import pairwise
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from vramtop.tui.tty.changed_cells import TerminalContents

_WIDTH, _HEIGHT = 24, 4
_CUTS = (0, 10, _WIDTH)
_STYLES = [Style(), Style(color="red"), Style(color="#102030", bgcolor="blue"), Style(bold=True, link="https://x.y")]
_TOKENS = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;]*)m|\x1b\](8;[^\x1b]*)\x1b\\|(\n)|(.)", re.DOTALL)


class Screen:
    """A minimal terminal emulator for the output of Textual: cursor moves, colours, links, text."""

    def __init__(self) -> None:
        self.cells = [[(" ", "", "")] * _WIDTH for _ in range(_HEIGHT)]
        self._x = self._y = 0

    def feed(self, written: str) -> None:
        pen, link = "", ""
        for row, column, codes, linked, newline, sign in _TOKENS.findall(written):
            if row:
                self._y, self._x = int(row) - 1, int(column) - 1
            elif linked:
                link = linked.rpartition(";")[2]
            elif newline:
                self._y, self._x = self._y + 1, 0
            elif sign:
                self._put(sign, (pen, link))
            else:
                pen = re.sub(r"^0;?", "", codes)

    def _put(self, sign: str, style: tuple[str, str]) -> None:
        line, x, end = self.cells[self._y], self._x, self._x + cell_len(sign)
        if x and not line[x][0]:  # half of a wide character is overwritten, and the other half is lost
            line[x - 1] = ("?", "", "")
        if end < _WIDTH and not line[end][0]:
            line[end] = ("?", "", "")
        line[x:end] = [(sign, *style), *[("", *style)] * (end - x - 1)]
        self._x = end


def strip_of(draw: random.Random, width: int) -> Strip:
    """Make a strip from few words, so that successive strips have much in common."""
    segments, left = [], width
    while left:
        word = draw.choice(["0 %", "61.5", "     ", "████", "好的", "é"])
        word = word if cell_len(word) <= left else " " * left
        segments.append(Segment(word, draw.choice(_STYLES)))
        left -= cell_len(word)
    return Strip(segments, width)


def chops(lines: list[dict[int, Strip | None]], spans: list[tuple[int, int, int]], cuts: Any = _CUTS) -> ChopsUpdate:
    return ChopsUpdate(lines, spans, [list(cuts[1:]) for _ in lines])


@pytest.mark.parametrize("seed", range(30))
def test_the_terminal_looks_as_if_everything_had_been_sent(seed: int):
    draw = random.Random(seed)  # noqa: S311 - nothing is secret here
    console = Console(force_terminal=True, color_system="truecolor")
    shown, all_sent, changes_sent = TerminalContents(), Screen(), Screen()

    def lay_out(cut: int) -> None:
        lines = [[strip_of(draw, cut), strip_of(draw, _WIDTH - cut)] for _ in range(_HEIGHT)]
        full = LayoutUpdate(lines, Region(0, 0, _WIDTH, _HEIGHT))
        all_sent.feed(full.render_segments(console))
        changes_sent.feed(shown.send(full, console))
        assert changes_sent.cells == all_sent.cells

    for step in range(40):
        if step % 8 == 0:
            lay_out(draw.choice([10, 12]))
        cuts = draw.choice([_CUTS, _CUTS, (0, 6, _WIDTH)])
        pairs = list(pairwise(cuts))
        lines = [{x: strip_of(draw, end - x) for x, end in pairs} for _ in range(_HEIGHT)]
        spans = [(y, *draw.choice(pairs)) for y in range(_HEIGHT) if draw.random() < 0.7] or [(0, 0, _WIDTH)]
        update = chops(lines, spans, cuts)
        all_sent.feed(update.render_segments(console))
        changes_sent.feed(shown.send(update, console))
        assert changes_sent.cells == all_sent.cells


def test_only_changes_are_written():
    console = Console(force_terminal=True, color_system="truecolor")
    shown = TerminalContents()
    style = Style(color="#102030")

    def line(util: str) -> ChopsUpdate:
        strip = Strip([Segment("held 55.5 ", style), Segment(f"{util} %", style), Segment(" no budget", style)])
        return chops([{0: strip}], [(0, 0, 24)], (0, 24))

    assert "held" in shown.send(line("66"), console)
    assert shown.send(line("66"), console) == ""
    assert shown.send(line("67"), console) == "\x1b[1;12H\x1b[38;2;16;32;48m7\x1b[0m"


def test_a_part_behind_another_widget_is_not_sent():
    console = Console(force_terminal=True, color_system="truecolor")
    update = chops([{0: Strip([Segment("a" * 10)], 10), 10: Strip([Segment("b" * 14)], 14)}], [(0, 0, 10)])
    assert "b" not in TerminalContents().send(update, console)


def test_everything_is_sent_again_after_invalidation():
    console = Console(force_terminal=True, color_system="truecolor")
    shown = TerminalContents()
    update = chops([{0: Strip([Segment("a" * 24)], 24)}], [(0, 0, 24)], (0, 24))
    first = shown.send(update, console)
    assert shown.send(update, console) == ""
    shown.invalidate()
    assert shown.send(update, console) == first
