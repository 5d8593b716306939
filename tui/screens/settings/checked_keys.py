"""The check of the user's keys against the screens, for the command line and the settings screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.monitor.storage.settings import KEYS, Problem, lines_of, read_settings_file

from ...keys.check_keys import check_keys
from ..key_places import key_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vramtop.monitor.storage.settings import SettingsInForce


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
