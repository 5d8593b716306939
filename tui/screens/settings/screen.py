"""The settings screen: every setting with its value and origin; each is changed on its own, and saved at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Offset
from textual.screen import Screen
from textual.widgets import Input

from vramtop.monitor.storage.settings import DEFAULT, FILE, KEYS, shown

from ...draw import MUTED, printable
from ...keys import shown_key
from ...tty.is_served import is_served
from ...widgets import ChoiceMenu, KeysLine, StaticLines
from ..base import AlertsApp, is_complete
from .key_dialog import KeyDialog
from .keys import SETTINGS_KEYS
from .new_value import new_value
from .setting_list import SettingList
from .setting_rows import detail_lines, setting_rows

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from vramtop.monitor.storage.settings import Value

    from .setting_rows import SettingRow


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
