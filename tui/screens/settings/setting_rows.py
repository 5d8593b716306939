"""The rows of the settings screen: one per setting, key and colour, grouped as in the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content

from vramtop.monitor.storage.settings import COLOURS, DEFAULT, FILE, KEYS, SETTINGS, TABLES, THEME, shown

from ...draw import DEFAULT_COLOURS, MUTED, SAME_AS, colour_meaning, colour_of, printable, shorten
from ...keys import KEYS as KEY_TABLE, key_name, keys_in_force

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vramtop.monitor.storage.settings import Setting, Value

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
