"""Text of others in one line: printable, of bounded length, and without secrets, however they are disguised."""

import pytest

from vramtop.monitor.export.samples import label_text
from vramtop.monitor.fleet.prometheus.series import plain
from vramtop.monitor.host.plain_text import displayed_line

TOKEN = "hf_aB3dE6gHi9KlMn2pQrStUvWxYz012345"  # noqa: S105 - of the form of one


@pytest.mark.parametrize("inside", ["", "\x1b[0m", "\u034f", "\x1b]0;title\x07"])
@pytest.mark.parametrize("shown", [displayed_line, label_text, plain])
def test_what_stands_inside_of_a_secret_does_not_hide_it(shown: object, inside: str) -> None:
    text = f"run-{TOKEN[:9]}{inside}{TOKEN[9:]} of ann"
    line = shown(text)  # type: ignore[operator]
    assert "of ann" in line
    assert TOKEN not in line
    assert TOKEN[-12:] not in line


def test_a_line_is_cut_and_nothing_is_an_empty_line() -> None:
    assert displayed_line("a" * 10, 4) == "aaa…"
    assert displayed_line("two\nlines", 20) == "two lines"
    assert (displayed_line(None), displayed_line("\x1b[0m")) == ("", "")
