import pytest
from rich.cells import cell_len

from vramtop.tui.tty.line_filters import to_ascii, to_harmless

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
