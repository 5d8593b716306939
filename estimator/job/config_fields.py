"""Reads single fields of a model's config; errors name the field, its value and the config."""

from collections.abc import Mapping
from typing import Any

from ..common.errors import InputError

_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 2_000
"""Layers are processed one by one; Transformers were trained with 1,000 (arXiv 2203.00555)."""
_MAX_SHOWN_CHARACTERS = 80


class MissingFieldError(InputError):
    """A field that a rule needs is missing: the config may be of another kind of model."""


class ConfigFields:
    """Typed access to the fields of a model's config.

    Every getter takes the names that model families give to one quantity, and uses the first one present.

    Args:
        config: the fields of a Hugging Face config.json.
        where: name of the config in an error.
        absent: values of fields that the config leaves out.
    """

    def __init__(self, config: Mapping[str, Any], where: str, absent: Mapping[str, int] | None = None) -> None:
        self.config = config
        self.where = where
        self.absent = absent or {}

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            MissingFieldError: it is missing and has no default.
            InputError: it is anything else.
        """
        value = self.optional_size(*names)
        if value is None:
            value = self._absent(*names) or default
        if value is None:
            also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            raise MissingFieldError(f"{self.where}: {names[0]} is missing{also}")
        return value

    def optional_size(self, *names: str, minimum: int = 1) -> int | None:
        """Return a whole number of at least ``minimum``; None if it is null, or missing without a default meaning."""
        name = self._present(*names)
        if name is None:
            return self._absent(*names)
        value = self.config[name]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(
                f"{self.where}: {name} = {format_value(value)} is not a whole number of at least {minimum}"
            )
        if value > _MAX_SIZE:
            raise InputError(f"{self.where}: {name} = {format_value(value)} is larger than that of any model")
        return value

    def layers(self, *names: str, default: int | None = None) -> int:
        """Return a number of blocks, with the arguments and errors of ``size``."""
        count = self.size(*names, default=default)
        if count > _MAX_LAYERS:
            raise InputError(f"{self.where}: {self._present(*names)} = {count:,} layers are more than any model has")
        return count

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false; null counts as missing."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {name} = {format_value(value)} is neither true nor false")
        return value

    def number(self, *names: str, default: float | None = None) -> float | None:
        """Return a number; null counts as missing."""
        name = self._present(*names)
        value = None if name is None else self.config[name]
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.where}: {name} = {format_value(value)} is not a number")
        return float(value)

    def text(self, *names: str, default: str | None = None) -> str | None:
        """Return a string; null counts as missing."""
        name = self._present(*names)
        value = None if name is None else self.config[name]
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(f"{self.where}: {name} = {format_value(value)} is not a word")
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list; null counts as missing."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, list | tuple):
            raise InputError(f"{self.where}: {name} = {format_value(value)} is not a list")
        return None if value is None else list(value)

    def _absent(self, *names: str) -> int | None:
        return next((self.absent[name] for name in names if name in self.absent), None)

    def _present(self, *names: str) -> str | None:
        given = [name for name in names if name in self.config]
        return next((name for name in given if self.config[name] is not None), given[0] if given else None)


def format_value(value: Any) -> str:
    """Return a value for an error message, cut to one line."""
    if isinstance(value, int) and value.bit_length() > 300:  # Python refuses to write very long ones
        return f"a number of about {value.bit_length() * 3 // 10:,} digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
