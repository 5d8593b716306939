"""Names of keys: as Textual calls them, as the user may write them, as screens show them."""

import re
import unicodedata
from functools import lru_cache

from textual.keys import KEY_NAME_REPLACEMENTS, REPLACED_KEYS, Keys, key_to_character

from vramtop.estimator.common import InputError

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
            f"{text!r} cannot be told from {key_name(_SAME_BYTE[whole])}: terminals send the same for both"
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
