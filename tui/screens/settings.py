"""The settings screen: every setting with its value and origin, which can be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual import on
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from vramtop.monitor.storage.settings.in_force import DEFAULT, FILE, Problem, lines_of, read_settings_file, shown
from vramtop.monitor.storage.settings.schema import COLOURS, KEYS, SETTINGS, TABLES, THEME

from ..draw.labels import MUTED, shorten
from ..draw.palette import DEFAULT_COLOURS, SAME_AS, colour_meaning, colour_of
from ..draw.text_output import printable
from ..keys import KEYS as KEY_TABLE, bind, check_keys, key_name, keys_in_force, shown_key, split_keys
from ..tty.terminal_app import is_served
from ..widgets.choice import ChoiceMenu
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import ROW_BINDINGS, ContentLines, StaticLines, scroll_to_row
from .base import AlertsApp, BoardApp, is_complete
from .key_places import key_places

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Click, Key, Resize
    from textual.style import Style

    from vramtop.monitor.storage.settings.in_force import SettingsInForce
    from vramtop.monitor.storage.settings.schema import Setting, Value

# The check of the user's keys against the screens, for the command line and the settings screen.


def with_checked_keys(settings: SettingsInForce) -> SettingsInForce:
    """Return the settings with those keys that can be put in force, and a problem for each other one."""
    found = check_keys(settings.mapping(KEYS), key_places())
    if not found.problems and not found.chosen:
        return settings
    return with_checked_table(settings, KEYS, found.chosen, found.problems, instead="its default stays")


def with_checked_table(
    settings: SettingsInForce,
    table: str,
    chosen: Mapping[str, str | tuple[str, ...]],
    sentences: Mapping[str, str],
    *,
    instead: str,
) -> SettingsInForce:
    """Return the settings with what can be put in force of a table, and a problem for each entry that cannot.

    Args:
        settings: with the table as the file has it.
        table: its name.
        chosen: the entries that can be put in force.
        sentences: what is wrong with each other one, by name.
        instead: what is in force in its place, as the end of the sentence.
    """
    lines = _lines_of_file(settings.file) if sentences else {}
    problems = []
    for short, sentence in sentences.items():
        name = f"{table}.{short}"
        where = f"{settings.file}, line {lines[name]}" if name in lines else settings.file
        problems.append(Problem(f"{where}: {sentence}; {instead}", name, lines.get(name)))
    return settings._replace(values={**settings.values, table: chosen}, problems=(*settings.problems, *problems))


def refusal_of_key(name: str, value: object, chosen: Mapping[str, object]) -> str | None:
    """Return why a key cannot be set to this beside the others of the settings; None: it can.

    Args:
        name: ``keys.fit.pin``.
        value: as the settings file has it.
        chosen: the user's keys that it is added to; those that cannot be used do not count.
    """
    key_id = name[len(KEYS) + 1 :]
    before = check_keys(chosen, key_places()).chosen
    others = {each: keys for each, keys in before.items() if each != key_id}
    return check_keys({**others, key_id: value}, key_places()).problems.get(key_id)  # of two, the earlier one counts


def _lines_of_file(file: str) -> Mapping[str, int]:
    """Return the lines of the settings file by name; nothing if it cannot be read."""
    try:
        return lines_of(read_settings_file(file)[0])
    except (OSError, ValueError):
        return {}


# The check of the user's colours as part of the settings.


GROUNDS = ("dark", "light")
"""Themes by their ground, as the beginning of a name: ``light.good``."""
_HEX = re.compile(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")


@dataclass(frozen=True, slots=True)
class CheckedColours:
    """What can be put in force of the colours that the user chose."""

    chosen: dict[str, str]
    """Hexadecimal RGB colours by name, which may begin with a theme or its ground: ``light.good``."""
    problems: dict[str, str]
    """A sentence by name, for what is left out."""


def with_checked_colours(settings: SettingsInForce, themes: Collection[str]) -> SettingsInForce:
    """Return the settings with those colours that can be put in force, and a problem for each other one."""
    found = check_colours(settings.mapping(COLOURS), themes)
    return with_checked_table(settings, COLOURS, found.chosen, found.problems, instead="it is left out")


def check_colours(wanted: Mapping[str, object], themes: Collection[str]) -> CheckedColours:
    """Check the colours that the user chose.

    Args:
        wanted: colours by name, as the settings file has them.
        themes: names of themes.
    """
    chosen: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name, value in wanted.items():
        theme, _, colour = name.rpartition(".")
        if colour not in DEFAULT_COLOURS and colour not in SAME_AS:
            problems[name] = f"colours.{name}: nothing has this colour{_hint(colour, [*DEFAULT_COLOURS, *SAME_AS])}"
        elif theme and theme not in GROUNDS and theme not in themes:
            near = _hint(theme, [*GROUNDS, *themes])
            problems[name] = f"colours.{name}: {theme} is no theme; write dark, light or a theme before the dot{near}"
        elif not isinstance(value, str) or (rgb := parse_colour(value)) is None:
            problems[name] = f"colours.{name}: {value!r} is not a colour; write it as #e5534b, or a name such as orange"
        else:
            chosen[name] = rgb
    return CheckedColours(chosen, problems)


def parse_colour(text: str) -> str | None:
    """Return a colour as ``#rrggbb``; None: it is none. Names are those of CSS."""
    text = text.strip()
    if _HEX.fullmatch(text):
        digits = text[1:].lower()
        return f"#{digits}" if len(digits) == 6 else "#" + "".join(digit * 2 for digit in digits)
    if not text.isalpha():
        return None
    from textual.color import Color, ColorParseError  # not at start-up

    try:
        colour = Color.parse(text.lower())
    except ColorParseError:
        return None
    return None if colour.ansi is not None or colour.a < 1 else colour.hex6.lower()


def _hint(word: str, known: Collection[str]) -> str:
    import difflib  # not at start-up

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; the nearest is {near[0]}" if near else ""


# Asks for a key by having it pressed.


class KeyDialog(ModalScreen[str | None]):
    """Returns Textual's name of the key that was pressed; None: it stays as it is.

    Args:
        title: what the key is for.
        present: the keys that are in force, in words.
        refuse: returns why a key cannot be taken; None: it can.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    KeyDialog { align: center middle; }
    KeyDialog Vertical {
        width: 72; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    KeyDialog Static { height: auto; }
    KeyDialog #refusal { color: $text-error; display: none; }
    """

    def __init__(self, title: str, present: str, refuse: Callable[[str], str | None]) -> None:
        super().__init__()
        self._heading, self._present, self._refuse = title, present, refuse

    def compose(self) -> ComposeResult:
        """Yield the question."""
        with Vertical() as box:
            box.border_title = self._heading
            box.border_subtitle = f"{shown_key('app.back')} leaves it as it is"
            yield Static(f"Press the new key. Now: {self._present}", markup=False)
            yield Static(id="refusal", markup=False)

    def on_key(self, event: Key) -> None:
        """Take the key, unless it cannot be used."""
        keys_of_back = [key for key, each in self.app.active_bindings.items() if each.binding.id == "app.back"]
        if event.key in keys_of_back:
            return
        event.stop()
        event.prevent_default()
        refusal = self._refuse(event.key)
        if refusal is None:
            self.dismiss(event.key)
            return
        line = self.query_one("#refusal", Static)
        line.update(f"✗ {refusal}")
        line.display = True


# Keys of the settings screen.


SETTINGS_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.settings", "leave", help_text=""),
    bind("settings.edit", "edit", "Change"),
    bind("settings.type", "type", "Type"),
    bind("settings.reset", "reset", "Default"),
    bind("list.filter", "filter", "Filter", help_text="show only settings with these words"),
]
SETTING_LIST_KEYS: list[BindingType] = [*ROW_BINDINGS]


# Turns what was typed, chosen or pressed for a setting into a value, or says why it is not allowed.


def new_value(row: SettingRow, text: str | list[str], values: Mapping[str, Value]) -> tuple[Value | None, str | None]:
    """Return the value as it is saved, or what is wrong with it.

    Args:
        row: the setting.
        text: what was typed or chosen; of a key, also the keys that were pressed.
        values: the settings in force; of a key: the others that it must not clash with.
    """
    if row.is_key:
        keys = [each.strip() for each in split_keys(text)] if isinstance(text, str) else text
        chosen = values.get(KEYS)
        refusal = refusal_of_key(row.name, keys, chosen if isinstance(chosen, Mapping) else {})
        if refusal is not None:
            return None, refusal.removeprefix(f"{row.name}: ")
        return keys[0] if len(keys) == 1 else tuple(keys), None
    if row.swatch:
        short = row.name.removeprefix(f"{COLOURS}.")
        found = check_colours({short: str(text)}, [short.rpartition(".")[0]])
        problem = found.problems.get(short)
        return found.chosen.get(short), problem and problem.removeprefix(f"{row.name}: ")
    words = text if isinstance(text, str) else ", ".join(text)
    try:
        if row.setting.kind != "mapping":
            return row.setting.parsed(words), None
        key = row.name[len(row.setting.name) + 1 :]
        entries = row.setting.checked({key: words})
    except ValueError as error:
        return None, str(error)
    return (entries[key], None) if isinstance(entries, Mapping) else (None, None)


# The rows of the settings screen: one per setting, key and colour, grouped as in the settings file.


_NAME_COLUMN, _ORIGIN_COLUMN, _MAX_VALUE = 28, 24, 50
_FILE_WORD = "config.toml"
_KEY_ALLOWED = "a key, or several with commas"
_COLOUR_ALLOWED = "a colour: #e5534b, or a name such as orange"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting, or an entry of a table of keys, colours or hosts."""

    setting: Setting
    name: str
    """Dotted, as ``vramtop config`` takes it."""
    label: str
    """Its name in its group."""
    text: str
    """The value in force as the row shows it."""
    typed: str
    """The value as it is typed."""
    default: str
    origin: str
    about: str
    swatch: str = ""
    """The colour in force, of a colour."""
    choices: tuple[str, ...] = ()
    """All values that there are; empty: it is typed."""

    @property
    def is_overridden(self) -> bool:
        """True if a flag or the environment says what is in force."""
        return self.origin not in (DEFAULT, FILE, "settings.json")

    @property
    def is_key(self) -> bool:
        """True if it is the key of an action."""
        return self.setting.name == KEYS

    def matches(self, words: str) -> bool:
        """Return True if all words occur in its name, value, origin or meaning."""
        text = f"{self.name} {self.text} {self.origin} {self.about} {TABLES[self.setting.table]}".lower()
        return all(word in text for word in words.lower().split())


def setting_rows(
    values: Mapping[str, Value], origins: Mapping[str, str], themes: Sequence[str]
) -> Iterator[SettingRow]:
    """Yield the rows in the order of the settings file.

    Args:
        values: in force, by dotted name; absent: the default.
        origins: of the values, likewise.
        themes: names of all themes.
    """
    for setting in SETTINGS:
        value = values.get(setting.name, setting.default)
        origin = origins.get(setting.name, DEFAULT)
        entries = value if isinstance(value, Mapping) else {}
        if setting.name == KEYS:
            yield from (_key_row(setting, key_id, entries) for key_id in KEY_TABLE)
        elif setting.name == COLOURS:
            names = dict.fromkeys((*DEFAULT_COLOURS, *SAME_AS, *entries))
            yield from (_colour_row(setting, name, entries) for name in names)
        elif setting.kind == "mapping":
            yield from (_entry_row(setting, name, entries[name], origin) for name in entries)
        else:
            yield SettingRow(
                setting=setting,
                name=setting.name,
                label=setting.name.rpartition(".")[2],
                text=_plain(value),
                typed=_typed(value),
                default=_plain(setting.default),
                origin=origin,
                about=setting.about,
                choices=tuple(themes) if setting.name == THEME else _choices(setting),
            )


def list_lines(rows: Sequence[SettingRow], width: int) -> Iterator[tuple[SettingRow | None, Content]]:
    """Yield each line with its row: a heading for each group, then its settings."""
    for table, heading in TABLES.items():
        of_table = [row for row in rows if row.setting.table == table]
        if not of_table:
            continue
        yield None, Content.assemble((heading, "bold"), (f"  [{table}]", MUTED))
        yield from ((row, _line(row, width)) for row in of_table)


def detail_lines(row: SettingRow, *, at_once: bool, saved: str | None) -> list[Content]:
    """Return what a setting does, what it may be, and where its value is from.

    Args:
        row: the setting.
        at_once: a change is in force at once.
        saved: what the file says, if a flag or a variable takes precedence and it was changed in this run.
    """
    allowed = _KEY_ALLOWED if row.is_key else _COLOUR_ALLOWED if row.swatch else row.setting.allowed
    others = " · ".join(filter(None, (row.setting.flag, row.setting.variable)))
    first = Content.assemble((f"{row.name}  ", "bold"), f"{row.about}.")
    second = Content.styled(f"{allowed}; default: {row.default}" + (f" · {others}" if others else ""), MUTED)
    if row.is_overridden:
        kept = f"; {_FILE_WORD} has {saved}" if saved is not None else ""
        third = Content.styled(
            f"{row.origin} takes precedence until vramtop ends; a change is saved{kept}", "$text-warning"
        )
    else:
        third = Content.styled(
            "A change is in force at once." if at_once else "A change is in force from the next start on.", MUTED
        )
    return [first, second, third]


def _key_row(setting: Setting, key_id: str, entries: Mapping[str, object]) -> SettingRow:
    key = KEY_TABLE[key_id]
    return SettingRow(
        setting=setting,
        name=f"{KEYS}.{key_id}",
        label=key_id,
        text=_key_names(keys_in_force(key_id)),
        typed=", ".join(keys_in_force(key_id)),
        default=_key_names(key.keys.split(",")),
        origin=FILE if key_id in entries else DEFAULT,
        about=f"{key.does[:1].upper()}{key.does[1:]}",
    )


def _colour_row(setting: Setting, name: str, entries: Mapping[str, object]) -> SettingRow:
    theme, _, colour = name.rpartition(".")
    default = DEFAULT_COLOURS.get(colour) or f"that of {SAME_AS[colour]}"
    value = entries.get(name)
    return SettingRow(
        setting=setting,
        name=f"{COLOURS}.{name}",
        label=name,
        text=value if isinstance(value, str) else default,
        typed=value if isinstance(value, str) else "",
        default="not set" if theme else default,
        origin=FILE if name in entries else DEFAULT,
        about=f"Colour of {colour_meaning(colour)}" + (f", on {theme}" if theme else ""),
        swatch=(value if isinstance(value, str) else DEFAULT_COLOURS.get(colour) or colour_of(colour)),
    )


def _entry_row(setting: Setting, name: str, value: str | tuple[str, ...], origin: str) -> SettingRow:
    return SettingRow(
        setting=setting,
        name=f"{setting.name}.{name}",
        label=name,
        text=_plain(value),
        typed=_typed(value),
        default="not set",
        origin=origin,
        about=setting.about,
    )


def _choices(setting: Setting) -> tuple[str, ...]:
    if setting.kind == "switch":
        return ("true", "false")
    return setting.choices if setting.kind == "choice" else ()


def _key_names(keys: Sequence[str]) -> str:
    return "  ".join(key_name(key) for key in keys)


def _plain(value: Value) -> str:
    if value in ("", ()):
        return "(empty)"
    return printable(value if isinstance(value, str) else shown(value))


def _typed(value: Value) -> str:
    """Return a value as it is typed; empty if it has a secret in it, which no screen shows."""
    if isinstance(value, str):
        return value if printable(value) == value else ""
    return ", ".join(value) if isinstance(value, tuple) else shown(value)


def _line(row: SettingRow, width: int) -> Content:
    room = max(8, min(_MAX_VALUE, width - _NAME_COLUMN - _ORIGIN_COLUMN - 4))
    sample = "██ " if row.swatch else ""
    name, text = shorten(row.label, _NAME_COLUMN), shorten(row.text, room - len(sample))
    origin = _FILE_WORD if row.origin == FILE else row.origin
    gap = " " * max(1, room + 1 - cell_len(sample + text))
    return Content.assemble(
        f"  {name:<{_NAME_COLUMN}} ",
        (sample, row.swatch),
        (text, "" if row.origin == DEFAULT else "bold"),
        gap,
        (shorten(origin, _ORIGIN_COLUMN), MUTED if row.origin == DEFAULT else ""),
    )


# The list of settings with a cursor, which passes over the headings of groups.


class SettingList(ContentLines, can_focus=True):
    """The settings by group."""

    BINDINGS: ClassVar[list[BindingType]] = SETTING_LIST_KEYS
    COMPONENT_CLASSES: ClassVar[set[str]] = {"setting-list--cursor"}
    DEFAULT_CSS = """
    SettingList { height: 1fr; min-height: 3; overflow-y: auto; }
    SettingList > .setting-list--cursor { background: $primary 15%; color: $text; }
    SettingList:focus > .setting-list--cursor { background: $primary 35%; }
    SettingList:nocolor > .setting-list--cursor { text-style: reverse; }
    """

    class Moved(Message):
        """The cursor is on another setting."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._rows: list[SettingRow | None] = []
        """The setting of each line; None: a heading."""
        self._cursor = 0

    @property
    def selected(self) -> SettingRow | None:
        """The setting under the cursor; None: there is none."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def rows(self) -> list[SettingRow]:
        """All settings that are listed."""
        return [row for row in self._rows if row is not None]

    def show_rows(self, rows: Sequence[SettingRow]) -> None:
        """Show these settings; the cursor stays on its own."""
        name = self.selected.name if self.selected else None
        listed = list(list_lines(rows, self.size.width))
        self._rows = [row for row, _ in listed]
        self.show_lines([line for _, line in listed])
        self.notify_style_update()
        followed = next((at for at, row in enumerate(self._rows) if row and row.name == name), None)
        self._put_cursor(followed if followed is not None else self._from(0, 1), is_new=True)

    def action_move(self, by: int) -> None:
        """Move the cursor by settings, over headings."""
        at = self._cursor
        for _ in range(abs(by)):
            at = self._from(at + (1 if by > 0 else -1), 1 if by > 0 else -1, otherwise=at)
        self._put_cursor(at)

    def action_move_page(self, by: int) -> None:
        """Move the cursor by pages."""
        wanted = max(0, min(len(self._rows) - 1, self._cursor + by * max(1, self.size.height - 1)))
        self._put_cursor(self._from(wanted, 1 if by > 0 else -1, otherwise=self._from(wanted, -1 if by > 0 else 1)))

    def action_move_to(self, at: int) -> None:
        """Move the cursor to the first setting, or to the last (-1)."""
        self._put_cursor(self._from(0, 1) if at >= 0 else self._from(len(self._rows) - 1, -1))

    def on_click(self, event: Click) -> None:
        """Move the cursor to a clicked setting."""
        event.stop()
        at = event.y + self.scroll_offset.y
        if at < len(self._rows) and self._rows[at] is not None:
            self._put_cursor(at)

    def show_cursor(self) -> None:
        """Scroll the cursor into sight: the list has become lower."""
        scroll_to_row(self, self._cursor, page=self.size.height)

    def _from(self, at: int, step: int, *, otherwise: int = 0) -> int:
        """Return the first line with a setting from this one on."""
        while 0 <= at < len(self._rows):
            if self._rows[at] is not None:
                return at
            at += step
        return otherwise

    def _put_cursor(self, at: int, *, is_new: bool = False) -> None:
        if at != self._cursor or is_new:
            self._strips.clear()
            self._cursor = at
            scroll_to_row(self, max(0, at - 1) if at <= 1 else at, page=self.size.height)
            self.refresh()
            self.post_message(self.Moved())

    def _style_of(self, at: int) -> Style:
        return self.get_visual_style("setting-list--cursor") if at == self._cursor else self.visual_style


# The settings screen: every setting with its value and origin; each is changed on its own, and saved at once.


class SettingsScreen(Screen[None]):
    """Lists the settings; a change is checked while it is typed, saved at once, and applied if possible."""

    app: AlertsApp
    TITLE = "Settings"
    AUTO_FOCUS = "SettingList"
    BINDINGS: ClassVar[list[BindingType]] = SETTINGS_KEYS
    DEFAULT_CSS = """
    SettingsScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    SettingsScreen #filter { height: 1; display: none; }
    SettingsScreen #settings { padding: 0 1; }
    SettingsScreen #details {
        height: auto; min-height: 5; max-height: 9; padding: 0 1; text-wrap: wrap; border-top: hkey $foreground 20%;
    }
    SettingsScreen #editor { height: 1; padding: 0 1; display: none; }
    SettingsScreen #label { width: auto; max-width: 40%; padding: 0 1 0 0; text-style: bold; }
    SettingsScreen #value { width: 1fr; height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._edited: SettingRow | None = None
        """The setting that is being typed."""
        self._saved: dict[str, str] = {}
        """What was saved in this run, of settings that a flag or a variable has the last word on."""

    def compose(self) -> ComposeResult:
        """The list, what the setting under the cursor does, and the field."""
        yield StaticLines(id="title")
        yield Input(id="filter", placeholder="show only settings with these words, such as alert", compact=True)
        yield SettingList(id="settings")
        yield StaticLines(id="details")
        with Horizontal(id="editor"):
            yield StaticLines(id="label")
            yield Input(id="value", compact=True)
        yield KeysLine()

    @property
    def settings_list(self) -> SettingList:
        """The settings."""
        return self.query_one(SettingList)

    def on_mount(self) -> None:
        """List the settings."""
        if is_complete(self):
            self.call_after_refresh(self.draw)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """List the settings with their values of now."""
        if not is_complete(self) or not self.size.width:
            return
        title = f"Settings · {_short_path(self.app.settings_file)}"
        self.query_one("#title", StaticLines).show(Content(printable(title)))
        words = self.query_one("#filter", Input)
        rows = [
            row
            for row in setting_rows(self.app.settings, self.app.setting_origins, sorted(self.app.available_themes))
            if not words.display or row.matches(words.value)
        ]
        self.settings_list.show_rows(rows)
        self._show_details()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer only keys that do something."""
        return self._edited is None or action == "leave"

    def action_leave(self) -> None:
        """Close the field or the filter; if both are closed, leave the screen."""
        box = self.query_one("#filter", Input)
        if self._edited is not None:
            self._close_field()
        elif box.display:
            box.value, box.display = "", False
            self.settings_list.focus()
            self.draw()
        else:
            self.app.pop_screen()

    def action_filter(self) -> None:
        """Type words by which settings are filtered."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_edit(self) -> None:
        """Change the setting under the cursor by what suits it: a choice, a key press, or a field."""
        row = self.settings_list.selected
        if row is None:
            return
        if row.is_key:
            title = f"{row.name.removeprefix(f'{KEYS}.')}"
            self.app.push_screen(KeyDialog(title, row.text, partial(self._refusal, row)), partial(self._take, row))
        elif len(row.choices) == 2:
            self._change(row, row.choices[row.text == row.choices[0]])
        elif row.choices:
            self._choose(row)
        else:
            self.action_type()

    def action_type(self) -> None:
        """Type the value of the setting under the cursor."""
        row = self.settings_list.selected
        if row is None:
            return
        if row.choices:
            self.action_edit()
            return
        if row.setting.is_program and is_served():
            sentence = f"{row.name} names a program that vramtop starts, so it is not changed from a browser."
            self.notify(
                f"{sentence} Set it on the machine: vramtop config {row.name}", severity="warning", markup=False
            )
            return
        self._edited = row
        box = self.query_one("#value", Input)
        self.query_one("#label", StaticLines).show(Content(f"{row.label}:"), layout=True)
        self.query_one("#editor").display = True
        box.value = row.typed
        box.focus()
        self.call_after_refresh(self.settings_list.show_cursor)
        self._show_details()
        self.refresh_bindings()

    def action_reset(self) -> None:
        """Remove the setting under the cursor from the file, so that its default holds."""
        row = self.settings_list.selected
        if row is not None and (row.origin != DEFAULT or row.name in self._saved):
            self._save(row, None)

    @on(SettingList.Moved)
    def _show_details(self) -> None:
        """Say what the setting under the cursor does, or what is wrong with what is being typed."""
        row = self._edited or self.settings_list.selected
        line = self.query_one("#details", StaticLines)
        if row is None:
            nothing = f"nothing matches; {shown_key('app.back')} shows all"
            line.show(Content.styled(nothing, MUTED), layout=True)
            return
        lines = detail_lines(row, at_once=self.app.applies_at_once(row.name), saved=self._saved.get(row.name))
        if self._edited is not None:
            problem = new_value(row, self.query_one("#value", Input).value, self.app.settings)[1]
            keep = f"Enter saves it · {shown_key('app.back')} leaves it as it is"
            lines[2:] = [Content.styled(f"✗ {problem}", "$text-error") if problem else Content.styled(keep, MUTED)]
        line.show(Content("\n").join(lines), layout=True)

    @on(Input.Changed, "#value")
    def _check(self) -> None:
        self._show_details()

    @on(Input.Submitted, "#value")
    def _submit(self, event: Input.Submitted) -> None:
        row = self._edited
        if row is not None and self._change(row, event.value):
            self._close_field()

    @on(Input.Changed, "#filter")
    def _filter(self) -> None:
        self.draw()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        self.settings_list.focus()

    def _choose(self, row: SettingRow) -> None:
        """Have one of several words chosen."""

        def choose(at: int | None) -> None:
            if at is not None:
                self._change(row, row.choices[at])

        place = self.settings_list.region
        at = row.choices.index(row.text) if row.text in row.choices else 0
        self.app.push_screen(ChoiceMenu(row.choices, Offset(place.x + 30, place.y + 1), at=at), choose)

    def _refusal(self, row: SettingRow, key: str) -> str | None:
        return new_value(row, [key], self.app.settings)[1]

    def _take(self, row: SettingRow, key: str | None) -> None:
        if key is not None:
            self._change(row, [key])

    def _change(self, row: SettingRow, text: str | list[str]) -> bool:
        """Save what was typed or chosen; False: it is not allowed."""
        value, problem = new_value(row, text, self.app.settings)
        if problem is not None or value is None:
            return False
        self._save(row, value)
        return True

    def _save(self, row: SettingRow, value: Value | None) -> None:
        """Save one setting, and put it in force, unless a flag or a variable has the last word."""
        if row.is_overridden:
            self.app.save_for_later(row.name, value)
            self._saved[row.name] = "nothing" if value is None else shown(value)
        else:
            self.app.save_setting(row.name, value)
            if row.setting.kind != "mapping":
                self.app.setting_origins[row.name] = DEFAULT if value is None else FILE
            self.app.apply_setting(row.name)
        self.draw()
        self.refresh_bindings()

    def _close_field(self) -> None:
        self._edited = None
        self.query_one("#editor").display = False
        self.settings_list.focus()
        self._show_details()
        self.refresh_bindings()


def _short_path(file: str) -> str:
    home = str(Path.home())
    return f"~{file[len(home) :]}" if file.startswith(f"{home}/") else file


# Opens the settings screen.


def open_settings(app: BoardApp) -> None:
    """Show the settings, unless they are shown already."""
    if not isinstance(app.screen, SettingsScreen):
        app.push_once(SettingsScreen())
