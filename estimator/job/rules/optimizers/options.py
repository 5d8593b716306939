"""Checks ``training.optimizer_options``: the keyword arguments of optimizers on which memory depends."""

from collections.abc import Mapping
from typing import Any

from .table import option_defaults

_KINDS = {bool: "true or false", int: "a whole number of at least 1", list: "a word or a list of words"}


def check_options(options: Mapping[str, Any]) -> None:
    """Check that each option is one of some optimizer in the table, with a value of its type.

    An option that the job's own optimizer has no use for changes nothing, so that another optimizer can be tried.

    Raises:
        ValueError: there is no such option, or its value has another type.
    """
    known = option_defaults()
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"no optimizer has an option {name!r} that memory depends on; known are {_list(known)}")
        kind = type(known[name])
        if not _is_right(value, kind):
            raise ValueError(f"{name} must be {_KINDS[kind]}")


def _is_right(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind is int:
        return type(value) is int and 1 <= value <= 2**31
    return type(value) is kind


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
