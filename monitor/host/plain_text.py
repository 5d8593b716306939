"""Text for terminals: strings from other programs made safe to print, durations, and lists of GPUs."""

import re
import unicodedata
from collections.abc import Iterable

from vramtop.estimator.common.secrets import displayed

INVISIBLE_CHARACTERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Unicode calls default ignorable (DerivedCoreProperties.txt) and Python calls printable."""
_MAX_COMBINING_MARKS = 3
"""In a row on one letter: written languages need no more, and a stack of them covers other lines."""
_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
)
_MAX_LINE_CHARACTERS = 2000
"""Longer lines are cut: some programs carry whole scripts in their command lines."""
_MAX_READ_CHARACTERS = 20 * _MAX_LINE_CHARACTERS
"""Characters that are examined, including those that are removed."""


def sanitize_line(text: str, *, cut: bool = True) -> str | None:
    """Return the text as one line without escape sequences and control characters; None if nothing is left.

    Args:
        text: the text.
        cut: cut the line if it is longer than a person reads.
    """
    text = strip_invisible(text[:_MAX_READ_CHARACTERS])
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in _ESCAPE_SEQUENCES.sub("", text))
    text = " ".join(text.split())
    return (text[: _MAX_LINE_CHARACTERS - 1] + "…" if cut and len(text) > _MAX_LINE_CHARACTERS else text) or None


def displayed_line(text: str | None, most: int | None = None) -> str:
    """Return text of others as it may be shown: one printable line without secrets; empty if nothing is left.

    Secrets are masked last: escape sequences and invisible characters could hide their form.

    Args:
        text: the text; None: there is none.
        most: characters, beyond which it is cut; None: as many as a person reads.
    """
    line = displayed(sanitize_line(text) or "") if text else ""
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def strip_invisible(text: str) -> str:
    """Return the text without invisible characters, variation selectors and stacks of combining marks.

    Control characters are kept. Variation selectors go because terminals disagree on the width of a letter with one.
    """
    if text.isascii():
        return text
    kept, marks = [], 0
    for char in INVISIBLE_CHARACTERS.sub("", text):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= _MAX_COMBINING_MARKS:
            kept.append(char)
    return "".join(kept)


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: ``41 s``, ``14 min``, ``2 h 05``, ``3 d 4 h``."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02}" if hours < 24 else f"{hours // 24} d {hours % 24} h"


_MIN_RUN = 3
"""Shorter runs of consecutive indices are written out: ``0, 1``."""


def gpu_list(labels: Iterable[int | str | range], *, most: int | None = None) -> str:
    """Return GPUs and MIG devices in their order: ``0-63``, ``0, 2, 4-7``, ``0:3``.

    Args:
        labels: indices, ranges of indices, and labels of MIG devices.
        most: of more parts than this, only the first are named.
    """
    parts: list[range | str] = []
    for label in labels:
        if isinstance(label, str) and not label.isdecimal():
            parts.append(label)
            continue
        run = label if isinstance(label, range) else range(int(label), int(label) + 1)
        before = parts[-1] if parts else ""
        if isinstance(before, range) and before.stop == run.start:
            parts[-1] = range(before.start, run.stop)
        else:
            parts.append(run)
    words = ", ".join(part if isinstance(part, str) else _range_text(part) for part in parts[:most])
    return words if most is None or len(parts) <= most else f"{words} …"


def _range_text(run: range) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) >= _MIN_RUN else ", ".join(map(str, run))
