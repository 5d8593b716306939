"""Capabilities of terminals, from the environment alone and in a real process."""

import os
import subprocess
import sys

import pytest
from slow_cases import quick_every

from vramtop.tui.draw.terminal_capabilities import (
    colour_depth,
    is_dumb_terminal,
    locale_is_utf8,
    prepare_textual,
    use_colour,
)
from vramtop.tui.draw.text_output import TextOutput


@pytest.mark.parametrize(
    ("environ", "many"),
    [
        ({"TERM": "xterm"}, "16"),
        ({"TERM": "linux"}, "16"),
        ({"TERM": "tmux-256color"}, "256"),
        ({"TERM": "alacritty"}, "256"),
        ({"TERM": "xterm-kitty"}, "256"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "true"),
        ({"TERM": "screen-256color", "COLORTERM": "truecolor", "STY": "1.pts"}, "256"),
        ({"TERM": "xterm-direct"}, "true"),
        ({"TERM": "vt220"}, "none"),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, "none"),
        ({}, "none"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "none"),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, "256"),
        ({"TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "standard"}, "16"),
    ],
)
def test_colour_depth_of_terminals(environ, many) -> None:
    assert colour_depth(environ) == many


@pytest.mark.parametrize(
    ("environ", "tty", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "1"}, False, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "0"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "0"}, True, False),
        ({"TERM": "xterm", "CLICOLOR": "0"}, True, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_conditions_for_coloured_text(environ, tty, wanted) -> None:
    assert use_colour(environ, tty=tty) is wanted


def test_terminals_without_drawing_are_recognised() -> None:
    assert [is_dumb_terminal({"TERM": term}) for term in ("dumb", "unknown", "", "xterm", "foo")] == [True] * 3 + [
        False
    ] * 2
    assert is_dumb_terminal({})


LOCALES = [
    ({"LC_ALL": "C"}, False),
    ({"LANG": "C"}, False),
    ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, False),
    ({"LANG": "de_DE"}, False),
    ({}, False),
    ({"LANG": "C.UTF-8"}, True),
    ({"LC_ALL": "", "LANG": "en_US.utf8"}, True),
    ({"LC_CTYPE": "C.UTF-8"}, True),
    ({"LC_ALL": "C", "PYTHONUTF8": "1"}, True),
]
"""Variables, and whether they name a locale with UTF-8."""


@pytest.mark.parametrize(("environ", "utf8"), LOCALES)
def test_a_locale_without_utf8_is_recognised(environ, utf8) -> None:
    assert locale_is_utf8(environ) is utf8


@pytest.mark.parametrize(("environ", "utf8"), quick_every(8, LOCALES))
def test_a_locale_counts_even_if_python_overrides_it(environ, utf8) -> None:
    """In the C locale Python sets LC_CTYPE itself or uses UTF-8."""
    rest = {name: text for name, text in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))}
    words = ["estimate", "gpt2", "--method", "formula", "--gpu-memory", "8GiB"]
    command = [sys.executable, "-m", "vramtop.tui.cli", *words]
    done = subprocess.run(command, env=rest | environ, capture_output=True, check=True)
    assert done.stdout.isascii() is not utf8


@pytest.mark.parametrize(("many", "codes"), [("true", "38;2;"), ("256", "48;5;"), ("16", "97;44"), ("none", None)])
def test_bars_use_the_available_colours(many, codes) -> None:
    from vramtop.tui.draw.bars import Cell

    drawn = TextOutput(colour_depth=many, ascii_only=False, width=80).bar([Cell("W", "#ffffff", "#3a80f3")] * 3)
    assert (codes in drawn) if codes else drawn == "WWW"


def test_without_drawing_one_reading_is_printed_with_the_reason(on_terminal) -> None:
    there = on_terminal(environ={"TERM": "dumb"})
    assert there.end() == 3  # no driver here
    assert b"TERM" in there.written
    assert b"\x1b" not in there.written
    assert b"NVIDIA" in there.written
    assert on_terminal("--demo", environ={"TERM": "dumb"}).end() == 2


@pytest.mark.parametrize(
    "locale",
    quick_every(3, [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LC_ALL": None, "LANG": "C", "LC_CTYPE": None}], start=2),
)
def test_the_dashboard_is_ascii_in_a_locale_without_utf8(on_terminal, locale) -> None:
    without = on_terminal("--demo", environ=locale)
    without.wait_for("peak seen")
    without.wait_for("Quit")
    assert without.written.isascii()
    anyway = on_terminal("--demo", "--no-ascii", environ=locale)
    anyway.wait_for("▏")


def test_no_color_sends_no_colour_to_the_terminal(on_terminal) -> None:
    import re

    plain = on_terminal("--demo", environ={"NO_COLOR": "1", "COLORTERM": "truecolor"})
    plain.wait_for("Quit")
    plain.type("f")
    plain.wait_for("Fit check:")
    codes = {code for codes in re.findall(rb"\x1b\[([\d;]*)m", plain.written) for code in codes.decode().split(";")}
    assert codes <= {"", "0", "1", "2", "3", "4", "7", "9", "39", "49"}  # attributes and default colours
    assert "7" in codes


@pytest.mark.parametrize(
    ("environ", "colours", "system"),
    [
        ({"TERM": "xterm-256color"}, "256", "256"),
        ({"TERM": "linux"}, "16", "standard"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "true", "truecolor"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "none", "truecolor"),
    ],
)
def test_textual_is_told_colours_and_escape_and_keeps_the_users_own_delay(environ, colours, system):
    seen = dict(environ)
    assert prepare_textual(seen) == colours
    assert seen == {**environ, "TEXTUAL_COLOR_SYSTEM": system, "ESCDELAY": "25"}
    own = {**environ, "ESCDELAY": "400"}
    prepare_textual(own)
    assert own["ESCDELAY"] == "400"
