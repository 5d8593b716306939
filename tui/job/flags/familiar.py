"""Flags by the names that other tools give to settings, and flags that change no memory: the file ``flags.toml``."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from . import values
from .values import Reader, Settings, named, switch

_SWITCH = "[true|false]"


class FamiliarFlag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A flag with other tools' names."""

    names: tuple[str, ...]
    meaning: str
    """One sentence for the help."""
    value: str = ""
    """What stands for its value, in brackets if that may be left out; empty: it takes none."""
    choices: tuple[str, ...] = ()
    """Words that complete its value."""
    remark: str = ""
    """What the output says when it is used: the meaning, where tools differ about it."""
    read: str = ""
    """The function of ``values`` that reads its value, and the function's argument."""
    words: Mapping[str, Settings] = {}
    """What it sets by its value."""
    sets: Settings = {}
    """What it sets whatever its value, or where a switch is on."""
    off: Settings = {}
    """What it sets if the flag is a switch and is off."""
    also: Settings = {}
    """What it sets besides."""

    @property
    def key(self) -> str:
        """The job key of which it is no more than another name; empty: there is none."""
        name, _, argument = self.read.partition(" ")
        return argument if name == "same_as" else "parallel.context" if name == "context_ranks" else ""

    @property
    def placeholder(self) -> str:
        """What stands for its value in the help; empty: it takes none."""
        return self.value.strip("[]")

    @property
    def value_optional(self) -> bool:
        """Return True if the flag may be given without a value."""
        return self.value.startswith("[")

    def settings(self, text: str) -> Settings:
        """Return what it sets with a value, by job key.

        Raises:
            InputError: the value is wrong.
        """
        name, _, argument = self.read.partition(" ")
        reader: Reader = getattr(values, name, lambda _: self.sets)
        if argument:
            reader = getattr(values, name)(argument)
        elif self.words:
            reader = named(self.words)
        elif self.value == _SWITCH:
            reader = switch(self.sets, self.off)
        return {**reader(text), **self.also}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flag: tuple[FamiliarFlag, ...]
    ignored: tuple[str, ...]
    ignored_switches: tuple[str, ...]


_FILE = msgspec.toml.decode(Path(__file__).with_name("flags.toml").read_bytes(), type=_File)
FAMILIAR_FLAGS = _FILE.flag
IGNORED_SWITCHES = _FILE.ignored_switches
"""Ignored flags that may stand without a value."""
IGNORED_FLAGS = (*_FILE.ignored, *IGNORED_SWITCHES)
"""All ignored flags; each takes a value, except the switches."""
