"""One setting: its name, type, default, meaning, and the check of its values."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["switch", "number", "count", "text", "choice", "list", "mapping"]
"""``switch``: true or false; ``number``: with a fraction; ``count``: whole; ``list``: of texts; ``mapping``: a table of
its own, from names to texts or lists of texts."""
Value = bool | int | float | str | tuple[str, ...] | Mapping[str, "str | tuple[str, ...]"]
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
"""Words for a switch in an environment variable or on the command line."""
_MAX_TEXT = 4096
_MAX_ENTRIES = 1000
_KIND_WORDS: dict[Kind, str] = {
    "switch": "true or false",
    "number": "a number",
    "count": "a whole number",
    "text": 'text in quotes, such as "text"',
    "choice": "one of the choices",
    "list": 'a list of texts, such as ["a", "b"]',
    "mapping": "a table of names and texts",
}


class Setting(NamedTuple):
    """A setting of vramtop, as the settings file has it; no dataclass, which takes five times as long to define."""

    name: str
    """Dotted: its TOML table and its key, ``dashboard.interval``. A mapping's is that of its table."""
    kind: Kind
    default: Value
    about: str
    """What it does, in one sentence without a full stop."""
    choices: tuple[str, ...] = ()
    """The words that it, or each entry of a list, may be."""
    least: float | None = None
    most: float | None = None
    pattern: str = ""
    """What a text, or each entry of a list or mapping, must match in full; empty texts of no list need not."""
    expects: str = ""
    """What is allowed, in words, where kind, choices and bounds do not say it: ``HH:MM-HH:MM, or off``."""
    example: Value | None = None
    """A value that is worth setting; None: the default is one."""
    flag: str = ""
    """The flag that takes precedence: ``--interval``; empty: none."""
    own_variable: str = ""
    """An environment variable of another name than ``variable`` makes."""
    also: str = ""
    """An older environment variable that is read where ``variable`` is not set."""
    is_program: bool = False
    """vramtop runs it: it is taken only from a file that nobody else may write."""
    check: Callable[[Any], str | None] | None = None
    """Returns what is wrong with a value of the right type, in words, or None."""

    @property
    def table(self) -> str:
        """The TOML table that it is in."""
        return self.name if self.kind == "mapping" else self.name.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """The variable that takes precedence over the file, ``VRAMTOP_DASHBOARD_INTERVAL``; a mapping has none."""
        if self.kind == "mapping":
            return ""
        return self.own_variable or f"VRAMTOP_{self.name.replace('.', '_').upper()}"

    @property
    def allowed(self) -> str:
        """What its value may be, in words."""
        if self.expects:
            return self.expects
        if self.choices:
            words = ", ".join(f'"{word}"' for word in self.choices)
            return f"a list of: {words}" if self.kind == "list" else f"one of: {words}"
        if self.least is not None and self.most is not None:
            return f"{_KIND_WORDS[self.kind]} between {self.least:g} and {self.most:g}"
        return _KIND_WORDS[self.kind]

    def checked(self, value: object) -> Value:
        """Return a value as it is kept: a list as a tuple, a whole number as a number.

        Args:
            value: as TOML gives it.

        Raises:
            ValueError: it is not allowed; the message says what is.
        """
        found = self._typed(value)
        if found is None or not self._is_allowed(found):
            words = found if isinstance(found, tuple) else ()
            wrong = next((word for word in words if not self._is_word(word)), None)
            raise ValueError(f"give {self.allowed}" if wrong is None else f'"{wrong}" is wrong; give {self.allowed}')
        if self.check is not None and (problem := self.check(found)):
            raise ValueError(problem)
        return found

    def parsed(self, text: str) -> Value:
        """Return the value that a text means, from the environment or the command line; a list has commas.

        Raises:
            ValueError: it means none.
        """
        value: object = text
        if self.kind == "switch":
            word = text.strip().lower()
            value = True if word in TRUE else False if word in FALSE else text
        elif self.kind in ("number", "count"):
            try:
                value = int(text) if self.kind == "count" else float(text)
            except ValueError:
                value = text
        elif self.kind == "list":
            value = [part.strip() for part in text.split(",") if part.strip()]
        return self.checked(value)

    def _typed(self, value: object) -> Value | None:
        """Return the value in its type; None if it has another."""
        match self.kind, value:
            case "switch", bool():
                return value
            case "number", int() | float() if not isinstance(value, bool):
                return float(value) if abs(value) < 1e300 else None
            case "count", int() if not isinstance(value, bool):
                return value
            case "text" | "choice", str():
                return value if len(value) <= _MAX_TEXT and value.isprintable() else None
            case "list", list() | tuple() | str():
                parts = _texts(value.split(",") if isinstance(value, str) else value)
                return None if parts is None else tuple(part.strip() for part in parts if part.strip())
            case "mapping", dict() if len(value) <= _MAX_ENTRIES:
                entries = {name: _entry(entry) for name, entry in value.items()}
                return None if None in entries.values() else {n: e for n, e in entries.items() if e is not None}
        return None

    def _is_allowed(self, value: Value) -> bool:
        match value:
            case bool():
                return True
            case int() | float():
                least, most = value if self.least is None else self.least, value if self.most is None else self.most
                return least <= value <= most  # False for what is not a number
            case str():
                return self._is_word(value)
            case tuple():
                return all(self._is_word(word) for word in value)
            case _:
                words = [(entry,) if isinstance(entry, str) else entry for entry in value.values()]
                return all(self._is_word(word) for several in words for word in several)

    def _is_word(self, word: str) -> bool:
        if self.choices:
            return word in self.choices
        return not self.pattern or not word or re.fullmatch(self.pattern, word) is not None


def _texts(values: list[object] | tuple[object, ...] | list[str]) -> tuple[str, ...] | None:
    texts = tuple(each for each in values if isinstance(each, str) and len(each) <= _MAX_TEXT and each.isprintable())
    return texts if len(texts) == len(values) <= _MAX_ENTRIES else None


def _entry(value: object) -> str | tuple[str, ...] | None:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT and value.isprintable() else None
    return _texts(value) if isinstance(value, list | tuple) else None
