"""The abilities of the terminal according to the environment: colours, characters, cursor movement."""

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

ColourDepth = Literal["none", "16", "256", "true"]
_TEXTUAL_COLOUR_SYSTEMS: dict[ColourDepth, str] = {
    "none": "truecolor",
    "16": "standard",
    "256": "256",
    "true": "truecolor",
}
"""Textual's names of the colour depths; without colour a filter removes all colours."""
_DUMB_TERMS = ("", "dumb", "unknown", "emacs")
_COLOURLESS_TERM_PREFIXES = ("vt1", "vt2", "vt3", "vt4", "vt5", "sun")
_TERMS_WITH_256_COLOURS = ("alacritty", "contour", "foot", "ghostty", "kitty", "rio", "wezterm", "konsole", "iterm")
"""Terminals whose TERM does not state their 256 colours; ssh rarely passes COLORTERM on."""


def is_dumb_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the terminal cannot move the cursor, or its type is unknown."""
    return environ.get("TERM", "") in _DUMB_TERMS


def colour_depth(environ: Mapping[str, str] = os.environ) -> ColourDepth:
    """Return the number of colours by NO_COLOR, TEXTUAL_COLOR_SYSTEM, COLORTERM and TERM, in this order."""
    term = environ.get("TERM", "").lower()
    if environ.get("NO_COLOR") or is_dumb_terminal(environ) or term.startswith(_COLOURLESS_TERM_PREFIXES):
        return "none"
    wanted = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    if wanted != "auto":
        return next(
            (name for name, system in _TEXTUAL_COLOUR_SYSTEMS.items() if name != "none" and system == wanted), "true"
        )
    in_screen = "STY" in environ and "TMUX" not in environ  # screen inherits COLORTERM, but lacks true colour
    if not in_screen and (environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct")):
        return "true"
    return "256" if "256" in term or any(name in term for name in _TERMS_WITH_256_COLOURS) else "16"


_ESCAPE_MILLISECONDS = "25"
"""Time after which an Escape is a key and not the start of a sequence; a terminal sends a sequence at once."""


def prepare_textual(environ: MutableMapping[str, str] = os.environ) -> ColourDepth:
    """Set the variables that Textual reads when it is imported: colours, and the time after an Escape.

    Returns:
        The number of colours.
    """
    depth = colour_depth(environ)
    environ["TEXTUAL_COLOR_SYSTEM"] = _TEXTUAL_COLOUR_SYSTEMS[depth]
    environ.setdefault("ESCDELAY", _ESCAPE_MILLISECONDS)
    return depth


def use_colour(environ: Mapping[str, str] = os.environ, *, tty: bool) -> bool:
    """Return True if text may be coloured: on a terminal unless NO_COLOR or CLICOLOR=0, elsewhere if it is forced."""
    forced = environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "")
    if environ.get("NO_COLOR") or environ.get("FORCE_COLOR") in ("0", "false"):
        return False
    if forced not in ("", "0"):
        return True
    return tty and environ.get("CLICOLOR") != "0" and colour_depth(environ) != "none"


_COERCED_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values that Python itself gives LC_CTYPE at its start if the locale is C (PEP 538)."""


def locale_is_utf8(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the locale is UTF-8; the C locale is not, although Python reads and writes UTF-8 there."""
    if environ.get("PYTHONUTF8") == "1" or environ.get("PYTHONIOENCODING"):
        return True  # set on purpose: the encoding of the stream decides
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environ.get(name, "")
        if name == "LC_CTYPE" and value in _COERCED_LOCALES and environ is os.environ:
            value = _initial_value(name, value)
        if value:
            return "utf8" in value.lower().replace("-", "")
    return False


@lru_cache(maxsize=1)
def _initial_value(name: str, now: str) -> str:
    """Return the variable as the process was started with it; the present value if that cannot be read."""
    with contextlib.suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        prefix = f"{name}=".encode()
        return next(
            (entry[len(prefix) :].decode(errors="replace") for entry in entries if entry.startswith(prefix)), ""
        )
    return now
