"""Turns what was typed, chosen or pressed for a setting into a value, or says why it is not allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vramtop.monitor.storage.settings import COLOURS, KEYS

from ...keys import split_keys
from .checked_colours import check_colours
from .checked_keys import refusal_of_key

if TYPE_CHECKING:
    from vramtop.monitor.storage.settings import Value

    from .setting_rows import SettingRow


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
