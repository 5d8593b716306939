"""The check of the keys that the user chose: every mistake is one sentence, and its default stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common import InputError

from .key_names import is_character, key_name, parse_key
from .shared_rows import FIXED_KEYS
from .table import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_EVERYWHERE = {name: fixed for fixed in FIXED_KEYS if fixed.where.startswith("everywhere") for name in fixed.names}


@dataclass(frozen=True, slots=True)
class UsedKey:
    """A binding of a place with its default keys."""

    key_id: str | None
    """None: it is fixed."""
    keys: tuple[str, ...]
    action: str
    owner: int
    """Which list of bindings it is from: of the screen, of a table on it, of the app."""


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A screen or dialog with all bindings that work on it at one time."""

    title: str
    used: tuple[UsedKey, ...]


@dataclass(frozen=True, slots=True)
class CheckedKeys:
    """What can be put in force of the keys that the user chose."""

    chosen: dict[str, tuple[str, ...]]
    """Keys by id."""
    problems: dict[str, str]
    """A sentence by id, for what stays at its default."""


def check_keys(wanted: Mapping[str, object], places: Sequence[KeyPlace]) -> CheckedKeys:
    """Check the keys that the user chose.

    Args:
        wanted: a key, or a list of keys, by id, as the settings file has it.
        places: the screens and dialogs.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    problems: dict[str, str] = {}
    for key_id, value in wanted.items():
        try:
            chosen[key_id] = _parse(key_id, value)
        except InputError as error:
            problems[key_id] = error.message
    while clash := next(_clashes(chosen, places), None):
        key_id, sentence = clash
        problems[key_id] = sentence
        del chosen[key_id]
    return CheckedKeys(chosen, problems)


def nearest_id(key_id: str) -> str | None:
    """Return the id that is most like a wrong one: its beginning, its action in another group, or its letters."""
    import difflib  # not at start-up

    longer = [each for each in KEYS if each.startswith(key_id)]
    action = key_id.rpartition(".")[2]
    same_action = [each for each in KEYS if each.rpartition(".")[2] == action]
    alike = difflib.get_close_matches(key_id, KEYS, n=1, cutoff=0.5)
    return next(iter((*longer, *same_action, *alike)), None)


def split_keys(text: str) -> list[str]:
    """Return the keys of a text with commas; a comma alone is a key."""
    return [text] if len(text.strip()) <= 1 else text.split(",")


def _parse(key_id: str, value: object) -> tuple[str, ...]:
    """Return the keys of one id.

    Raises:
        InputError: the id or a key does not exist, or the keys cannot be used for it.
    """
    row = KEYS.get(key_id)
    if row is None:
        near = nearest_id(key_id)
        hint = f"; the nearest is {near}" if near else ""
        raise InputError(f"keys.{key_id}: nothing has this name{hint}")
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
            f"keys.{key_id}: {key_name(characters[0])} could no longer be typed into a field; "
            "choose a function key or one with Ctrl"
        )
    if row.in_fields and len(characters) == len(keys):
        raise InputError(
            f"keys.{key_id}: it must work in fields too, where {key_name(characters[0])} is text; "
            "add a function key, Esc or one with Ctrl"
        )
    defaults = row.keys.split(",")
    for key in keys:
        if key in _EVERYWHERE and key not in defaults:
            fixed = _EVERYWHERE[key]
            raise InputError(f"keys.{key_id}: {key_name(key)} is fixed: {fixed.does}")
    return keys


def _clashes(chosen: Mapping[str, tuple[str, ...]], places: Sequence[KeyPlace]) -> Iterator[tuple[str, str]]:
    """Yield the id to be left at its default, with the reason, for each key that would have two meanings."""
    order = list(chosen)
    for place in places:
        ids = {used.key_id for used in place.used}
        for key_id in reversed(order):
            if key_id not in ids:
                continue
            for other in place.used:
                if other.key_id == key_id or _order_of(other.key_id, order) > order.index(key_id):
                    continue
                shared = _shared_keys(key_id, other, chosen, place)
                if shared:
                    yield key_id, _clash_sentence(key_id, shared[0], other, place)
                    break


def _order_of(key_id: str | None, order: Sequence[str]) -> int:
    """Return the place of an id among those that the user chose; -1: it is at its default."""
    return order.index(key_id) if key_id in order else -1


def _shared_keys(key_id: str, other: UsedKey, chosen: Mapping[str, tuple[str, ...]], place: KeyPlace) -> list[str]:
    """Return the keys that would have two meanings on a place, and have not by default."""
    mine = [used for used in place.used if used.key_id == key_id]
    theirs = chosen.get(other.key_id, other.keys) if other.key_id else other.keys
    if any(used.owner == other.owner and used.action == other.action for used in mine):
        return []  # another key for the same
    found = []
    for used in mine:
        found += [key for key in chosen[key_id] if key in theirs and not (key in used.keys and key in other.keys)]
    return found


def _clash_sentence(key_id: str, key: str, other: UsedKey, place: KeyPlace) -> str:
    if other.key_id is None:
        does = next((fixed.does for fixed in FIXED_KEYS if key in fixed.names), other.action)
        return f"keys.{key_id}: {key_name(key)} is fixed ({place.title}: {_short(does)}); choose another one"
    return (
        f"keys.{key_id}: {key_name(key)} is taken by {other.key_id} "
        f"({place.title}: {_short(KEYS[other.key_id].does)}); "
        "choose another one, or give that one another key"
    )


def _short(text: str) -> str:
    return text.partition(";")[0].partition(":")[0]
