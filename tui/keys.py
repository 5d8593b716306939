"""The keys: what each does by default, and what it is called on screens.

Ids are part of the settings file: they stay. ``GROUP.ACTION``: a group is a screen, a dialog, or what several share.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from textual.binding import Binding, BindingType
from textual.keys import REPLACED_KEYS, key_to_character

_SHOWN = {
    "escape": "Esc",
    "space": "Space",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "delete": "Del",
    "insert": "Ins",
}
_FUNCTION_KEY = re.compile(r"f([1-9]|1[0-9]|2[0-4])")


@lru_cache(maxsize=512)
def character_of(key: str) -> str | None:
    """Return the character that a key types; None: it types none."""
    if key == "space":
        return " "
    character = key_to_character(REPLACED_KEYS.get(key, key))
    return character if character and character.isprintable() else None


@lru_cache(maxsize=512)
def key_name(key: str) -> str:
    """Return the name of a key as screens show it: ``Ctrl+K``, ``F5``, ``?``, ``PgUp``."""
    *modifiers, base = key.split("+")
    shown = _SHOWN.get(base) or character_of(base)
    if shown is None:
        shown = base.upper() if _FUNCTION_KEY.fullmatch(base) else base.replace("_", " ").capitalize()
    if "ctrl" in modifiers and len(shown) == 1:
        shown = shown.upper()
    return "+".join([*(modifier.capitalize() for modifier in modifiers), shown])


class Key(msgspec.Struct, frozen=True):
    """What a screen binds to keys."""

    keys: str
    """Textual's names of keys, separated by commas; the first is the one that screens show."""
    does: str
    """What it does; also its line in the help."""
    in_help: bool = True
    """The help has a line for it; False: everyone knows it, or the line of another one says it."""


SHARED_KEYS = {
    "app.help": Key("question_mark,f1,h", "this help; a function key works while you type in a field, too"),
    "app.pause": Key("Z,space", "pause or resume readings"),
    "app.palette": Key("ctrl+p", "all commands and themes"),
    "app.back": Key(
        "escape",
        "close this screen or dialog; on a dashboard: remove the filter",
        in_help=False,
    ),
    "app.repaint": Key("ctrl+l", "redraw the screen"),
    "app.suspend": Key("ctrl+z", "suspend vramtop; fg in the shell resumes it"),
    "app.quit": Key("q", "quit; Ctrl+Q does so everywhere"),
    "list.up": Key("up", "one row up or down", in_help=False),
    "list.down": Key("down", "one row down", in_help=False),
    "list.page_up": Key("pageup", "one page up or down", in_help=False),
    "list.page_down": Key("pagedown", "one page down", in_help=False),
    "list.first": Key("home,ctrl+home", "to the first or last row", in_help=False),
    "list.last": Key("end,ctrl+end", "to the last row", in_help=False),
    "list.open": Key("enter", "open the row under the cursor"),
    "list.unfold": Key("right", "unfold the run, program or host under the cursor, or fold it"),
    "list.fold": Key("left", "fold the run, program or host under the cursor", in_help=False),
    "list.filter": Key("slash", "show only rows or lines with these words"),
    "job.step": Key("f5,t", "the training step: memory over one step, by component"),
    "form.other_pane": Key("f6", "the other half: switch between the settings and the rest of the screen"),
}

DASHBOARD_KEYS = {
    "dashboard.fit_check": Key("f", ("fit check: whether a job fits; reopens a pending job")),
    "dashboard.attach": Key("a", ("attach: compare a running job with its budget")),
    "dashboard.step": Key("t", "the job's training step: memory by component, largest tensors"),
    "dashboard.preflight": Key("p", "preflight: check what a pending job needs to start"),
    "dashboard.gpu": Key("g", "the GPU under the cursor: bandwidth, clocks, throttling, PCIe, ECC"),
    "dashboard.crash": Key("e", "explain out of memory: the end of the process under the cursor"),
    "dashboard.record": Key("r", "record to a file: start or stop"),
    "dashboard.dismiss": Key("x", "dismiss the ended run: the one under the cursor; or unpin a pending job"),
    "processes.view": Key("v", "switch the view: runs, all processes, process tree; remembered"),
    "processes.sort": Key("s,o,f6", "sort by the next column; ↓ marks it"),
    "processes.signal": Key(
        "k,K,f9",
        "signal processes: those under the cursor; TERM, INT or KILL; names them, asks first; off with --read-only",
    ),
    "processes.user": Key("u", "one user's processes: the user under the cursor; again: all"),
    "signal.terminate": Key("y", "send TERM"),
    "signal.interrupt": Key("i", "send INT, as Ctrl+C does"),
    "signal.kill": Key("K", "send KILL"),
    "signal.leave": Key("n,q", "send nothing"),
    "gpu.previous": Key("left", "previous or next GPU; MIG devices come after their GPU"),
    "gpu.next": Key("right", "the next GPU or MIG device", in_help=False),
    "preflight.again": Key("r", "check again"),
}
JOB_KEYS = {
    "fit.pin": Key("f2,p", "pin the job as pending, so the dashboard shows whether it fits"),
    "fit.open": Key("f3,o", "open a job file, another tool's configuration, or a pasted launch line"),
    "fit.choose_gpus": Key("f4,g", "choose the GPUs: those of this machine, or a model from the catalogue"),
    "fit.save": Key("f8,w", "save as a job file, for vramtop fit FILE"),
    "fit.copy": Key("f9,y", "copy the changes: as flags, and as edits to the tool's own file"),
    "fit.undo": Key("f10,u", "undo a suggestion, an opened file, or the edits of one field"),
    "fit.preflight": Key("f12,c", "preflight: check driver, model, access, disk and libraries"),
    "fit.rehearse": Key("ctrl+r,r", "rehearse the program: without a GPU; shows the command and asks first"),
    "rehearse.run": Key("y", "run the program"),
    "rehearse.leave": Key("n,q", "run nothing"),
    "fit.apply": Key("enter", "apply the highlighted suggestion", in_help=False),
    "attach.rehearse": Key(
        "ctrl+r,r", "rehearse this run beside it, without a GPU; shows the command and asks first; again: stop"
    ),
    "attach.forget": Key("f8", "forget your settings: those for this command line"),
    "attach.zoom_in": Key("plus,equals_sign", ("shorter or longer time: 1, 5, 15, 60 minutes, or the whole run")),
    "attach.zoom_out": Key("minus,underscore", "show a longer time span", in_help=False),
}
KEYS: dict[str, Key] = {**SHARED_KEYS, **DASHBOARD_KEYS, **JOB_KEYS}
"""All keys by id."""


def keys_of(key_id: str) -> tuple[str, ...]:
    """Return Textual's names of the keys of an id."""
    return tuple(KEYS[key_id].keys.split(","))


def shown_key(key_id: str) -> str:
    """Return the key of an id as a sentence names it: ``F2``."""
    return key_name(keys_of(key_id)[0])


def bind(
    key_id: str,
    action: str,
    label: str = "",
    *,
    show: bool = True,
    group: str = "",
    help_text: str | None = None,
    priority: bool = False,
    display: str | None = None,
) -> Binding:
    """Return the binding of an id with its keys.

    Args:
        key_id: a row of the table.
        action: what it runs.
        label: text beside the key in the footer.
        show: the footer shows it.
        group: label of several bindings that the footer shows as one: ``←/→ GPU``.
        help_text: its line in the help, if not that of the table; empty: it has none here.
        priority: it comes before the widget with the focus.
        display: how the footer shows the key.
    """
    row = KEYS[key_id]
    return Binding(
        row.keys,
        action,
        label or group,
        show=show and bool(label or group),
        key_display=display,
        priority=priority,
        tooltip=(row.does if row.in_help else "") if help_text is None else help_text,
        id=key_id,
        group=Binding.Group(group, compact=True) if group else None,
    )


APP_KEYS: list[BindingType] = [
    bind("app.pause", "pause"),
    bind("app.help", "help", "Help"),
    bind("app.palette", "command_palette", "palette", show=False, priority=True, display="^p"),
    bind("app.suspend", "suspend_process"),
    bind("app.quit", "quit", "Quit"),
]
TERMINAL_KEYS: list[BindingType] = [bind("app.repaint", "repaint")]
"""Keys of both apps that act on the terminal."""
