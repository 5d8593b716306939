"""The keys: what each is called, which one is in force, and the check of those that the user chose."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, REPLACED_KEYS, Keys, key_to_character

from vramtop.estimator.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Names of keys: as Textual calls them, as the user may write them, as screens show them.


_MODIFIERS = ("ctrl", "alt", "shift", "super", "hyper", "meta")
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
_ALSO = {
    "esc": "escape",
    "return": "enter",
    "pgup": "pageup",
    "page_up": "pageup",
    "pgdn": "pagedown",
    "page_down": "pagedown",
    "del": "delete",
    "ins": "insert",
    "spacebar": "space",
    "question": "question_mark",
    "?": "question_mark",
    "←": "left",
    "→": "right",
    "↑": "up",
    "↓": "down",
}
"""Other names that people write."""
_SAME_BYTE = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace", "ctrl+left_square_bracket": "escape"}
"""Keys for which a terminal sends what it sends for another key."""
_NAMED = frozenset(key.value.rpartition("+")[2] for key in Keys if not key.value.startswith("<"))
_FUNCTION_KEY = re.compile(r"f([1-9]|1[0-9]|2[0-4])")


def parse_key(text: str) -> str:
    """Return Textual's name of a key: ``Ctrl+K``, ``F5``, ``?``, ``page_up``.

    Raises:
        InputError: there is no such key, or a terminal does not tell it from another one.
    """
    words = text.strip()
    *modifiers, base = [words] if len(words) == 1 else re.split(r"\+(?=.)", words)
    names = (
        sorted({modifier.strip().lower() for modifier in modifiers}, key=[*_MODIFIERS].index)
        if all(modifier.strip().lower() in _MODIFIERS for modifier in modifiers)
        else None
    )
    key = _base_name(base.strip())
    if names is None or key is None:
        raise InputError(f"{text!r} is not the name of a key; write it as in f5, ctrl+k, space, comma, ? or K")
    if len(key) == 1 and names:
        if names == ["shift"] and key.isalpha():
            return key.upper()  # what a terminal sends
        key = key.lower()
    whole = "+".join([*names, key])
    if whole in _SAME_BYTE:
        raise InputError(
            f"{text!r} and {key_name(_SAME_BYTE[whole])} are one key: terminals send the same byte for both"
        )
    return whole


def _base_name(text: str) -> str | None:
    """Return the name of a key without modifiers; None: there is none of this name."""
    if text in _ALSO:
        return _ALSO[text]
    if len(text) == 1:
        return (text if text.isalnum() else _name_of_character(text)) if text.isprintable() and text != " " else None
    name = text.lower().replace("-", "_").replace(" ", "_")
    name = _ALSO.get(name, name)
    if name in _NAMED or _FUNCTION_KEY.fullmatch(name):
        return name
    character = character_of(name)
    if character is None:
        return None
    return character if character.isalnum() else _name_of_character(character)


def _name_of_character(character: str) -> str:
    """Return Textual's name of a punctuation mark or symbol."""
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


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


def is_character(key: str) -> bool:
    """Return True if a field that text is typed into takes the key as text."""
    return character_of(key) is not None


# A key binding as the user knows it: its id in the settings file, its default keys, what it does.


class Key(msgspec.Struct, frozen=True):
    """What can be bound to other keys."""

    keys: str
    """The default: Textual's names of keys, separated by commas; the first is the one that screens show."""
    does: str
    """What it does; also its line in the help."""
    in_help: bool = True
    """The help has a line for it; False: everyone knows it, or the line of another one says it."""
    in_fields: bool = False
    """It works while text is typed into a field, so one of its keys must not be a character."""
    first: bool = False
    """It comes before the widget with the focus, so none of its keys may be a character."""


class FixedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What always has the same keys."""

    keys: str
    """Keys as they are shown: ``1-9``."""
    names: tuple[str, ...]
    """Names that Textual gives to the keys."""
    does: str
    where: str
    """The screens, in words."""
    groups: tuple[str, ...] = ()
    """Groups of keys on these screens; none: all."""


# Keys of all screens, of lists and of forms, and the keys that are fixed.


ALT_DIGIT_CHARACTERS = "¡™£¢∞§¶•ª"
"""The characters of Alt and a digit from 1 to 9, as Textual receives them (those of a Mac's keyboard)."""
SHARED_KEYS = {
    "app.help": Key("question_mark,f1,h", "this help; a function key works while you type in a field, too"),
    "app.pause": Key("Z,space", "pause or resume the readings; in lists where Space marks rows, use the other key"),
    "app.palette": Key("ctrl+p", "all commands and themes", first=True),
    "app.back": Key(
        "escape",
        "close this screen or dialog; on a dashboard: unmark all, then remove the filter",
        in_help=False,
        in_fields=True,
    ),
    "app.repaint": Key("ctrl+l", "redraw the screen"),
    "app.suspend": Key("ctrl+z", "suspend vramtop; fg in the shell resumes it"),
    "app.quit": Key("q", "quit; Ctrl+Q does so everywhere"),
    "list.up": Key("up", "one row up", in_help=False),
    "list.down": Key("down", "one row down", in_help=False),
    "list.page_up": Key("pageup", "one page up", in_help=False),
    "list.page_down": Key("pagedown", "one page down", in_help=False),
    "list.first": Key("home,ctrl+home", "to the first row", in_help=False),
    "list.last": Key("end,ctrl+end", "to the last row", in_help=False),
    "list.open": Key("enter", "open the row under the cursor"),
    "list.unfold": Key("right", "unfold the run, program or host under the cursor, or fold it"),
    "list.fold": Key("left", "fold the run, program or host under the cursor", in_help=False),
    "list.filter": Key("slash", "show only rows or lines with these words"),
    "job.step": Key("f5,t", "memory over one training step of this job, by component"),
    "form.other_pane": Key("f6", "switch between the settings and the other half of the screen"),
}

FIXED_KEYS = (
    FixedKey(keys="Ctrl+Q", names=("ctrl+q",), does="quit", where="everywhere"),
    FixedKey(keys="Ctrl+C", names=("ctrl+c", "super+c"), does="copy the selected text", where="everywhere"),
    FixedKey(
        keys="Tab, Shift+Tab",
        names=("tab", "shift+tab"),
        does="go to the next or previous field or part of the screen",
        where="everywhere, unless a screen uses Tab itself",
    ),
    FixedKey(
        keys="↑ ↓ Enter",
        names=("up", "down", "enter"),
        does="go to the previous or next field; in a menu: choose a word",
        where="forms, menus and dialogs",
        groups=("form", "fit", "attach", "job"),
    ),
    FixedKey(
        keys="← → Enter Space",
        names=("left", "right", "enter", "space"),
        does="take the previous or next choice, or list the choices; on a heading: fold or unfold",
        where="choices and headings of a form",
        groups=("form", "fit", "attach", "job"),
    ),
    FixedKey(
        keys="PgUp PgDn",
        names=("pageup", "pagedown"),
        does="a page up or down",
        where="menus with a search field",
        groups=("form",),
    ),
    FixedKey(
        keys="1-9",
        names=(*"123456789", *(f"alt+{number}" for number in range(1, 10)), *ALT_DIGIT_CHARACTERS),
        does="apply a suggestion; with Alt while you type in a field",
        where="fit check",
        groups=("fit", "job"),
    ),
    FixedKey(
        keys="j k",
        names=("j", "k"),
        does="one row down, one row up, beside the arrow keys",
        where="GPUs of the dashboard, suggestions of the fit check",
        groups=("dashboard", "processes", "fit"),
    ),
)
"""Keys without an id: those of fields and menus, as in every program, and the digits of suggestions."""


# Keys of the dashboard, its dialogs, and the screens about a GPU, a process, a step or a failure.


DASHBOARD_KEYS = {
    "dashboard.fit_check": Key(
        "f", ("fit check: find out whether a job would fit before you start it; reopens a pending job")
    ),
    "dashboard.attach": Key(
        "a", ("attach: compare a running job with its budget; opens the latest run, or lets you pick one")
    ),
    "dashboard.step": Key("t", "one training step of the job under the cursor: memory by component, largest tensors"),
    "dashboard.preflight": Key("p", "preflight: check that everything a pending job needs is ready"),
    "dashboard.gpu": Key("g", "the GPU of the row under the cursor: bandwidth, clocks, throttling, PCIe, ECC"),
    "dashboard.process": Key(
        "i", "the process under the cursor: SM, CPU, RAM, environment, open files, folder, parents, limits"
    ),
    "dashboard.alerts": Key("w", "alerts: list lasting problems, new problems, and your quiet hours"),
    "dashboard.crash": Key(
        "e", "explain an out-of-memory error: the process under the cursor, a log, or a torch memory snapshot"
    ),
    "dashboard.record": Key("r", "start or stop recording to a file"),
    "dashboard.dismiss": Key("x", "dismiss the ended run under the cursor, or unpin a pending job"),
    "dashboard.host_line": Key("H", "show or hide the host line: CPU, RAM, swap, load"),
    "processes.view": Key("v", "switch the view: runs, all processes, process tree; remembered"),
    "processes.mark": Key("space", "mark the processes under the cursor, to signal them together"),
    "processes.columns": Key("c", "choose columns, such as SM, CPU, RAM, threads; remembered"),
    "processes.sort": Key("s,o,f6", "sort by the next column; ↓ marks it"),
    "processes.signal": Key(
        "k,K,f9",
        "signal the marked processes, or those under the cursor: TERM, INT or KILL; names them and asks first; off "
        "with --read-only",
    ),
    "processes.user": Key("u", "show only processes of the user under the cursor; press again to show all"),
    "processes.leave_alone": Key("l", "detach from the run under the cursor and leave it alone, or attach to it again"),
    "columns.switch": Key("space", "show or hide the column under the cursor"),
    "columns.more_important": Key("left,minus,shift+up", "more important: the column stays longer when space is short"),
    "columns.less_important": Key("right,plus,shift+down", "less important: the column goes first when space is short"),
    "columns.default": Key("d", "the default columns"),
    "columns.keep": Key("enter", "keep this choice"),
    "signal.terminate": Key("y", "send TERM"),
    "signal.interrupt": Key("i", "send INT, as Ctrl+C does"),
    "signal.kill": Key("K", "send KILL"),
    "signal.leave": Key("n,q", "send nothing"),
    "gpu.previous": Key("left", "the previous GPU or the next GPU; MIG devices come after their GPU"),
    "gpu.next": Key("right", "the next GPU or MIG device", in_help=False),
    "process.next_part": Key(
        "tab", "to the next or previous part: command, place, parents, environment, open files, limits"
    ),
    "process.previous_part": Key("shift+tab", "to the previous part", in_help=False),
    "process.read": Key("r", "read environment, open files and limits again"),
    "alerts.quiet_hours": Key("e", "set the quiet hours, without alert messages, such as 22:00-07:00, or off; saved"),
    "preflight.again": Key("r", "check again"),
    "crash.open_file": Key("o", "explain a log or a torch memory snapshot"),
    "step.lines": Key("enter", "show the source line that made the marked tensor, with its context"),
    "step.open_snapshot": Key("o", "draw a torch memory snapshot beside the step, on the same scale"),
}


# Keys of the fit check, the attach screen, and the dashboard over many hosts.


JOB_KEYS = {
    "fit.pin": Key(
        "f2,p", "pin the job as pending, so the dashboard shows whether it fits; replaces its earlier version"
    ),
    "fit.open": Key("f3,o", "open a job file, another tool's configuration, or a launch line; you can paste it"),
    "fit.choose_gpus": Key(
        "f4,g", "choose the GPUs: those of this machine, or any number of a model from the catalogue"
    ),
    "fit.save": Key("f8,w", "save as a job file, for vramtop fit FILE"),
    "fit.copy": Key("f9,y", "copy the changed settings as vramtop fit flags and as edits to the tool's own file"),
    "fit.undo": Key("f10,u", "undo a suggestion, an opened file, or the edits of one field"),
    "fit.preflight": Key(
        "f12,c",
        "preflight: check the job's driver, model, access tokens, disk, libraries and network",
    ),
    "fit.rehearse": Key("ctrl+r,r", "rehearse the program without a GPU; shows the command and asks first"),
    "rehearse.run": Key("y", "run the program"),
    "rehearse.leave": Key("n,q", "run nothing"),
    "fit.apply": Key("enter", "apply the highlighted suggestion", in_help=False),
    "attach.choose": Key("f3", "attach to one more process"),
    "attach.rehearse": Key(
        "ctrl+r,r", "rehearse this run beside it, without a GPU; shows the command and asks first; again: stop"
    ),
    "attach.forget": Key("f8", "forget your settings for this command line; clearing a field forgets that one"),
    "attach.zoom_in": Key(
        "plus,equals_sign", ("show a shorter or longer time span: 1, 5, 15, 60 minutes, or the whole run")
    ),
    "attach.zoom_out": Key("minus,underscore", "show a longer time span", in_help=False),
    "attach.previous_run": Key(
        "left_square_bracket",
        "the previous or next run; ↑ ↓ choose the rank in the graph, PgUp PgDn scroll the text below",
    ),
    "attach.next_run": Key("right_square_bracket", "the next run", in_help=False),
    "attach.dismiss": Key("x", "dismiss this run; ended runs stay until you dismiss them"),
    "fleet.sort": Key("s", "sort by the next column: status, host, job, user, free; ↓ marks it"),
}


# All key bindings by id: the one place that says which key does what by default.
#
# Ids are part of the settings file: they stay. ``GROUP.ACTION``: a group is a screen, a dialog, or what several
# share.


KEYS: dict[str, Key] = {**SHARED_KEYS, **DASHBOARD_KEYS, **JOB_KEYS}


# The keys that are in force: the user's, otherwise the defaults. There is one set, as there is one app.


_chosen: dict[str, tuple[str, ...]] = {}
"""The user's keys by id."""


def use_keys(chosen: Mapping[str, tuple[str, ...]]) -> None:
    """Put the user's keys in force, in place of earlier ones; they have been checked."""
    _chosen.clear()
    _chosen.update(chosen)


def keys_in_force(key_id: str) -> tuple[str, ...]:
    """Return Textual's names of the keys of an id."""
    return _chosen.get(key_id) or keys_of(key_id)


def shown_key(key_id: str) -> str:
    """Return the key of an id as a sentence names it: ``F2``."""
    return key_name(keys_in_force(key_id)[0])


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
    """Return the binding of an id with its default keys; the app replaces them by the user's.

    Args:
        key_id: a row of the table.
        action: what it runs.
        label: text beside the key in the footer.
        show: the footer shows it.
        group: label of several bindings that the footer shows as one: ``←/→ GPU``.
        help_text: its line in the help, if not that of the table; empty: it has none here.
        priority: it comes before the widget with the focus.
        display: how the footer shows the default key.
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


# Keys that work on every screen of an app.


APP_KEYS: list[BindingType] = [
    bind("app.pause", "pause", "Pause", show=False),
    bind("app.help", "help", "Help"),
    bind("app.palette", "command_palette", "palette", show=False, priority=True, display="^p"),
    bind("app.suspend", "suspend_process"),
    bind("app.quit", "quit", "Quit"),
]
TERMINAL_KEYS: list[BindingType] = [bind("app.repaint", "repaint")]
"""Keys of both apps that act on the terminal."""


# Which keys work together: of the screens and dialogs, each with the groups and ids of its keys.


_TABLE = "list.up list.down list.page_up list.page_down list.first list.last"
PLACES: dict[str, str] = {
    "dashboard": "app list dashboard processes",
    "columns": "app.back list.up list.down processes.columns columns",
    "signal": "app.back list.up list.down list.fold list.unfold signal",
    "rehearsal": "app.back list.fold list.unfold rehearse",
    "GPU": f"app {_TABLE} list.open list.unfold list.fold dashboard.gpu dashboard.process gpu processes.mark "
    "processes.columns processes.sort processes.signal processes.leave_alone",
    "process": f"app {_TABLE} list.filter dashboard.attach dashboard.process process",
    "alerts": "app dashboard.alerts alerts",
    "preflight": "app preflight fit.preflight",
    "out of memory": "app job crash",
    "step": "app dashboard.step step",
    "fit check": "app list.up list.down job form fit",
    "attach": "app job form dashboard.process attach",
    "fleet": "app list fleet.sort",
    "host of a fleet": "app list.up list.down list.page_up list.page_down list.fold",
}
CHANGEABLE = ("app", "list", "job", "dashboard", "processes", "fit", "attach", "fleet")
"""Groups whose keys the user may choose; those of dialogs and detail screens are fixed."""


@lru_cache(maxsize=1)
def ids_by_place() -> dict[str, frozenset[str]]:
    """Return the ids of all keys that work on each screen or dialog."""
    return {
        place: frozenset(key_id for key_id in KEYS if key_id in words or key_id.partition(".")[0] in words)
        for place, words in ((place, text.split()) for place, text in PLACES.items())
    }


def changeable_keys() -> list[str]:
    """Return the ids of the keys that the user may choose."""
    return [key_id for key_id in KEYS if key_id.partition(".")[0] in CHANGEABLE]


# The check of the keys that the user chose: every mistake is one sentence, and its default stays.


class CheckedKeys(msgspec.Struct, frozen=True):
    """What can be put in force of the keys that the user chose."""

    chosen: dict[str, tuple[str, ...]]
    """Keys by id."""
    problems: dict[str, str]
    """A sentence by id, for what stays at its default."""


def check_keys(wanted: Mapping[str, object]) -> CheckedKeys:
    """Check the keys that the user chose: a key, or a list of keys, by id, as the settings file has it."""
    chosen: dict[str, tuple[str, ...]] = {}
    problems: dict[str, str] = {}
    for key_id, value in wanted.items():
        try:
            chosen[key_id] = _parse(key_id, value)
        except InputError as error:
            problems[key_id] = error.message
    while clash := next(_clashes(chosen), None):
        key_id, sentence = clash
        problems[key_id] = sentence
        del chosen[key_id]
    return CheckedKeys(chosen, problems)


def refusal_of_key(key_id: str, value: object, chosen: Mapping[str, object]) -> str | None:
    """Return why the keys of an id cannot be these beside the other chosen ones; None: they can."""
    before = check_keys(chosen).chosen
    others = {each: keys for each, keys in before.items() if each != key_id}
    return check_keys({**others, key_id: value}).problems.get(key_id)  # of two, the earlier one counts


def nearest_id(key_id: str) -> str | None:
    """Return the changeable id that is most like a wrong one: its beginning, its action elsewhere, or its letters."""
    import difflib  # not at start-up

    known = changeable_keys()
    longer = [each for each in known if each.startswith(key_id)]
    action = key_id.rpartition(".")[2]
    same_action = [each for each in known if each.rpartition(".")[2] == action]
    alike = difflib.get_close_matches(key_id, known, n=1, cutoff=0.5)
    return next(iter((*longer, *same_action, *alike)), None)


def split_keys(text: str) -> list[str]:
    """Return the keys of a text with commas; a comma alone is a key."""
    return [text] if len(text.strip()) <= 1 else text.split(",")


def _parse(key_id: str, value: object) -> tuple[str, ...]:
    """Return the keys of one id.

    Raises:
        InputError: the id or a key does not exist, or the keys cannot be used for it.
    """
    row, group = KEYS.get(key_id), key_id.partition(".")[0]
    if row is None:
        near = nearest_id(key_id)
        hint = f"; the nearest is {near}" if near else ""
        raise InputError(f"keys.{key_id}: no key setting has this name{hint}")
    if group not in CHANGEABLE:
        raise InputError(f"keys.{key_id} is no longer a setting and is ignored: keys of dialogs are fixed")
    texts = split_keys(value) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f'keys.{key_id}: give a key, such as "f5", or a list of keys, such as ["f5", "t"]')
    try:
        keys = tuple(dict.fromkeys(parse_key(text) for text in texts))
    except InputError as error:
        raise InputError(f"keys.{key_id}: {error.message}") from None
    characters = [key for key in keys if is_character(key)]
    if row.first and characters:
        raise InputError(
            f"keys.{key_id}: {key_name(characters[0])} could then not be typed into a field; choose a function key or "
            "one with Ctrl"
        )
    if row.in_fields and len(characters) == len(keys):
        raise InputError(
            f"keys.{key_id}: it must work in fields too, where {key_name(characters[0])} is text; "
            "add a function key, Esc or one with Ctrl"
        )
    for key in keys:
        fixed = next((each for each in FIXED_KEYS if key in each.names and group in (each.groups or (group,))), None)
        if fixed and key not in keys_of(key_id):
            where = f" ({fixed.where}: {_short(fixed.does)})" if fixed.groups else f": {fixed.does}"
            raise InputError(f"keys.{key_id}: {key_name(key)} is fixed{where}; choose another one")
    return keys


def _clashes(chosen: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yield the id to be left at its default, with the reason, for each key that would have two meanings.

    Of two chosen ones the earlier one counts; two meanings by default are none.
    """
    order = list(chosen)
    for place, ids in ids_by_place().items():
        for at in reversed(range(len(order))):
            key_id = order[at]
            for other in [each for each in KEYS if each in ids and key_id in ids and each not in order[at:]]:
                both = {*keys_of(key_id)} & {*keys_of(other)}
                keys = [key for key in chosen[key_id] if key in chosen.get(other, keys_of(other)) and key not in both]
                if keys:
                    yield (
                        key_id,
                        f"keys.{key_id}: {key_name(keys[0])} is taken by {other} ({place}: "
                        f"{_short(KEYS[other].does)}); choose another one, or give that one another key",
                    )


def keys_of(key_id: str) -> tuple[str, ...]:
    """Return Textual's names of the default keys of an id."""
    return tuple(KEYS[key_id].keys.split(","))


def _short(text: str) -> str:
    return text.partition(";")[0].partition(":")[0]
