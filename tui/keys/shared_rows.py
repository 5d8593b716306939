"""Keys of all screens, of lists and of forms, and the keys that are fixed."""

from .key import FixedKey, Key

ALT_DIGIT_CHARACTERS = "¡™£¢∞§¶•ª"
"""The characters of Alt and a digit from 1 to 9, as Textual receives them (those of a Mac's keyboard)."""
SHARED_KEYS = {
    "app.help": Key("question_mark,f1", "this help; a function key works while you type in a field, too"),
    "app.pause": Key("Z,space", "pause or resume the readings; where Space marks rows, it does only that"),
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
    "list.open": Key("enter", "open what is under the cursor"),
    "list.unfold": Key("right", "unfold the run, program or host under the cursor, or fold it"),
    "list.fold": Key("left", "fold the run, program or host under the cursor", in_help=False),
    "list.filter": Key("slash", "show only rows or lines with these words"),
    "job.step": Key("f5,t", "memory over one training step of this job, by component"),
    "form.other_pane": Key("f6", "go from the settings to the other half of the screen, and back"),
}

FIELD_KEYS = FixedKey(
    keys="↑ ↓ Enter",
    names=("up", "down", "enter"),
    does="to the previous or next field; in a menu: to a word, and take it",
    where="forms, menus and dialogs",
)
CHOICE_KEYS = FixedKey(
    keys="← → Enter Space",
    names=("left", "right", "enter", "space"),
    does="the previous or next choice, or the list of choices; on a heading: fold and unfold",
    where="choices and headings of a form",
)
FIXED_KEYS = (
    FixedKey(keys="Ctrl+Q", names=("ctrl+q",), does="quit", where="everywhere"),
    FixedKey(keys="Ctrl+C", names=("ctrl+c", "super+c"), does="copy the selected text", where="everywhere"),
    FixedKey(
        keys="Tab, Shift+Tab",
        names=("tab", "shift+tab"),
        does="to the next field or part of the screen, to the previous one",
        where="everywhere, unless a screen uses Tab itself",
    ),
    FIELD_KEYS,
    CHOICE_KEYS,
    FixedKey(
        keys="PgUp PgDn", names=("pageup", "pagedown"), does="a page up or down", where="menus with a search field"
    ),
    FixedKey(
        keys="1-9",
        names=(*"123456789", *(f"alt+{number}" for number in range(1, 10)), *ALT_DIGIT_CHARACTERS),
        does="apply a suggestion; with Alt while you type in a field",
        where="Fit check",
    ),
    FixedKey(
        keys="j k",
        names=("j", "k"),
        does="one row down, one row up, beside the arrow keys",
        where="GPUs of the dashboard, suggestions of the fit check",
    ),
)
"""Keys without an id: those of fields and menus, as in every program, and the digits of suggestions."""
