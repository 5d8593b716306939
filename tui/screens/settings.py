"""The settings screen: every setting with its value and origin, which can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Offset
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from vramtop.monitor.storage.settings.in_force import DEFAULT, FILE, shown
from vramtop.monitor.storage.settings.schema import COLOURS, KEYS, SETTINGS, TABLES, THEME

from ..draw.labels import MUTED, shorten
from ..draw.palette import CHANGEABLE, DEFAULT_COLOURS, check_colours, colour_meaning
from ..draw.text_output import printable
from ..keys import (
    KEYS as KEY_TABLE,
    bind,
    changeable_keys,
    key_name,
    keys_in_force,
    keys_of,
    refusal_of_key,
    shown_key,
    split_keys,
)
from ..tty.terminal_app import is_served
from ..widgets.choice import ChoiceMenu
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import ROW_BINDINGS, RowTable, StaticLines, scroll_to_row
from .base import AlertsApp, BoardApp, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Key, Resize

    from vramtop.monitor.storage.settings.schema import Setting, Value

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
            box.border_subtitle = f"{shown_key('app.back')} cancels"
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


# Turns what was typed, chosen or pressed for a setting into a value, or says why it is not allowed.


def new_value(row: SettingRow, text: str | list[str], values: Mapping[str, Any]) -> tuple[Value | None, str | None]:
    """Return the value as it is saved, or what is wrong with it.

    Args:
        row: the setting.
        text: what was typed or chosen; of a key, also the keys that were pressed.
        values: the settings in force; of a key: the others that it must not clash with.
    """
    entry = row.name[len(row.setting.name) + 1 :]
    if row.is_key:
        keys = [each.strip() for each in split_keys(text)] if isinstance(text, str) else text
        refusal = refusal_of_key(entry, keys, values.get(KEYS, {}))
        if refusal is not None:
            return None, refusal.removeprefix(f"{row.name}: ")
        return keys[0] if len(keys) == 1 else tuple(keys), None
    if row.swatch:
        found = check_colours({entry: str(text)})
        problem = found.problems.get(entry)
        return found.chosen.get(entry), problem and problem.removeprefix(f"{row.name}: ")
    words = text if isinstance(text, str) else ", ".join(text)
    try:
        return (row.setting.checked_entry(entry, words) if entry else row.setting.parsed(words)), None
    except ValueError as error:
        return None, str(error)


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
        return self.origin not in (DEFAULT, FILE)

    @property
    def is_key(self) -> bool:
        """True if it is the key of an action."""
        return self.setting.name == KEYS

    def matches(self, words: str) -> bool:
        """Return True if all words occur in its name, value, origin or meaning."""
        text = f"{self.name} {self.text} {self.origin} {self.about} {TABLES[self.setting.table]}".lower()
        return all(word in text for word in words.lower().split())


def setting_rows(values: Mapping[str, Any], origins: Mapping[str, str], themes: Sequence[str]) -> Iterator[SettingRow]:
    """Yield the rows in the order of the settings file.

    Args:
        values: in force, by dotted name; absent: the default.
        origins: of the values, likewise.
        themes: names of all themes.
    """
    for setting in SETTINGS:
        value = values.get(setting.name, setting.default)
        origin = origins.get(setting.name, DEFAULT)
        if setting.name == KEYS:
            yield from (_key_row(setting, key_id, value) for key_id in changeable_keys())
        elif setting.name == COLOURS:
            yield from (_colour_row(setting, name, value) for name in CHANGEABLE)
        elif isinstance(value, Mapping):
            yield from (_row(setting, name, entry, "not set", origin) for name, entry in value.items())
        else:
            row = _row(setting, "", value, _plain(setting.default), origin)
            yield replace(row, choices=tuple(themes)) if setting.name == THEME else row


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
            f"{row.origin} takes precedence until vramtop ends; changes are saved{kept}", "$text-warning"
        )
    else:
        third = Content.styled(
            "A change applies at once." if at_once else "A change applies from the next start.", MUTED
        )
    return [first, second, third]


def _row(setting: Setting, entry: str, value: str | tuple[str, ...], default: str, origin: str) -> SettingRow:
    return SettingRow(
        setting=setting,
        name=f"{setting.name}.{entry}" if entry else setting.name,
        label=entry or setting.name.rpartition(".")[2],
        text=_plain(value),
        typed=_typed(value),
        default=default,
        origin=origin,
        about=setting.about,
        choices={"switch": ("true", "false"), "choice": setting.choices}.get(setting.kind, ()),
    )


def _key_row(setting: Setting, key_id: str, entries: Mapping[str, object]) -> SettingRow:
    keys, does = keys_in_force(key_id), KEY_TABLE[key_id].does
    row = _row(setting, key_id, keys, _key_names(keys_of(key_id)), FILE if key_id in entries else DEFAULT)
    return replace(row, text=_key_names(keys), about=f"{does[:1].upper()}{does[1:]}")


def _colour_row(setting: Setting, name: str, entries: Mapping[str, str]) -> SettingRow:
    default = DEFAULT_COLOURS[name]
    colour = entries.get(name, default)
    row = _row(setting, name, colour, default, FILE if name in entries else DEFAULT)
    return replace(row, typed=entries.get(name, ""), about=f"Colour of {colour_meaning(name)}", swatch=colour)


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


class SettingList(RowTable["SettingRow | str"]):
    """The settings by group, below headings, which the cursor passes over."""

    HEADER_LINES = 0
    BINDINGS: ClassVar[list[BindingType]] = [*ROW_BINDINGS]

    class Moved(Message):
        """The cursor is on another setting."""

    def key_of(self, row: SettingRow | str) -> str:
        """Return the name of a setting; a heading is its own."""
        return row if isinstance(row, str) else row.name

    def cells_of(self, row: SettingRow | str) -> Content:
        """Return the whole line of a row."""
        if isinstance(row, str):
            return Content.assemble((TABLES[row], "bold"), (f"  [{row}]", MUTED))
        return _line(row, self.size.width)

    @property
    def setting(self) -> SettingRow | None:
        """The setting under the cursor; None: there is none."""
        return None if isinstance(self.selected, str) else self.selected

    def list_settings(self, rows: Sequence[SettingRow]) -> None:
        """Show these settings; the cursor stays on its own, or goes to the first if that is not among them."""
        followed = self.setting
        listed: list[SettingRow | str] = []
        for table in TABLES:
            of_table = [row for row in rows if row.setting.table == table]
            listed += [table, *of_table] if of_table else []
        self.show_rows(listed)
        is_listed = followed is not None and any(row.name == followed.name for row in rows)
        self.move_cursor(row=self.cursor_row if is_listed else 0)

    def move_cursor(self, *, row: int) -> None:
        """Put the cursor on the setting at this position, or on the next one in the direction of the move."""
        places = [at for at, each in enumerate(self.rows) if not isinstance(each, str)]
        ahead = [at for at in places if at >= row] if row >= self.cursor_row else [at for at in places if at <= row]
        found = min(ahead or places, key=lambda at: abs(at - row), default=0)
        super().move_cursor(row=found)
        if found == 1:
            scroll_to_row(self, 0, page=self.page)  # its heading, too
        self.post_message(self.Moved())


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
        self.settings_list.list_settings(rows)
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
        row = self.settings_list.setting
        if row is None:
            return
        if row.is_key:
            dialog = KeyDialog(row.label, row.text, lambda key: new_value(row, [key], self.app.settings)[1])

            def take(key: str | None) -> None:
                if key is not None:
                    self._change(row, [key])

            self.app.push_screen(dialog, take)
        elif len(row.choices) == 2:
            self._change(row, row.choices[row.text == row.choices[0]])
        elif row.choices:
            self._choose(row)
        else:
            self.action_type()

    def action_type(self) -> None:
        """Type the value of the setting under the cursor."""
        row = self.settings_list.setting
        if row is None:
            return
        if row.choices:
            self.action_edit()
            return
        if row.setting.is_program and is_served():
            sentence = f"{row.name} names a program that vramtop starts, so you cannot change it from a browser."
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
        self.call_after_refresh(lambda: self.settings_list.move_cursor(row=self.settings_list.cursor_row))
        self._show_details()
        self.refresh_bindings()

    def action_reset(self) -> None:
        """Remove the setting under the cursor from the file, so that its default holds."""
        row = self.settings_list.setting
        if row is not None and (row.origin != DEFAULT or row.name in self._saved):
            self._save(row, None)

    @on(SettingList.Moved)
    def _show_details(self) -> None:
        """Say what the setting under the cursor does, or what is wrong with what is being typed."""
        row = self._edited or self.settings_list.setting
        line = self.query_one("#details", StaticLines)
        if row is None:
            nothing = f"nothing matches; {shown_key('app.back')} shows all"
            line.show(Content.styled(nothing, MUTED), layout=True)
            return
        lines = detail_lines(row, at_once=self.app.applies_at_once(row.name), saved=self._saved.get(row.name))
        if self._edited is not None:
            problem = new_value(row, self.query_one("#value", Input).value, self.app.settings)[1]
            keep = f"Enter saves it · {shown_key('app.back')} cancels"
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
