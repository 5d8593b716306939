"""The page of the keys: what each does, and where it works."""

import re
from itertools import groupby

from vramtop.tui.keys import KEYS, key_name, keys_of

from .markdown import bullets, codes, page, prose, sentence

_INTRODUCTION = (
    "`?` in the program lists the keys of the screen. Forms and menus have the keys of other programs, and dialogs "
    "show theirs."
)
_IN_ONE_LINE = {
    "list.down": "list.up",
    "list.page_down": "list.page_up",
    "list.last": "list.first",
    "list.fold": "list.unfold",
    "gpu.next": "gpu.previous",
    "attach.zoom_out": "attach.zoom_in",
}
"""Keys that are listed with another key, whose sentence says both."""
_TELL_THEIR_KEYS = ("columns", "signal", "rehearse")
"""Groups of the dialogs that show their keys."""
_GROUPS = {
    "app": "Every screen",
    "list": "Lists and tables",
    "job": "Screens of a job",
    "form": "Forms",
    "dashboard": "Dashboard",
    "processes": "Table of processes",
    "gpu": "GPU screen",
    "settings": "Settings",
    "preflight": "Preflight",
    "crash": "Out of memory",
    "step": "Step",
    "fit": "Fit check",
    "attach": "Attach",
}


_OTHERS = """\
- `Ctrl+Q` Quit.
- `Ctrl+C` Copy the selected text.
- `Tab`, `Shift+Tab` Go to the next or previous field or part of the screen.
- `1-9` Apply a suggestion; with Alt while you type in a field.
- `j k` One row down, one row up, beside the arrow keys."""


def keys_page() -> str:
    """Return the page."""
    parts = []
    for group, own in groupby(KEYS, key=lambda key_id: key_id.partition(".")[0]):
        if group in _TELL_THEIR_KEYS:
            continue
        parts += [f"## {_GROUPS[group]}", bullets(_line(key_id) for key_id in own if key_id not in _IN_ONE_LINE)]
    return page("Keys", _INTRODUCTION, *parts, "## Others", _OTHERS)


def _line(key_id: str) -> str:
    ids = [key_id, *(other for other, first in _IN_ONE_LINE.items() if first == key_id)]
    keys = [key for each in ids for key in keys_of(each)]
    shown = ", ".join(key_name(key) if key != "comma" else ", (comma)" for key in keys)
    return f"{_keys(shown)} {prose(sentence(KEYS[key_id].does))}"


def _keys(shown: str) -> str:
    return codes(re.split(r", (?!\()", shown))  # the comma itself is shown as ", (comma)"
