import pytest
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from vramtop.tui.draw.ascii import to_ascii
from vramtop.tui.draw.colours import BLACK, WHITE, contrast
from vramtop.tui.tty.line_filters import ReadableFilter, to_harmless

HOSTILE = [
    "\x1b[31mred",
    "title\x1b]0;x\x07",
    "\x9b2J",
    "a\x00b",
    "left\u202eright",
    "\u200bx",
    "soft\xadhyphen",
    "\x7f",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_removed_and_the_width_is_kept(text):
    assert to_harmless(text).isprintable()
    assert cell_len(to_harmless(text)) == cell_len(text)


def test_harmless_text_stays_as_it_is():
    assert to_harmless("żółć ▲ OVER 你好 ├──┤") == "żółć ▲ OVER 你好 ├──┤"


def test_ascii_keeps_the_width_of_wide_characters():
    assert to_ascii("你 ▲") == "?? ^"


@pytest.mark.parametrize("dark", [False, True], ids=["light theme", "dark theme"])
@pytest.mark.parametrize("text", ["#15803d", "#b91c1c", "#22c55e", "#f87171", "#111111", "#fefefe"])
def test_text_on_the_terminals_own_ground_is_readable_on_dark_and_on_light(dark, text):
    keeper = ReadableFilter()
    keeper.dark = dark
    (segment,) = keeper.apply([Segment("word", Style.parse(text))], Color(0, 0, 0, ansi=-1))
    shown = segment.style.color.get_truecolor()
    assert contrast(tuple(shown), WHITE) >= 2.9
    assert contrast(tuple(shown), BLACK) >= 2.9
