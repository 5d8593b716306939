"""The page of the keys: each with its id in the settings file, what it does, and where it works."""

import re
from itertools import groupby

from vramtop.tui.screens.key_places import KeyRow, all_keys

from .markdown import block, code, codes, page, prose, sentence, table

_INTRODUCTION = """\
`?` in the program lists the keys of the screen. Those with an id can be changed in the [settings file](settings.md),
by a key or a list of keys; a key that another action of the same screen has already is refused with a sentence."""
_EXAMPLE = """
[keys]
"processes.sort" = "S"
"app.help" = ["f1", "question_mark"]
"""
_MANY = 5
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
    "attach": "Attach",
    "what_if": "What-if",
    "fleet": "Dashboard over several hosts",
}


def keys_page() -> str:
    """Return the page."""
    rows = all_keys()
    chosen = [row for row in rows if row.key_id]
    parts = []
    for group, own in groupby(chosen, key=lambda row: (row.key_id or "").partition(".")[0]):
        cells = list(map(_row, own))
        places = {cell[-1] for cell in cells}
        columns = 3 if len(places) == 1 else 4
        only = f"On: {places.pop()}." if columns == 3 else ""
        head = ("key", "id", "what it does", "works on")[:columns]
        parts += [f"## {_GROUPS[group]}", only, table(head, [cell[:columns] for cell in cells])]
    fixed = [(_keys(row.default), prose(sentence(row.does)), _where(row)) for row in rows if not row.key_id]
    return page(
        "Keys",
        _INTRODUCTION,
        block(_EXAMPLE, "toml"),
        *parts,
        "## Fixed keys",
        "They cannot be changed.",
        table(("key", "what it does", "works on"), fixed),
    )


def _row(row: KeyRow) -> tuple[str, ...]:
    return _keys(row.default), code(row.key_id), prose(sentence(row.does)), _where(row)


def _where(row: KeyRow) -> str:
    return "most screens" if len(row.where) > _MANY else prose(", ".join(row.where))


def _keys(shown: str) -> str:
    return codes(re.split(r", (?!\()", shown))  # the comma itself is shown as ", (comma)"
