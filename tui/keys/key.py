"""A key binding as the user knows it: its id in the settings file, its default keys, what it does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """What can be bound to other keys."""

    keys: str
    """The default: Textual's names of keys, separated by commas; the first is the one that screens show."""
    does: str
    """What it does; also its line in the help."""
    in_help: bool = True
    """The help has a line for it; False: everyone knows it, or the line of another one says it."""
    in_fields: bool = False
    """It works while text is typed into a field, so one of its keys must not be a character."""
    first: bool = False
    """It comes before the widget with the focus, so none of its keys may be a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedKey:
    """What always has the same keys."""

    keys: str
    """Keys as they are shown: ``1-9``."""
    names: tuple[str, ...]
    """Names that Textual gives to the keys."""
    does: str
    where: str
    """The screens, in words."""
