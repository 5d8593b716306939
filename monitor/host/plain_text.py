"""Text of strangers without what cannot be seen, or draws over its neighbours."""

import re
import unicodedata

_MARKS = 3
"""So many in a row on one letter at most: written languages need no more, and a tower of them covers other lines."""
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What Unicode calls default ignorable (DerivedCoreProperties.txt) among what Python calls printable."""


def visible(text: str) -> str:
    """The text without invisible letters, selectors of variants and towers of combining marks.

    Control characters are not looked at. Terminals disagree how wide a letter with a selector of a variant is.
    """
    if text.isascii():
        return text
    kept, marks = [], 0
    for char in INVISIBLE.sub("", text):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= _MARKS:
            kept.append(char)
    return "".join(kept)
