"""The check of the user's colours as part of the settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.monitor.storage.settings import COLOURS

from ...draw import DEFAULT_COLOURS, SAME_AS
from .checked_keys import with_checked_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vramtop.monitor.storage.settings import SettingsInForce

GROUNDS = ("dark", "light")
"""Themes by their ground, as the beginning of a name: ``light.good``."""
_HEX = re.compile(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")


@dataclass(frozen=True, slots=True)
class CheckedColours:
    """What can be put in force of the colours that the user chose."""

    chosen: dict[str, str]
    """Hexadecimal RGB colours by name, which may begin with a theme or its ground: ``light.good``."""
    problems: dict[str, str]
    """A sentence by name, for what is left out."""


def with_checked_colours(settings: SettingsInForce, themes: Collection[str]) -> SettingsInForce:
    """Return the settings with those colours that can be put in force, and a problem for each other one."""
    found = check_colours(settings.mapping(COLOURS), themes)
    return with_checked_table(settings, COLOURS, found.chosen, found.problems, instead="it is left out")


def check_colours(wanted: Mapping[str, object], themes: Collection[str]) -> CheckedColours:
    """Check the colours that the user chose.

    Args:
        wanted: colours by name, as the settings file has them.
        themes: names of themes.
    """
    chosen: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name, value in wanted.items():
        theme, _, colour = name.rpartition(".")
        if colour not in DEFAULT_COLOURS and colour not in SAME_AS:
            problems[name] = f"colours.{name}: nothing has this colour{_hint(colour, [*DEFAULT_COLOURS, *SAME_AS])}"
        elif theme and theme not in GROUNDS and theme not in themes:
            near = _hint(theme, [*GROUNDS, *themes])
            problems[name] = f"colours.{name}: {theme} is no theme; write dark, light or a theme before the dot{near}"
        elif not isinstance(value, str) or (rgb := parse_colour(value)) is None:
            problems[name] = f"colours.{name}: {value!r} is not a colour; write it as #e5534b, or a name such as orange"
        else:
            chosen[name] = rgb
    return CheckedColours(chosen, problems)


def parse_colour(text: str) -> str | None:
    """Return a colour as ``#rrggbb``; None: it is none. Names are those of CSS."""
    text = text.strip()
    if _HEX.fullmatch(text):
        digits = text[1:].lower()
        return f"#{digits}" if len(digits) == 6 else "#" + "".join(digit * 2 for digit in digits)
    if not text.isalpha():
        return None
    from textual.color import Color, ColorParseError  # not at start-up

    try:
        colour = Color.parse(text.lower())
    except ColorParseError:
        return None
    return None if colour.ansi is not None or colour.a < 1 else colour.hex6.lower()


def _hint(word: str, known: Collection[str]) -> str:
    import difflib  # not at start-up

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; the nearest is {near[0]}" if near else ""
