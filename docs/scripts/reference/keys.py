"""The page of the keys: each with its id in the settings file, what it does, and where it works."""

import re
from itertools import groupby

from vramtop.tui.keys import FIXED_KEYS, KEYS, changeable_keys, key_name, keys_of

from .markdown import block, code, codes, page, prose, sentence, table

_INTRODUCTION = """\
`?` in the program lists the keys of the screen. Those with an id can be changed in the [settings file](settings.md),
by a key or a list of keys; a key that another action of the same screen has already is refused with a sentence."""
_EXAMPLE = """
[keys]
"processes.sort" = "S"
"app.help" = ["f1", "question_mark"]
"""
_GROUPS = {
    "app": "Every screen",
    "list": "Lists and tables",
    "job": "Screens of a job",
    "form": "Forms",
    "dashboard": "Dashboard",
    "processes": "Table of processes",
    "columns": "Choice of columns",
    "signal": "Question before a signal",
    "gpu": "GPU screen",
    "process": "Process screen",
    "alerts": "Alerts",
    "settings": "Settings",
    "preflight": "Preflight",
    "crash": "Out of memory",
    "step": "Step",
    "fit": "Fit check",
    "rehearse": "Question before a rehearsal",
    "attach": "Attach",
    "fleet": "Dashboard over several hosts",
}


def keys_page() -> str:
    """Return the page."""
    parts = []
    for group, own in groupby(KEYS, key=lambda key_id: key_id.partition(".")[0]):
        parts += [f"## {_GROUPS[group]}", table(("key", "id", "what it does"), map(_row, own))]
    fixed = [(_keys(row.keys), prose(sentence(row.does)), prose(row.where)) for row in FIXED_KEYS]
    return page(
        "Keys",
        _INTRODUCTION,
        block(_EXAMPLE, "toml"),
        *parts,
        "## Fixed keys",
        "They cannot be changed.",
        table(("key", "what it does", "works on"), fixed),
    )


def _row(key_id: str) -> tuple[str, ...]:
    shown = ", ".join(key_name(key) if key != "comma" else ", (comma)" for key in keys_of(key_id))
    name = code(key_id) if key_id in changeable_keys() else "fixed"
    return _keys(shown), name, prose(sentence(KEYS[key_id].does))


def _keys(shown: str) -> str:
    return codes(re.split(r", (?!\()", shown))  # the comma itself is shown as ", (comma)"
