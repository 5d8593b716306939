"""Text of strangers without what cannot be seen, or draws over its neighbours."""

import re
import unicodedata

_MARKS = 3
"""So many in a row on one letter at most: written languages need no more, and a tower of them covers other lines."""
INVISIBLE_CHARACTERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What Unicode calls default ignorable (DerivedCoreProperties.txt) among what Python calls printable."""


def strip_invisible(text: str) -> str:
    """The text without invisible letters, selectors of variants and towers of combining marks.

    Control characters are not looked at. Terminals disagree how wide a letter with a selector of a variant is.
    """
    if text.isascii():
        return text
    kept, marks = [], 0
    for char in INVISIBLE_CHARACTERS.sub("", text):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= _MARKS:
            kept.append(char)
    return "".join(kept)


_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
)


_LONGEST = 2000
"""Characters of a command line that are kept: some programs carry whole scripts in theirs."""


_MOST_SIGNS = 20 * _LONGEST
"""Characters that are looked at, with those that are left out."""


def sanitize_line(text: str) -> str | None:
    """Text of a stranger made safe for a terminal: escape sequences and control characters out; None when empty."""
    text = strip_invisible(text[:_MOST_SIGNS])
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in _ESCAPES.sub("", text))
    text = " ".join(text.split())
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…") or None


def duration_text(seconds: float) -> str:
    """By its two largest units: ``41 s``, ``14 min``, ``2 h 05``, ``3 d 4 h``."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02}" if hours < 24 else f"{hours // 24} d {hours % 24} h"
