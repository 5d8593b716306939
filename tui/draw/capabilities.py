"""What a terminal can show, by the environment: colours, characters, and whether it can be drawn on at all."""

import contextlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

ColourDepth = Literal["none", "16", "256", "true"]
TEXTUAL_COLOUR_SYSTEMS: dict[ColourDepth, str] = {
    "none": "truecolor",
    "16": "standard",
    "256": "256",
    "true": "truecolor",
}
"""What Textual calls them; without colour a filter takes all of them out."""

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python sets LC_CTYPE to at its start where the locale is C, whatever the terminal understands."""
_DUMB = ("", "dumb", "unknown", "emacs")
_COLOURLESS = ("vt1", "vt2", "vt3", "vt4", "vt5", "sun")
"""How terminals without colour are called."""
_KNOWN_256 = ("alacritty", "contour", "foot", "ghostty", "kitty", "rio", "wezterm", "konsole", "iterm")
"""Terminals of more colours than their name says; over ssh COLORTERM is rarely passed on."""


def is_dumb_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """The terminal cannot move a cursor, or nobody knows which it is."""
    return environ.get("TERM", "") in _DUMB


def colour_depth(environ: Mapping[str, str] = os.environ) -> ColourDepth:
    """How many colours may be used: of NO_COLOR, TEXTUAL_COLOR_SYSTEM, COLORTERM and TERM the first that says it."""
    term = environ.get("TERM", "").lower()
    if environ.get("NO_COLOR") or is_dumb_terminal(environ) or term.startswith(_COLOURLESS):
        return "none"
    asked = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if asked != "auto":
        return next(
            (name for name, system in TEXTUAL_COLOUR_SYSTEMS.items() if name != "none" and system == asked), "true"
        )
    in_screen = "STY" in environ and "TMUX" not in environ  # it inherits COLORTERM, and cannot do it
    if not in_screen and (environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct")):
        return "true"
    return "256" if "256" in term or any(name in term for name in _KNOWN_256) else "16"


def use_colour(environ: Mapping[str, str] = os.environ, *, tty: bool) -> bool:
    """Whether text may have colours: on a terminal unless NO_COLOR or CLICOLOR=0, elsewhere where that is forced."""
    forced = environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "")
    if environ.get("NO_COLOR") or environ.get("FORCE_COLOR") in ("0", "false"):
        return False
    if forced not in ("", "0"):
        return True
    return tty and environ.get("CLICOLOR") != "0" and colour_depth(environ) != "none"


def locale_is_utf8(environ: Mapping[str, str] = os.environ) -> bool:
    """The locale's characters are UTF-8; in the C locale they are not, although Python reads and writes UTF-8 there."""
    if environ.get("PYTHONUTF8") == "1" or environ.get("PYTHONIOENCODING"):
        return True  # said on purpose: the stream's encoding decides
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environ.get(name, "")
        if name == "LC_CTYPE" and value in _COERCED and environ is os.environ:
            value = _at_start(name, value)
        if value:
            return "utf8" in value.lower().replace("-", "")
    return False


@lru_cache(maxsize=1)
def _at_start(name: str, now: str) -> str:
    """The variable as it was given to the process, where the system tells."""
    with contextlib.suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        prefix = f"{name}=".encode()
        return next(
            (entry[len(prefix) :].decode(errors="replace") for entry in entries if entry.startswith(prefix)), ""
        )
    return now
